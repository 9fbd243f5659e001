"""`TorchPolicy`: what every policy with a model promises, over those in PyTorch and those in JAX; and its own parts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from examples.torch_dqn import TorchDQNPolicy
from examples.torch_pg import TorchPGPolicy
from examples.torch_ppo import TorchPPOPolicy
from examples.torch_sac import TorchSACPolicy
from rollax import Outputs, SampleBatch
from rollax.algorithms.dqn import DQNPolicy
from rollax.algorithms.ppo import PPOPolicy
from rollax.algorithms.sac import SACPolicy
from rollax.config.multiagent import SharedParts
from rollax.errors import CheckpointError, ConfigError, EnvError, NonFiniteError, PolicyError, ShapeError
from rollax.policy.shared_variables import SharedVariables
from rollax.torch.random_numbers import random_numbers_of
from tests.torch.carried import carried

SEEN, CHOICES, BOX = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4, start=2), spaces.Box(-1, 1, (2,))
SMALL = {"model": {"fcnet_hiddens": (8,)}, "seed": 3, "lr": 1e-2}
PPO = {**SMALL, "sgd_minibatch_size": 8, "num_sgd_iter": 2}
REPLAY = {**SMALL, "train_batch_size": 8}
KINDS = {
    "TorchPPO": (TorchPPOPolicy, CHOICES, PPO),
    "TorchPPO-Box": (TorchPPOPolicy, BOX, {**PPO, "model": {"fcnet_hiddens": (8,), "free_log_std": True}}),
    "TorchPPO-LSTM": (TorchPPOPolicy, CHOICES, {**PPO, "model": {"use_lstm": True, "lstm_cell_size": 4}}),
    "TorchDQN": (TorchDQNPolicy, CHOICES, REPLAY),
    "TorchSAC": (TorchSACPolicy, BOX, REPLAY),
    "PPO": (PPOPolicy, CHOICES, PPO),
    "DQN": (DQNPolicy, CHOICES, REPLAY),
    "SAC": (SACPolicy, BOX, REPLAY),
}
OF_JAX = ("PPO", "DQN", "SAC")
every_kind = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.long) if kind in OF_JAX else kind for kind in KINDS]
)
HEAD = {"TorchPPO": "policy_head.bias", "TorchDQN": "advantages.bias", "TorchSAC": "actor.head.bias"}


def make(kind="TorchPPO", **changes):
    policy_class, action_space, config = KINDS[kind]
    return policy_class(SEEN, action_space, {**config, **changes})


def seen(rows, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (rows, 3)).astype(np.float32)


def experience(policy, rows=16, seed=0):
    """What the policy did, with random rewards, advantages and targets; or replayed transitions."""
    random = np.random.default_rng(seed)
    obs = seen(rows, seed)
    actions, _, fetches = policy.compute_actions(obs)
    numbers = random.standard_normal((3, rows)).astype(np.float32)
    columns = {"obs": obs, "actions": actions, "rewards": numbers[0]}
    if policy.learns_off_policy:
        columns |= {"new_obs": seen(rows, seed + 1), "discounts": np.full(rows, 0.9, np.float32)}
        return SampleBatch({**columns, "weights": np.ones(rows, np.float32), "indices": np.arange(rows)})
    columns |= {"advantages": numbers[1], "value_targets": numbers[2], **fetches}
    if policy.memory.present:
        (state,) = policy.memory.initial_state
        columns |= {"state_in": (np.zeros((rows, *state.shape), np.float32),)}
        columns |= {"trajectory_id": np.repeat([0, 1], rows // 2), "eps_id": np.repeat([0, 1], rows // 2)}
    return SampleBatch(columns)


def same(weights, others):
    assert weights.keys() == others.keys()
    for name, value in weights.items():
        np.testing.assert_array_equal(value, others[name], err_msg=name)


class TestContract:
    @every_kind
    def test_actions_are_in_the_space_and_one_seed_is_one_stream(self, kind):
        first, second, other = make(kind), make(kind), make(kind, seed=4)
        actions = [policy.compute_actions(seen(64))[0] for policy in (first, second, other)]
        if kind != "TorchPPO-Box":  # whose actions are clipped later
            assert all(first.action_space.contains(action) for action in actions[0])
        np.testing.assert_array_equal(actions[0], actions[1])
        assert not np.array_equal(actions[0], actions[2])
        greedy = [first.compute_actions(seen(7), explore=False)[0] for _ in range(2)]
        np.testing.assert_array_equal(*greedy)

    @every_kind
    def test_rows_do_not_depend_on_how_many_there_are(self, kind):
        policy = make(kind)
        together = policy.compute_actions(seen(5), explore=False)[0]
        one_by_one = [policy.compute_actions(seen(5)[i : i + 1], explore=False)[0] for i in range(5)]
        np.testing.assert_allclose(together, np.concatenate(one_by_one), rtol=1e-5, atol=1e-6)

    @every_kind
    def test_only_the_columns_that_somebody_reads(self, kind):
        policy = make(kind)
        fetched = set(policy.compute_actions(seen(2))[2])
        assert fetched - {policy._checked_fetch} <= policy.sampled_columns

    @every_kind
    def test_it_learns_and_says_how(self, kind):
        policy = make(kind)
        before = policy.get_weights()
        stats = policy.learn_on_batch(experience(policy))
        assert set(policy.statistics) <= {*stats, "cur_kl_coeff", "num_gradient_steps"}
        assert all(np.isfinite(stats[name]).all() for name in policy.statistics if name in stats)
        assert any(not np.array_equal(before[name], value) for name, value in policy.get_weights().items())
        if policy.learns_off_policy:
            assert stats["td_error"].shape == (16,)

    @every_kind
    def test_weights_that_were_read_do_not_change(self, kind):
        policy = make(kind)
        weights = policy.get_weights()
        copies = {name: value.copy() for name, value in weights.items()}
        policy.learn_on_batch(experience(policy))
        same(weights, copies)
        other = make(kind, seed=7)
        other.set_weights(policy.get_weights())
        same(other.get_weights(), policy.get_weights())

    @every_kind
    def test_goes_on_bit_for_bit(self, kind):
        policy, other = make(kind), make(kind, seed=99)
        policy.learn_on_batch(experience(policy))
        policy.timestep = 16
        other.set_state(policy.get_state())
        np.testing.assert_array_equal(*(one.compute_actions(seen(9))[0] for one in (policy, other)))
        batch = experience(policy, seed=1)
        stats = [one.learn_on_batch(batch) for one in (policy, other)]
        for name, value in stats[0].items():
            np.testing.assert_array_equal(value, stats[1][name])
        assert policy.timestep == other.timestep == 16
        assert policy.learner.num_updates == other.learner.num_updates
        same(policy.get_weights(), other.get_weights())

    @every_kind
    def test_gradients_of_a_worker_move_the_driver(self, kind):
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
    def test_what_is_of_another_model_is_refused(self, kind):
        policy = make(kind)
        policy.learn_on_batch(experience(policy))
        state = policy.get_state()
        with pytest.raises(PolicyError, match=r"wrong shape|another model"):
            make(kind, model={"fcnet_hiddens": (9,)}).set_weights(policy.get_weights())
        with pytest.raises(CheckpointError, match="another optimizer"):
            policy.set_state({**state, "optimizer": {"a.b": np.zeros(2)}})
        with pytest.raises(CheckpointError, match="num_updates"):
            policy.set_state({**state, "num_updates": -1})

    @every_kind
    def test_a_bad_batch_loses_nothing(self, kind):
        policy, twin = make(kind), make(kind)
        policy.name = "left"
        good = experience(policy)
        for one in (policy, twin):
            one.learn_on_batch(good)
        steps = policy.learner.num_updates
        bad = good.copy()
        bad["obs"][:] = np.nan
        with pytest.raises(NonFiniteError, match="not finite") as error:
            policy.learn_on_batch(bad)
        assert f"policy 'left', gradient step {steps}: the loss (" in str(error.value)
        assert "columns ['obs']" in str(error.value)
        same(policy.get_weights(), twin.get_weights())
        twin.learning_rng.bit_generator.state = policy.learning_rng.bit_generator.state
        for one in (policy, twin):
            one.learn_on_batch(good)
        same(policy.get_weights(), twin.get_weights())

    @every_kind
    def test_an_infinite_step_is_refused(self, kind):
        policy = make(kind, lr=1e38)
        batch = experience(policy)
        learned = partial(policy.learn_on_batch, batch)
        with pytest.raises(NonFiniteError, match=r"gradient step \d+: "):
            [learned() for _ in range(3)]
        before = policy.get_weights()
        assert all(np.isfinite(value).all() for value in before.values())
        gradients = {name: np.full_like(value, np.nan) for name, value in before.items()}
        with pytest.raises(NonFiniteError, match="the gradient of"):
            policy.apply_gradients(gradients)
        same(policy.get_weights(), before)

    @pytest.mark.parametrize("kind", HEAD)
    @pytest.mark.parametrize("explore", [True, False])
    def test_nan_weights_are_refused_while_acting(self, kind, explore):
        policy = make(kind)
        weights = policy.get_weights()
        weights[HEAD[kind]][:] = np.nan
        policy.set_weights(weights)
        with pytest.raises(NonFiniteError, match=r"row 0 of 3, at timestep 0(.|\n)*NaN weights"):
            policy.compute_actions(seen(3), explore=explore)


def test_an_update_equals_that_of_jax():
    """The same weights, rows and plan: two epochs of minibatches of 8 and 5 rows."""
    ours, twin = make("PPO", grad_clip=0.5), make("TorchPPO", grad_clip=0.5)
    twin.set_weights(carried(ours.get_weights()))
    batch = experience(ours, 13)
    twin.learning_rng.bit_generator.state = ours.learning_rng.bit_generator.state
    expected, stats = ours.learn_on_batch(batch), twin.learn_on_batch(batch)
    for name in ("total_loss", "policy_loss", "vf_loss", "entropy", "kl"):
        np.testing.assert_allclose(stats[name], expected[name], rtol=1e-4, atol=1e-5)
    weights = carried(ours.get_weights())
    for name, value in twin.get_weights().items():
        np.testing.assert_allclose(value, weights[name], rtol=1e-4, atol=1e-5)


def test_observations_may_be_reversed_views():
    policy, obs = make(), seen(5)
    np.testing.assert_array_equal(
        *(policy.compute_actions(rows, explore=False)[0] for rows in (obs[::-1], obs[::-1].copy()))
    )


def test_masked_actions_are_never_taken_and_not_learned_from():
    space = spaces.Dict({"x": SEEN, "action_mask": spaces.MultiBinary(4)})
    mask = np.tile(np.array([1, 0, 1, 0], np.int8), (64, 1))
    obs = {"x": seen(64), "action_mask": mask}
    for policy_class, config in ((TorchPPOPolicy, PPO), (TorchDQNPolicy, REPLAY)):
        policy = policy_class(space, CHOICES, config)
        for explore in (True, False):
            assert set(policy.compute_actions(obs, explore=explore)[0].tolist()) <= {2, 4}
        with pytest.raises(EnvError, match="allows no action"):
            policy.compute_actions({"x": seen(1), "action_mask": np.zeros((1, 4), np.int8)})
    policy = TorchPPOPolicy(space, CHOICES, {**PPO, "entropy_coeff": 0.01})
    actions, _, fetches = policy.compute_actions(obs)
    columns = {"advantages": seen(64)[:, 0], "value_targets": seen(64)[:, 1]}
    stats = policy.learn_on_batch(SampleBatch({"obs": obs, "actions": actions, **columns, **fetches}))
    assert stats["entropy"] <= np.log(2)  # of two choices, not four


class Stateful(nn.Module):
    """A model with dropout, batch statistics, tied weights and a parameter that is not trained."""

    def __init__(self, observation_space, num_outputs):
        super().__init__()
        self.norm, self.dropout = nn.BatchNorm1d(3), nn.Dropout(0.5)
        self.policy, self.value = nn.Linear(3, num_outputs), nn.Linear(3, 1)
        self.tied = self.policy
        self.fixed = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, obs):
        hidden = self.dropout(self.norm(obs))
        return Outputs(self.tied(hidden) * self.fixed, self.value(hidden)[:, 0])


class TestOwnModels:
    def test_buffers_travel_and_tied_weights_are_stored_once(self):
        policy, other = (make(model={"custom_model": Stateful}, seed=seed) for seed in (1, 2))
        names = set(policy.get_weights())
        assert {"norm.running_mean", "norm.num_batches_tracked", "fixed", "policy.weight"} <= names
        assert not any(name.startswith("tied") for name in names)
        policy.learn_on_batch(experience(policy))
        assert policy.get_weights()["norm.running_mean"].any()
        assert policy.get_weights()["fixed"] == 1
        other.set_weights(policy.get_weights())
        same(other.get_weights(), policy.get_weights())
        np.testing.assert_array_equal(
            *(one.compute_actions(seen(4), explore=False)[2]["action_dist_inputs"] for one in (policy, other))
        )

    def test_dropout_draws_from_the_policys_own_stream(self):
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        policy = make(model={"custom_model": Stateful})
        other = make(model={"custom_model": Stateful})
        batch = experience(policy)
        policy.learn_on_batch(batch)
        np.testing.assert_array_equal(torch.rand(3), expected)  # the global stream is as it was
        other.set_state(policy.get_state())
        policy.learn_on_batch(batch)
        torch.rand(17)
        other.learn_on_batch(batch)
        same(policy.get_weights(), other.get_weights())

    def test_a_module_of_jax_is_refused(self):
        from tests.policy.test_jax_policy import Stateful as OfJax

        with pytest.raises(ConfigError, match=r"no module class of PyTorch(.|\n)*torch.nn.Module"):
            make(model={"custom_model": OfJax})


class RunningMean(nn.Module):
    """A model that replaces its buffer, where layers of PyTorch change theirs in place."""

    def __init__(self, observation_space, num_outputs):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.policy, self.value = nn.Linear(3, num_outputs), nn.Linear(3, 1)

    def forward(self, obs):
        if self.training:
            self.mean = 0.75 * self.mean + 0.25 * obs.mean(dim=0)
        centred = obs - self.mean
        return Outputs(self.policy(centred), self.value(centred)[:, 0])


class TestReplacedBuffers:
    def policy(self, **changes):
        return make(model={"custom_model": RunningMean}, num_sgd_iter=2, sgd_minibatch_size=16, **changes)

    def test_they_are_weights(self):
        policy, other = self.policy(), self.policy(seed=9)
        batch = experience(policy)
        policy.learn_on_batch(batch)
        mean = (1 - 0.75**2) * batch["obs"].mean(axis=0)  # after two steps
        np.testing.assert_allclose(policy.get_weights()["mean"], mean, rtol=1e-5)
        other.set_state(policy.get_state())
        np.testing.assert_allclose(other.model.mean, mean, rtol=1e-5)
        for one in (policy, other):
            one.learn_on_batch(batch)
        same(policy.get_weights(), other.get_weights())

    def test_a_failed_update_leaves_them_as_they_were(self):
        policy = self.policy()
        batch = experience(policy)
        policy.learn_on_batch(batch)
        before = policy.get_weights()
        batch["value_targets"][:] = np.inf
        with pytest.raises(NonFiniteError):
            policy.learn_on_batch(batch)
        same(policy.get_weights(), before)
        np.testing.assert_array_equal(policy.model.mean, before["mean"])


class Curious(TorchPPOPolicy):
    """Has a network, an optimizer and a tensor beside its model."""

    def __init__(self, *args):
        super().__init__(*args)
        self.forward_model = nn.Linear(3, 3)
        self.own_optimizer = torch.optim.Adam(self.forward_model.parameters(), lr=0.1)
        self.count = {"steps": torch.zeros(2)}

    def learn_on_batch(self, batch):
        self.own_optimizer.zero_grad()
        self.forward_model(torch.as_tensor(batch["obs"])).square().sum().backward()
        self.own_optimizer.step()
        self.count["steps"] += 1
        return super().learn_on_batch(batch)


def test_state_in_attributes_is_stored():
    policy, other = Curious(SEEN, CHOICES, PPO), Curious(SEEN, CHOICES, {**PPO, "seed": 9})
    batch = experience(policy)
    policy.learn_on_batch(batch)
    other.set_state(policy.get_state())
    for one in (policy, other):
        one.learn_on_batch(batch)
    assert torch.equal(policy.forward_model.weight, other.forward_model.weight)
    assert other.count["steps"].tolist() == [2, 2]
    state = policy.get_state()
    own = {**state["own"], "forward_model": {".weight": np.zeros(2)}}
    with pytest.raises(CheckpointError, match="attribute forward_model"):
        policy.set_state({**state, "own": own})


class Keeper:
    """An object of a user that has a network."""

    def __init__(self):
        self.inside = {"network": nn.Linear(2, 2)}


@pytest.mark.parametrize(
    "make_state",
    [
        lambda _: Keeper(),
        lambda _: [torch.Generator()],
        lambda p: torch.optim.lr_scheduler.StepLR(p.learner.optimizer, 1),
    ],
    ids=["network", "generator", "scheduler"],
)
def test_state_inside_of_other_objects_is_refused(make_state):
    policy = make()
    policy.mine = make_state(policy)
    with pytest.raises(CheckpointError, match=r"would be lost(.|\n)*attribute 'mine'"):
        policy.get_state()


def test_each_trained_part_has_a_learning_rate():
    class Forgetful(TorchSACPolicy):
        def learning_rates(self):
            return {"actor": 1e-3, "critics": 1e-3}

    with pytest.raises(PolicyError, match=r"no learning rate(.|\n)*log_alpha"):
        Forgetful(SEEN, BOX, REPLAY)


@pytest.mark.parametrize("name", ["Adafactor", "NAdam", "SGD"])
def test_other_optimizers_are_restored(name):
    class Other(TorchPPOPolicy):
        def make_optimizer(self, params):
            return getattr(torch.optim, name)(params, **({"momentum": 0.9} if name == "SGD" else {}))

    policy, other = (Other(SEEN, CHOICES, {**PPO, "seed": seed}) for seed in (1, 2))
    batch = experience(policy)
    policy.learn_on_batch(batch)
    other.set_state(policy.get_state())
    for one in (policy, other):
        one.learn_on_batch(batch)
    same(policy.get_weights(), other.get_weights())


def test_shared_parts_are_the_same_tensors():
    policies = {name: make(seed=seed) for name, seed in (("a", 1), ("b", 2))}
    for name, policy in policies.items():
        policy.name = name
    SharedVariables({"trunk": SharedParts(parts=("policy_trunk",))}, policies)
    a, b = (policies[name].get_weights() for name in "ab")
    trunk = [name for name in a if name.startswith("policy_trunk")]
    same({name: a[name] for name in trunk}, {name: b[name] for name in trunk})
    policies["b"].learn_on_batch(experience(policies["b"]))
    new, old = policies["a"].get_weights(), a
    assert all(not np.array_equal(new[name], old[name]) for name in trunk)
    same({name: new[name] for name in trunk}, {name: policies["b"].get_weights()[name] for name in trunk})
    np.testing.assert_array_equal(new["policy_head.weight"], old["policy_head.weight"])


def test_targets_begin_with_the_shared_parts():
    policies = {name: make("TorchDQN", seed=seed) for name, seed in (("a", 1), ("b", 2))}
    SharedVariables({"trunk": SharedParts(parts=("trunk",))}, policies)
    for policy in policies.values():
        same({name: target.numpy() for name, target in policy.targets.items()}, policy.get_weights())


class TestTargets:
    def test_they_become_copies_every_few_updates(self):
        policy = make("TorchDQN", target_network_update_freq=3)
        start = policy.get_weights()
        policy.learn_on_batch(experience(policy))  # 2 updates
        for name, target in policy.targets.items():
            np.testing.assert_array_equal(target, start[name])
        policy.learn_on_batch(experience(policy, 8))
        for name, target in policy.targets.items():
            np.testing.assert_array_equal(target, policy.get_weights()[name])

    def test_they_move_by_tau_in_the_named_part(self):
        policy = make("TorchSAC", tau=0.5)
        start = policy.get_weights()
        policy.learn_on_batch(experience(policy, 8))
        now = policy.get_weights()
        for name, target in policy.targets.items():
            expected = (start[name] + now[name]) / 2 if name.startswith("critics") else start[name]
            np.testing.assert_allclose(target, expected, rtol=1e-6)

    def test_errors_of_transitions(self):
        policy = make("TorchDQN")
        errors = policy.td_errors(experience(policy, 5))
        assert errors.shape == (5,)

    def test_random_numbers_of_errors_are_the_policys_own(self):
        class Noisy(TorchDQNPolicy):
            def loss(self, model, out, batch, mask, coefficients):
                loss, statistics = super().loss(model, out, batch, mask, coefficients)
                return loss, {**statistics, "td_error": torch.rand(len(mask))}

        one, two = (Noisy(SEEN, CHOICES, REPLAY) for _ in range(2))
        before = torch.get_rng_state()
        np.testing.assert_array_equal(*(policy.td_errors(experience(policy, 5)) for policy in (one, two)))
        assert torch.equal(torch.get_rng_state(), before)


def test_an_interrupted_update_leaves_the_policy_as_it_was(monkeypatch):
    policy, twin = make(), make()
    batch = experience(policy)
    for one in (policy, twin):
        one.learn_on_batch(batch)
    before, steps, loss = policy.get_weights(), [], policy.loss

    def interrupted(*arguments):
        steps.append(1)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return loss(*arguments)

    monkeypatch.setattr(policy, "loss", interrupted)
    with pytest.raises(KeyboardInterrupt):
        policy.learn_on_batch(batch)
    monkeypatch.undo()
    same(policy.get_weights(), before)
    twin.learning_rng.bit_generator.state = policy.learning_rng.bit_generator.state
    for one in (policy, twin):
        one.learn_on_batch(batch)
    same(policy.get_weights(), twin.get_weights())


def test_microbatches_give_the_same_step():
    whole, parts = make("TorchPPO", num_sgd_iter=1), make("TorchPPO", num_sgd_iter=1)
    batch = experience(whole, 8)
    parts.plan = replace(parts.plan, microbatch_size=3)  # 3, 3 and 2 rows
    stats = [policy.learn_on_batch(batch) for policy in (whole, parts)]
    np.testing.assert_allclose(stats[0]["total_loss"], stats[1]["total_loss"], rtol=1e-5)
    for name, value in whole.get_weights().items():
        np.testing.assert_allclose(value, parts.get_weights()[name], rtol=1e-3, atol=1e-5)


def test_microbatches_of_sequences_count_for_their_rows():
    """Sequences of 5, 5, 5 and 1 rows, one in each microbatch: a mean over 16 rows, not over four means."""
    memory = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 5}
    whole, parts = (make("TorchPPO-LSTM", num_sgd_iter=1, sgd_minibatch_size=20, model=memory) for _ in range(2))
    parts.plan = replace(parts.plan, microbatch_size=5)
    batch = experience(whole, 16)
    batch["trajectory_id"] = batch["eps_id"] = np.repeat([0, 1], [15, 1])
    stats = [policy.learn_on_batch(batch) for policy in (whole, parts)]
    for name in ("policy_loss", "vf_loss", "entropy"):
        np.testing.assert_allclose(stats[0][name], stats[1][name], rtol=1e-4, atol=1e-6)


class TestStatisticsByRow:
    def test_microbatches(self):
        whole, parts = make("TorchDQN"), make("TorchDQN")
        parts.plan = replace(parts.plan, microbatch_size=3)  # 3, 3 and 2 rows
        batch = experience(whole, 8)
        errors = [policy.learn_on_batch(batch)["td_error"] for policy in (whole, parts)]
        np.testing.assert_allclose(*errors, rtol=1e-5, atol=1e-6)

    def test_with_memory_there_is_one_for_each_sequence(self):
        class ByRow(TorchPPOPolicy):
            def loss(self, model, out, batch, mask, coefficients):
                loss, statistics = super().loss(model, out, batch, mask, coefficients)
                return loss, {**statistics, "td_error": out.value}

        policy = ByRow(SEEN, CHOICES, KINDS["TorchPPO-LSTM"][2])
        with pytest.raises(ShapeError, match=r"'td_error'(.|\n)*for each sequence"):
            policy.learn_on_batch(experience(policy))


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_loss_is_not_compiled_again_for_other_coefficients(monkeypatch):
    graphs, compiled = [], torch.compile

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(compiled, backend=backend))

    class Decaying(TorchPPOPolicy):
        def loss(self, model, out, batch, mask, coefficients):
            entropy = out.policy.square().mean() * coefficients["entropy_coeff"]
            return entropy / (1 + coefficients["num_updates"]), {}

    policy = Decaying(SEEN, CHOICES, {**PPO, "torch_compile": True, "entropy_coeff_schedule": [[0, 0.1], [100, 0.0]]})
    policy.learn_on_batch(experience(policy))
    first = len(graphs)
    policy.timestep = 50
    policy.learn_on_batch(experience(policy))
    assert first == len(graphs) > 0


def test_a_policy_of_functions():
    assert TorchPGPolicy.__name__ == "TorchPGPolicy"
    policy = TorchPGPolicy(SEEN, CHOICES, SMALL)
    assert policy.statistics == ("policy_loss", "entropy", "total_loss", "cur_lr")
    columns = {"obs": seen(8), "actions": np.full(8, 2), "advantages": seen(8)[:, 0]}
    stats = policy.learn_on_batch(SampleBatch(columns))
    assert {"policy_loss", "entropy"} <= stats.keys()


class TestDevices:
    def test_one_that_is_not_there(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(ConfigError, match=r"does not find this device(.|\n)*got: +'?cuda"):
            make(device="cuda")
        assert make(device="auto").device.type == "cpu"

    def test_random_numbers_on_a_gpu(self, monkeypatch):
        """The GPU's stream gets another seed each time, from the generator, and then its state back."""
        calls = []
        monkeypatch.setattr(torch.cuda, "get_rng_state", lambda *_: "kept")
        monkeypatch.setattr(torch.cuda, "manual_seed", calls.append)
        monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, *_: calls.append(state))
        generator, numbers = torch.Generator().manual_seed(3), []
        before = torch.get_rng_state()
        for _ in range(2):
            with random_numbers_of(generator, torch.device("cuda")):
                numbers.append(torch.rand(()).item())
        assert torch.equal(torch.get_rng_state(), before)
        assert calls[1] == calls[3] == "kept"
        assert calls[0] != calls[2]
        assert numbers[0] != numbers[1]

    def test_a_new_policy_seeds_no_gpu(self, monkeypatch):
        seeds = []
        monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
        make()
        assert not seeds

    def test_workers_without_a_gpu_use_the_cpu(self, monkeypatch):
        monkeypatch.setenv("ROLLAX_TORCH_DEVICE", "cpu")
        assert make(device="cuda").device.type == "cpu"
