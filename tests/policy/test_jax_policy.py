"""`JaxPolicy` with PPO and PG: acting, learning, weights and state, compilations."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from gymnasium import spaces

from rollax.algorithms.pg import PG
from rollax.errors import BatchError, ConfigError, NonFiniteError
from rollax.models.outputs import Outputs
from rollax.policy.update_plan import Minibatches
from tests.policy.small_ppo import CHOICES, SEEN, Stateful, experience, make, seen


class Dropping(PG):
    """Its model has dropout."""

    def make_model(self, rngs):
        model = super().make_model(rngs)
        model.dropout = nnx.Dropout(0.5, rngs=rngs)
        return model


class TestActing:
    def test_the_current_model_has_the_weights_of_now_in_evaluation_mode(self):
        policy = make()
        before = policy.current_model()
        policy.learn_on_batch(experience(policy, 16))
        columns = {"obs": seen(7)}
        values = policy.forward(policy.current_model(), columns).value
        np.testing.assert_allclose(values, policy.compute_values(seen(7)), rtol=1e-5, atol=1e-6)
        assert not np.allclose(policy.forward(before, columns).value, values)
        assert Dropping.make_policy(SEEN, CHOICES, {"seed": 0}).current_model().dropout.deterministic

    def test_frequencies_are_the_probabilities(self):
        policy = make()
        obs = np.repeat(seen(1), 20_000, axis=0)
        actions, _, fetches = policy.compute_actions(obs)
        probabilities = jax.nn.softmax(fetches["action_dist_inputs"][0])
        # Five standard deviations of a frequency.
        np.testing.assert_allclose(np.bincount(actions - 2) / 20_000, probabilities, atol=5 * 0.5 / np.sqrt(20_000))

    def test_free_log_std_requires_a_box(self):
        box = spaces.Box(-1, 1, (2, 2), np.float32)
        policy = make(action_space=box, model={"free_log_std": True})
        np.testing.assert_array_equal(policy.get_weights()["log_std"], np.zeros(4))
        for space in (CHOICES, spaces.Dict({"a": box})):
            with pytest.raises(ConfigError, match=r"free_log_std(.|\n)*got:(.|\n)*a Box action space"):
                make(action_space=space, model={"free_log_std": True})


class MasksItself(nnx.Module):
    """A model whose second action is never chosen."""

    def __init__(self, observation_space, num_outputs, *, rngs):
        self.bias = nnx.Param(jnp.zeros(num_outputs))

    def __call__(self, obs):
        logits = jnp.zeros((len(jax.tree.leaves(obs)[0]), len(self.bias[...]))) + self.bias[...]
        return Outputs(logits.at[:, 1].set(-jnp.inf), logits.mean(axis=-1))


def test_a_model_that_masks_with_minus_infinity():
    policy = make(model={"custom_model": MasksItself})
    outputs, _ = policy.model_outputs(seen(3))
    np.testing.assert_array_equal(np.isneginf(outputs), [[False, True, *[False] * (outputs.shape[1] - 2)]] * 3)
    policy.set_weights({"bias": np.full(outputs.shape[1], np.nan, np.float32)})
    with pytest.raises(NonFiniteError):
        policy.model_outputs(seen(3))


@pytest.mark.long
@pytest.mark.usefixtures("cleared_cache")
def test_log_probabilities_of_given_actions_compile_for_few_sizes():
    policy = make()
    whole = policy.compute_actions(seen(9))
    expected = policy.fetches_of(whole[0], whole[2])["action_logp"]
    before = policy.compilations()
    for rows in range(1, 10):
        fetches = {name: column[:rows] for name, column in whole[2].items()}
        got = policy.fetches_of(whole[0][:rows], fetches)["action_logp"]
        np.testing.assert_allclose(got, expected[:rows], rtol=1e-6)
    assert policy.compilations() - before <= 4  # 1, 2, 4, 8; 16 was there


def test_a_batch_without_rows_is_refused():
    policy = make()
    empty = experience(policy, 4)[:0]
    for call in (policy.learn_on_batch, policy.compute_gradients):
        with pytest.raises(BatchError, match=r"has no rows(.|\n)*PPO"):
            call(empty)


class TestLearning:
    def reference(self, policy, batch, plan):
        """The same update as a loop of Optax steps over rows without padding."""
        columns, coefficients = policy.algorithm.loss_columns(batch, policy.learning_rng), policy.coefficients()
        params, lr = dict(policy.params), coefficients["lr"]
        optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(lr))
        state, stats = optimizer.init(params), []

        @jax.jit
        def loss_and_gradient(params, rows):
            def loss(params):
                model = policy.split.merge(params, policy.extra, learning=True)
                out, mask = policy.forward(model, rows), jnp.ones(len(rows["actions"]))
                return policy.algorithm.loss(model, out, rows, mask, coefficients)

            return jax.value_and_grad(loss, has_aux=True)(params)

        for chosen in plan.rows[: plan.steps]:
            rows = {name: column[chosen[chosen >= 0]] for name, column in columns.items()}
            (total, terms), gradient = loss_and_gradient(params, rows)
            stats.append({**terms, "total_loss": total})
            step, state = optimizer.update(gradient, state, params)
            params = optax.apply_updates(params, step)
        last = stats[plan.last_epoch :]
        return params, {name: np.mean([float(step[name]) for step in last]) for name in last[0]}

    def test_equals_a_loop_of_optax_steps(self):
        rows = 13  # two minibatches, of 8 and of 5
        policy = make(kl_coeff=0.3, entropy_coeff=0.01, vf_clip_param=2.0)
        batch = experience(policy, rows)
        random = np.random.Generator(np.random.SFC64())
        random.bit_generator.state = policy.learning_rng.bit_generator.state
        plan = Minibatches.draw(random, rows, 8, 2)
        expected, statistics = self.reference(policy, batch, plan)
        before = policy.get_weights()
        stats = policy.learn_on_batch(batch)
        for name, value in policy.get_weights().items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6)
            assert not np.array_equal(value, before[name])
        for name, value in statistics.items():
            np.testing.assert_allclose(stats[name], value, rtol=1e-4, atol=1e-6)

    @pytest.mark.long
    def test_gradients_include_batch_statistics_and_random_streams(self):
        # A3C: the worker's model does not change; the driver's ends up as after learning the batch itself.
        config = {"model": {"custom_model": Stateful}, "num_sgd_iter": 1, "sgd_minibatch_size": 16}
        policy, worker, alone = make(**config), make(**config), make(**config)
        batch, before = experience(worker, 16), worker.get_weights()
        gradients, _ = worker.compute_gradients(batch)
        np.testing.assert_equal(worker.get_weights(), before)
        policy.apply_gradients(gradients)
        alone.learn_on_batch(batch)
        for name in policy.extra:
            np.testing.assert_allclose(policy.extra[name], alone.extra[name], rtol=1e-5, err_msg=name)
        changed = {name for name, value in policy.get_weights().items() if not np.array_equal(value, before[name])}
        assert {"norm.mean", "norm.var", "dropout.rngs.count"} <= changed


class TestState:
    def test_state_does_not_replace_hyperparameters(self):
        old = make(kl_coeff=0.2, kl_target=1e-9)
        old.learn_on_batch(experience(old, 16))
        assert old.numbers["kl_coeff"] == pytest.approx(0.3)
        new = make(grad_clip=None, lr=0.5, kl_coeff=0.4)
        new.set_state(old.get_state())
        assert new.coefficients()["lr"] == 0.5
        assert new.numbers["kl_coeff"] == pytest.approx(0.3)  # adapted so far
        without = make(kl_coeff=0.0)
        new.set_state(without.get_state())
        assert new.numbers["kl_coeff"] == 0.4  # there was none to adapt
        without.set_state(old.get_state())
        new.set_state(without.get_state())
        assert new.numbers["kl_coeff"] == 0.4  # the run without a penalty came last


@pytest.mark.long
@pytest.mark.usefixtures("cleared_cache")
def test_compilations_are_few_for_all_sizes():
    policy = make(sgd_minibatch_size=16, num_sgd_iter=1)
    for rows in range(1, 41):
        policy.compute_actions(seen(rows))
        policy.compute_values(seen(rows))
    expected = 7 + 2  # acting: 1, 2, 4, ..., 64 rows; values: 32 and 64
    assert policy.compilations() == expected
    for rows in range(49, 65):
        policy.learn_on_batch(experience(policy, rows))
    expected += 2  # batches are padded to 56 or 64 rows
    assert policy.compilations() == expected
    policy.set_state(policy.get_state())
    policy.learn_on_batch(experience(policy, 51))
    policy.compute_actions(seen(3), explore=False)
    assert policy.compilations() == expected + 1
