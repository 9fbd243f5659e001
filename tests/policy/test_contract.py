"""What every policy with a model does, in JAX and in PyTorch."""

from functools import partial

import numpy as np
import pytest

from rollax.errors import CheckpointError, NonFiniteError, PolicyError
from tests.env.refused import refused
from tests.torch.made import every_kind, experience, in_parts, make, same, seen

NOT_A_MEAN = "vf_explained_var"


@every_kind
def test_actions_are_in_the_space_and_depend_on_the_seed(kind):
    first, second, other = make(kind), make(kind), make(kind, seed=4)
    actions = [policy.compute_actions(seen(64))[0] for policy in (first, second, other)]
    if kind != "TorchPPO-Box":  # its actions are clipped later
        assert all(first.action_space.contains(action) for action in actions[0])
    np.testing.assert_array_equal(actions[0], actions[1])
    assert not np.array_equal(actions[0], actions[2])
    greedy = [first.compute_actions(seen(7), explore=False)[0] for _ in range(2)]
    np.testing.assert_array_equal(*greedy)
    unseeded = [make(kind, seed=None).compute_actions(seen(64))[0] for _ in range(2)]
    assert not np.array_equal(*unseeded)


@every_kind
def test_rows_do_not_depend_on_their_number(kind):
    policy = make(kind)
    actions, _, fetches = policy.compute_actions(seen(5), explore=False)
    one_by_one = [policy.compute_actions(seen(5)[i : i + 1], explore=False) for i in range(5)]
    np.testing.assert_allclose(actions, np.concatenate([action for action, _, _ in one_by_one]), rtol=1e-5, atol=1e-6)
    for name, column in fetches.items():
        alone = np.concatenate([found[name] for _, _, found in one_by_one])
        np.testing.assert_allclose(column, alone, rtol=1e-5, atol=1e-6, err_msg=name)


@every_kind
def test_no_rows(kind):
    policy = make(kind)
    states = [np.zeros((0, *part.shape), part.dtype) for part in policy.get_initial_state()]
    actions, states, fetches = policy.compute_actions(seen(0), states)
    assert actions.shape == (0, *policy.action_space.shape)
    assert not any(map(len, [*states, *fetches.values()]))


@every_kind
def test_fetches_only_columns_that_are_read(kind):
    policy = make(kind)
    fetched = set(policy.compute_actions(seen(2))[2])
    assert fetched - {policy.checked_fetch} <= policy.sampled_columns


@every_kind
def test_learns_and_returns_statistics(kind):
    policy = make(kind)
    before = policy.get_weights()
    stats = policy.learn_on_batch(experience(policy))
    assert set(policy.statistics) <= {*stats, "cur_kl_coeff", "num_gradient_steps"}
    assert all(np.isfinite(stats[name]).all() for name in policy.statistics if name in stats)
    assert any(not np.array_equal(before[name], value) for name, value in policy.get_weights().items())
    if policy.learns_off_policy:
        assert stats["td_error"].shape == (16,)


@every_kind
def test_returned_weights_do_not_change(kind):
    policy = make(kind)
    weights = policy.get_weights()
    copies = {name: value.copy() for name, value in weights.items()}
    policy.learn_on_batch(experience(policy))
    same(weights, copies)
    other = make(kind, seed=7)
    other.set_weights(policy.get_weights())
    same(other.get_weights(), policy.get_weights())


@every_kind
def test_restoring_continues_exactly(kind):
    policy, other = make(kind), make(kind, seed=99)
    policy.learn_on_batch(experience(policy))
    policy.timestep = 16
    other.set_state(policy.get_state())
    np.testing.assert_array_equal(*(one.compute_actions(seen(9))[0] for one in (policy, other)))
    batch = experience(policy, seed=1)
    stats = [one.learn_on_batch(batch) for one in (policy, other)]
    np.testing.assert_equal(stats[0], stats[1])
    assert policy.timestep == other.timestep == 16
    assert policy.learner.num_updates == other.learner.num_updates
    same(policy.get_weights(), other.get_weights())


@every_kind
def test_gradients_of_a_worker_update_the_driver(kind):
    policy, worker = make(kind), make(kind, seed=9)
    worker.set_weights(policy.get_weights())
    gradients, stats = worker.compute_gradients(experience(worker))
    assert np.isfinite(stats["total_loss"])
    assert all(isinstance(value, np.ndarray) for value in gradients.values())
    before = policy.get_weights()
    policy.apply_gradients(gradients)
    assert any(not np.array_equal(before[name], value) for name, value in policy.get_weights().items())
    same(worker.get_weights(), before)


@every_kind
def test_weights_and_state_of_another_model_are_refused(kind):
    policy = make(kind)
    policy.learn_on_batch(experience(policy))
    state = policy.get_state()
    for hiddens in ((9,), (8, 8)):
        other = make(kind, model={"fcnet_hiddens": hiddens})
        message = r"(wrong shape|different model)(.|\n)*policy 'default_policy'"
        with pytest.raises(PolicyError, match=message):
            other.set_weights(policy.get_weights())
        first = {"optimizer": {}} if kind.startswith("Torch") else {}  # which would be refused before the weights
        with pytest.raises(PolicyError, match=message):
            other.set_state({**state, **first})
    refused(CheckpointError, policy.set_state, {**state, "optimizer": {"a.b": np.zeros(2)}}, says="different optimizer")
    refused(CheckpointError, policy.set_state, {**state, "num_updates": -1}, says="num_updates")


@every_kind
def test_a_bad_batch_changes_nothing(kind):
    policy, twin = make(kind), make(kind)
    policy.name = "left"
    good = experience(policy)
    for one in (policy, twin):
        one.learn_on_batch(good)
    steps = policy.learner.num_updates
    for column in ("obs", "rewards") if policy.learns_off_policy else ("obs", "advantages", "value_targets"):
        bad = good.copy()
        bad[column][:] = np.nan
        with pytest.raises(NonFiniteError, match="not finite") as error:
            policy.learn_on_batch(bad)
        assert f"policy 'left', gradient step {steps}: the loss (" in str(error.value)
        assert f"columns ['{column}']" in str(error.value)
        assert "lower lr" in str(error.value)
        same(policy.get_weights(), twin.get_weights())
    assert policy.learner.num_updates == steps
    # The same as without the bad batches, except for the random numbers that they drew.
    twin.learning_rng.bit_generator.state = policy.learning_rng.bit_generator.state
    for one in (policy, twin):
        one.compute_actions(seen(5))
        one.learn_on_batch(good)
    same(policy.get_weights(), twin.get_weights())


@every_kind
def test_an_infinite_step_is_refused(kind):
    policy = make(kind, lr=1e38)
    batch = experience(policy)
    learned = partial(policy.learn_on_batch, batch)
    with pytest.raises(NonFiniteError, match=r"gradient step \d+: "):
        [learned() for _ in range(3)]
    before = policy.get_weights()
    assert all(np.isfinite(value).all() for value in before.values())
    gradients = {name: np.full_like(value, np.nan) for name, value in before.items()}
    refused(NonFiniteError, policy.apply_gradients, gradients, says="the gradient of")
    same(policy.get_weights(), before)


@every_kind
def test_nan_weights_and_observations_are_refused_in_acting_and_in_learning(kind):
    policy = make(kind)
    batch, obs = experience(policy), seen(3)
    obs[1, 2] = np.nan
    refused(NonFiniteError, policy.compute_actions, obs, says="row 1 of 3")
    policy.set_weights({name: np.full_like(value, np.nan) for name, value in policy.get_weights().items()})
    for explore in (True, False):
        with pytest.raises(NonFiniteError, match=r"row 0 of 3, at timestep 0(.|\n)*NaN in the weights"):
            policy.compute_actions(seen(3), explore=explore)
    refused(NonFiniteError, policy.learn_on_batch, batch, says="gradient step 0")


@every_kind
def test_other_gradients_are_refused(kind):
    policy = make(kind)
    gradients, statistics = policy.compute_gradients(experience(policy))
    first, before = next(iter(gradients)), policy.get_weights()
    for wrong, message in (
        ((gradients, statistics), r"The gradients are not a dict(.|\n)*tuple(.|\n)*gradients, statistics ="),
        ({**gradients, "other": np.zeros(1)}, r"apply_gradients(.|\n)*unknown: .*other"),
        ({**gradients, first: np.zeros(1)}, r"wrong shape(.|\n)*" + first),
    ):
        with pytest.raises(PolicyError, match=message):
            policy.apply_gradients(wrong)
    same(policy.get_weights(), before)


@every_kind
def test_microbatches_give_the_same_step(kind):
    """Minibatches of 8 rows in parts of 3, 3 and 2; sequences of 5, 5, 5 and 1 rows, one in each part."""
    memory = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 5}
    recurrent = {"sgd_minibatch_size": 20, "num_sgd_iter": 1, "model": memory}
    config, rows = (recurrent, 5) if kind.endswith("LSTM") else ({}, 3)
    by_row = set() if kind.startswith("Torch") else {"td_error"}  # which JAX does not report with gradients
    whole, parts = make(kind, **config), in_parts(rows, kind, **config)
    batch = experience(whole, 16)
    if config:
        batch["trajectory_id"] = batch["eps_id"] = np.repeat([0, 1], [15, 1])
    else:
        (expected, stats), (gradients, got) = whole.compute_gradients(batch), parts.compute_gradients(batch)
        for name, value in expected.items():
            np.testing.assert_allclose(gradients[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
        for name in stats.keys() - {NOT_A_MEAN, *by_row}:
            np.testing.assert_allclose(got[name], stats[name], rtol=1e-4, atol=1e-6, err_msg=name)
    stats, got = whole.learn_on_batch(batch), parts.learn_on_batch(batch)
    assert parts.learner.num_updates == whole.learner.num_updates
    for name in stats.keys() - {NOT_A_MEAN}:
        np.testing.assert_allclose(got[name], stats[name], rtol=1e-3, atol=1e-5, err_msg=name)
    for name, value in whole.get_weights().items():
        # Adam divides by the size of gradients, which enlarges rounding differences of small ones.
        np.testing.assert_allclose(parts.get_weights()[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("kind", ["TorchDQN", "DQN"])
def test_targets_are_copied_at_the_set_frequency(kind):
    policy = make(kind, target_network_update_freq=3)
    expected = policy.get_weights()
    for update in range(5):
        if update == 3:
            expected = policy.get_weights()
        np.testing.assert_equal(policy.targets, expected)
        policy.learn_on_batch(experience(policy, 8))


@pytest.mark.parametrize("kind", ["TorchSAC", "SAC"])
def test_targets_of_the_critics_are_averaged(kind):
    policy = make(kind, tau=0.25)
    start = policy.get_weights()
    policy.learn_on_batch(experience(policy, 8))
    now = policy.get_weights()
    for name, target in policy.targets.items():
        expected = 0.75 * start[name] + 0.25 * now[name] if name.startswith("critics") else start[name]
        np.testing.assert_allclose(target, expected, rtol=1e-5, atol=1e-7, err_msg=name)
