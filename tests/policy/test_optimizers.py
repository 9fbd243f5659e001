"""Optimizers of `JaxPolicy`: those of a user, which are checked when the policy is made."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gymnasium import spaces

from examples.torch_ppo import TorchPPO
from rollax import DDPG, ES, ARSConfig, SampleBatch
from rollax.algorithms.pg import PG
from rollax.algorithms.registry import ALGORITHMS, get_trainer_class
from rollax.errors import ConfigError, PolicyError
from rollax.policy.gradient_transforms import by_part, clipped
from rollax.policy.projected_optimizer import with_projection
from rollax.policy.update_plan import rate_of
from tests.algorithms.replayed import CONTINUOUS
from tests.env.refused import raised, refused

OBS, CHOICES, BOX = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2), spaces.Box(-1, 1, (2,), np.float32)


def array(*numbers):
    return jnp.array(numbers, jnp.float32)


def made(optimizer, base=PG, actions=CHOICES):
    own = type("Own", (base,), {"make_optimizer": lambda self: optimizer})
    return own.make_policy(OBS, actions, {"model": {"fcnet_hiddens": (4,)}, "seed": 0, "lr": 0.5})


@pytest.mark.parametrize("optimizer", [None, optax.scale_by_adam, optax.EmptyState()])
def test_other_objects_are_refused(optimizer):
    refused(PolicyError, made, optimizer, says="did not return an optimizer...Own, make_optimizer")


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.adam(1e-3),
        optax.sgd(0.1),
        optax.adam(optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100)),
        optax.MultiSteps(optax.adamw(1e-3), 4),
    ],
)
def test_optimizers_with_a_learning_rate_are_refused(optimizer):
    refused(PolicyError, made, optimizer, says="reverses the sign...optax.scale_by_adam()")


def test_one_with_a_learning_rate_for_a_part_of_the_model_is_refused():
    rates = {"actor": optax.scale_by_adam(), "critics": optax.sgd(100.0)}
    refused(PolicyError, made, by_part(rates), DDPG, BOX, says="reverses the sign")


@pytest.mark.short("optimizer0", "optimizer1")
@pytest.mark.parametrize(
    "optimizer",
    [
        optax.scale_by_rms(),
        optax.chain(optax.scale_by_adam(), optax.add_decayed_weights(1e-2)),
        optax.chain(optax.scale_by_lion(), optax.scale_by_schedule(lambda count: count / 100)),  # begins at 0
        optax.MultiSteps(optax.scale_by_adam(), 2),
    ],
)
def test_others_are_accepted(optimizer):
    policy = made(optimizer)
    assert policy.learner.num_updates == 0


def test_a_step_is_the_learning_rate_times_that_of_the_optimizer():
    # optax.identity() gives gradient descent: w - 0.5 g.
    policy = made(optax.identity())
    obs = np.array([[0.1, 0.2, 0.3], [-0.3, 0.5, 0.2]], np.float32)
    batch = SampleBatch({"obs": obs, "actions": np.array([0, 1]), "advantages": np.array([1.0, -2.0], np.float32)})
    gradients, _ = policy.compute_gradients(batch)
    before = policy.get_weights()
    policy.learn_on_batch(batch)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(policy.get_weights()[name], before[name] - 0.5 * gradient, rtol=1e-5, atol=1e-7)
    assert any(np.abs(gradient).max() > 1e-3 for gradient in gradients.values())


def of_each_algorithm():
    pair = [spaces.Tuple([space] * 2) for space in (OBS, CHOICES)]
    for name in ALGORITHMS:
        policy_class = get_trainer_class(name).policy_class
        # The steps of ARS and ES are taken elsewhere; ε counts from the sixth step of PQN on: tests of PQN.
        if name not in ("ARS", "ES", "PQN"):
            kinds = {"QMIX": pair, "VDN": pair}.get(name, [OBS, CHOICES])
            continuous = name in CONTINUOUS | {"IQL"}
            in_short = name in ("PPO", "DQN", "SAC", "QMIX")
            marks = () if in_short else pytest.mark.long
            yield pytest.param(policy_class, [OBS, BOX] if continuous else kinds, id=name, marks=marks)


# The first step of Adam is g / (|g| + ε) for each gradient g, whatever its decay rates: 1/2 where g = ε.
@pytest.mark.short("DQN", "PPO", "TorchPPO")
@pytest.mark.parametrize(
    ("policy_class", "kinds"), [*of_each_algorithm(), pytest.param(TorchPPO, [OBS, CHOICES], id="TorchPPO")]
)
def test_the_epsilon_of_adam_is_a_key_of_every_algorithm(policy_class, kinds):
    policy = policy_class.make_policy(*kinds, {"adam_epsilon": 0.25, "grad_clip": None, "seed": 0})
    before, rates = policy.get_weights(), policy.learning_rates()
    floats = {name: value for name, value in before.items() if value.dtype.kind == "f"}
    policy.apply_gradients({name: np.full_like(value, 0.25) for name, value in floats.items()})
    # Matrices only: numbers may be bounded, or no parameters. Those of FlashSAC's layers move on a sphere; others are
    # batch statistics, of FlashSAC and CrossQ, or copies of TD7's encoder.
    bound = ("unit_", "_norm.", ".norms.", "fixed_encoder.", "target_encoder.")
    free = {n: v for n, v in policy.get_weights().items() if v.ndim == 2 and not any(word in n for word in bound)}
    steps = {name: before[name] - value for name, value in free.items()}
    assert steps
    waits = {"actor"} if getattr(policy.config, "policy_delay", 1) > 1 else set()
    for name, step in steps.items():
        part = name.split(".")[0]
        rate = rates[part] if isinstance(rates, dict) else rates
        np.testing.assert_allclose(step / rate, 0.0 if part in waits else 0.5, rtol=0.01)  # rounded near weights of 1


def on_circle(params):
    """Parameters of a part `a` with the norm 1; others as they are."""
    return {name: value / jnp.linalg.norm(value) if name.startswith("a.") else value for name, value in params.items()}


class TestProjected:
    """Gradient descent from (1, 0) with the gradient (0, -3/4), at the rate 1: to (1, 3/4), so (4, 3) / 5."""

    params, gradients = {"a.w": array(1, 0), "b.w": array(1, 0)}, {"a.w": array(0, -0.75), "b.w": array(0, -0.75)}

    def after(self, optimizer, lr, params=None):
        params = params or self.params
        steps, _ = optimizer.update(self.gradients, optimizer.init(params), params, lr=lr)
        return {name: value - rate_of(lr, name) * steps[name] for name, value in params.items()}

    def test_new_parameters_are_projected(self):
        found = self.after(with_projection(optax.identity(), on_circle), 1.0)
        np.testing.assert_allclose(found["a.w"], [0.8, 0.6], rtol=1e-6)
        np.testing.assert_allclose(found["b.w"], [1, 0.75], rtol=1e-6)

    def test_each_part_has_its_rate(self):
        optimizer = by_part({"a": with_projection(optax.identity(), on_circle), "b": optax.identity()})
        found = self.after(optimizer, {"a": 4 / 3 * 4 / 3, "b": 2.0})  # to (1, 4/3), which becomes (3, 4) / 5
        np.testing.assert_allclose(found["a.w"], [0.6, 0.8], rtol=1e-6)
        np.testing.assert_allclose(found["b.w"], [1, 1.5], rtol=1e-6)

    def test_small_steps_lose_no_digits(self):
        found = self.after(with_projection(optax.identity(), on_circle), 1e-5)
        np.testing.assert_allclose(np.linalg.norm(found["a.w"]), 1, rtol=3e-7)
        np.testing.assert_allclose(found["a.w"][1], 0.75e-5, rtol=1e-4)

    def test_without_a_rate_nothing_changes(self):
        for name, value in self.after(with_projection(optax.identity(), on_circle), 0.0).items():
            np.testing.assert_array_equal(value, self.params[name])

    def test_a_part_that_waits_stays(self):
        optimizer = by_part(dict.fromkeys("ab", with_projection(optax.identity(), on_circle)), {"a": 2})
        off = {**self.params, "a.w": array(3, 4)}
        np.testing.assert_array_equal(self.after(optimizer, 1.0, off)["a.w"], [3, 4])

    def test_with_clipped_gradients(self):
        # The norm 3/8 for each part: to (1, 3/8).
        optimizer = clipped(with_projection(optax.identity(), on_circle), 0.375, each_part=True)
        found = self.after(optimizer, 1.0)
        np.testing.assert_allclose(found["a.w"], np.array([1, 0.375]) / np.hypot(1, 0.375), rtol=1e-6)


def test_a_search_takes_steps_of_adam_with_its_epsilon():
    optimizer = ES.make_policy(OBS, BOX, {"adam_epsilon": 0.25, "seed": 0}).algorithm.make_optimizer()
    step, _ = optimizer.update({"w": jnp.full(2, 0.25)}, optimizer.init({"w": jnp.zeros(2)}))
    np.testing.assert_allclose(step["w"], 0.5, rtol=1e-4)
    raised(ConfigError, ARSConfig, says="adam_epsilon", adam_epsilon=0.25)
