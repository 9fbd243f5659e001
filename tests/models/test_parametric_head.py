"""Parametric actions: the head over embeddings, refused spaces, and policies that act and learn with empty slots."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax import SampleBatch
from rollax.algorithms.ppo import PPO
from rollax.algorithms.registry import get_trainer_class
from rollax.errors import ShapeError, SpaceError
from rollax.models.action_embeddings import check_parametric
from rollax.models.config import ModelConfig
from rollax.models.networks import ActorCritic
from rollax.models.parametric_head import WIDTH, ParametricHead
from tests.marks import long_except

SLOTS, SIZE = 5, 3
SEEN = spaces.Box(-1, 1, (2,), np.float32)
SPACE = spaces.Dict(
    {
        "seen": SEEN,
        "avail_actions": spaces.Box(-1, 1, (SLOTS, SIZE), np.float32),
        "action_mask": spaces.MultiBinary(SLOTS),
    }
)
ACTIONS = spaces.Discrete(SLOTS)


def model_of(**config) -> ActorCritic:
    return ActorCritic(SPACE, SLOTS, ModelConfig(fcnet_hiddens=(8,), **config), rngs=nnx.Rngs(0))


def observations(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """At least one slot of each row is filled; the embeddings of the others are zeros."""
    random = np.random.default_rng(seed)
    mask = random.integers(0, 2, (rows, SLOTS)).astype(np.int8)
    mask[np.arange(rows), random.integers(0, SLOTS, rows)] = 1
    embeddings = random.uniform(-1, 1, (rows, SLOTS, SIZE)).astype(np.float32) * mask[..., None]
    seen = random.uniform(-1, 1, (rows, 2)).astype(np.float32)
    return {"seen": seen, "avail_actions": embeddings, "action_mask": mask}


def head_by_hand() -> ParametricHead:
    """Intent (2 h0, h1, 0, ...), keys tanh(e0, e1 + 1, 0, ...)."""
    head = ParametricHead(2, 2, gain=1.0, rngs=nnx.Rngs(0))
    for layer, kernel, bias in ((head.intent, [[2, 0], [0, 1]], [0, 0]), (head.key, [[1, 0], [0, 1]], [0, 1])):
        assert layer.bias is not None
        layer.kernel[...] = jnp.zeros((2, WIDTH)).at[:, :2].set(jnp.asarray(kernel, jnp.float32))
        layer.bias[...] = jnp.zeros(WIDTH).at[:2].set(jnp.asarray(bias, jnp.float32))
    return head


class TestHead:
    def test_logits_by_hand(self):
        hidden = jnp.array([[1.0, 3.0], [0.0, -1.0]])
        embeddings = jnp.array([[[0.0, 0.0], [1.0, 0.0], [-2.0, 1.0]], [[0.0, 0.0], [5.0, -1.0], [0.0, 1.0]]])
        # intents (2, 3) and (0, -1); keys (tanh e0, tanh(e1 + 1)); their products over sqrt(64) = 8
        one, two = math.tanh(1), math.tanh(2)
        expected = [[3 * one, 2 * one + 3 * one, -2 * two + 3 * two], [-one, 0, -two]]
        for call in (head_by_hand(), jax.jit(head_by_hand())):
            np.testing.assert_allclose(call(hidden, embeddings), np.array(expected) / 8, rtol=1e-5, atol=1e-7)

    def test_integer_embeddings(self):
        logits = jax.jit(head_by_hand())(np.float32([[1.0, 0.0]]), np.uint8([[[1, 0], [0, 0]]]))
        np.testing.assert_allclose(logits, [[2 * math.tanh(1) / 8, 0]], rtol=1e-5)

    def test_permuted_slots_permute_the_logits(self):
        model, obs, order = jax.jit(model_of()), observations(7), np.array([3, 1, 4, 0, 2])
        logits, values, *_ = jax.tree.map(np.asarray, model(obs))
        assert logits.shape == (7, SLOTS)
        permuted, same_values, *_ = model({**obs, "avail_actions": obs["avail_actions"][:, order]})
        np.testing.assert_allclose(permuted, logits[:, order], rtol=1e-5, atol=1e-8)
        np.testing.assert_array_equal(same_values, values)
        assert np.ptp(logits, axis=1).max() > 0

    def test_the_first_policy_is_almost_uniform_over_the_valid_slots(self):
        policy, obs = PPO.make_policy(SPACE, ACTIONS, {"seed": 0}), observations(200)
        _, _, fetches = policy.compute_actions(obs)
        probabilities = np.asarray(jax.nn.softmax(fetches["action_dist_inputs"]))
        valid = obs["action_mask"] == 1
        uniform = valid / valid.sum(1, keepdims=True)
        np.testing.assert_allclose(probabilities, uniform, atol=0.02)
        assert np.all(probabilities[~valid] == 0)

    def test_head_exists_only_with_embeddings(self):
        names = {".".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(model_of(), nnx.Param))}
        expected = {f"policy_head.{layer}.{part}" for layer in ("intent", "key") for part in ("kernel", "bias")}
        assert {name for name in names if name.startswith("policy_head")} == expected
        plain = ActorCritic(SEEN, SLOTS, ModelConfig(), rngs=nnx.Rngs(0))
        assert isinstance(plain.policy_head, nnx.Linear)
        # At deeper levels embeddings are ordinary features.
        nested = ActorCritic(spaces.Dict({"in": SPACE}), SLOTS, ModelConfig(), rngs=nnx.Rngs(0))
        assert isinstance(nested.policy_head, nnx.Linear)


ON_POLICY = ("PPO", "PG")
REPLAYED = ("BC", "MARWIL", "DQN", "Rainbow", "APEX", "DiscreteCQL", "IQL", "SAC")
SEARCHED = ("ARS", "ES")
SMALL = {"model": {"fcnet_hiddens": (8,)}, "seed": 0}


@pytest.mark.short("PPO")
@pytest.mark.parametrize("name", long_except({"PPO", "BC", "APEX"}, [*ON_POLICY, *REPLAYED, *SEARCHED]))
def test_empty_slots_are_never_chosen(name):
    policy_class, obs = get_trainer_class(name).policy_class, observations(300)
    policy = policy_class.make_policy(SPACE, spaces.Discrete(SLOTS, start=2), SMALL)
    for explore in (True, False):
        actions, _, _ = policy.compute_actions(obs, explore=explore)
        assert obs["action_mask"][np.arange(300), actions - 2].all()


def filled_with(obs: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """The same observations with random numbers in their empty slots."""
    noise = np.random.default_rng(seed).uniform(-1, 1, obs["avail_actions"].shape).astype(np.float32)
    return {**obs, "avail_actions": np.where(obs["action_mask"][..., None] == 1, obs["avail_actions"], noise)}


def transitions(rows: int = 6) -> dict[str, Any]:
    """Transitions with actions that their masks allow."""
    obs, random = observations(rows), np.random.default_rng(3)
    allowed = [random.choice(np.flatnonzero(mask)) for mask in obs["action_mask"]]
    return {
        "obs": obs,
        "actions": np.array(allowed),
        "rewards": random.normal(size=rows).astype(np.float32),
        "new_obs": observations(rows, seed=1),
        "discounts": np.array([0.9, 0.5, 0.0] * (rows // 3), np.float32),
        "weights": np.array([1.0, 0.5] * (rows // 2), np.float32),
    }


class TestEmptySlots:
    def test_their_content_does_not_matter_when_acting(self):
        obs, policy = observations(50), PPO.make_policy(SPACE, ACTIONS, {"seed": 0})
        before, after = (
            policy.compute_actions(each, explore=False)[2]["action_dist_inputs"] for each in (obs, filled_with(obs, 1))
        )
        np.testing.assert_array_equal(before, after)

    @pytest.mark.short("APEX")
    @pytest.mark.parametrize("name", long_except({"MARWIL", "APEX"}, REPLAYED))
    def test_their_content_does_not_matter_when_learning(self, name):
        batch, found = transitions(), []
        other = {**batch, "obs": filled_with(batch["obs"], 1), "new_obs": filled_with(batch["new_obs"], 2)}
        for columns in (batch, other):
            policy = get_trainer_class(name).policy_class.make_policy(SPACE, ACTIONS, {**SMALL, "train_batch_size": 6})
            found.append(policy.compute_gradients(SampleBatch(columns)))
        (gradients, stats), (others, other_stats) = found
        assert any(np.abs(gradient).max() > 0 for name, gradient in gradients.items() if "key" in name)
        for key, value in gradients.items():
            np.testing.assert_allclose(value, others[key], rtol=1e-4, atol=1e-6, err_msg=key)
        for key, value in stats.items():
            np.testing.assert_allclose(value, other_stats[key], rtol=1e-4, atol=1e-6, err_msg=key)


def by_hand(name: str) -> tuple[Any, Any, dict[str, Any]]:
    """A policy, its model without masks, and transitions with random numbers in empty slots."""
    policy: Any = get_trainer_class(name).policy_class.make_policy(SPACE, ACTIONS, {**SMALL, "train_batch_size": 12})
    batch = transitions(12)
    batch |= {"obs": filled_with(batch["obs"], 1), "new_obs": filled_with(batch["new_obs"], 2)}
    return policy, jax.jit(policy.split.merge(policy.params, policy.extra)), batch


@pytest.mark.parametrize("name", long_except({"MARWIL"}, ["BC", "MARWIL"]))
def test_imitated_actions_compete_with_filled_slots_alone(name):
    policy, model, batch = by_hand(name)
    logits, values, *_ = model(batch["obs"])
    filled = np.where(batch["obs"]["action_mask"] == 1, np.exp(logits), 0.0)
    logp = np.log(filled[np.arange(12), batch["actions"]] / filled.sum(axis=1))
    assert (logp < np.log(0.6)).any()
    assert (logp == 0).any()  # a single slot holds an action
    weights = batch["weights"]
    if name == "MARWIL":
        advantages = batch["rewards"] + batch["discounts"] * model(batch["new_obs"]).value - values
        weights = weights * np.exp(advantages / 10)  # c² = 100
    _, stats = policy.compute_gradients(SampleBatch(batch))
    np.testing.assert_allclose(stats["policy_loss"], -np.mean(weights * logp), rtol=1e-4)


def test_targets_are_values_of_filled_slots():
    # The target network equals the online one: Q(s, a) - r - d max Q(s') over the filled slots of s'.
    policy, model, batch = by_hand("APEX")
    values, following = (np.asarray(model(batch[key]).policy) for key in ("obs", "new_obs"))
    best = np.where(batch["new_obs"]["action_mask"] == 1, following, -np.inf).max(axis=1)
    assert (best < following.max(axis=1)).any()  # the best slot is empty
    errors = values[np.arange(12), batch["actions"]] - (batch["rewards"] + batch["discounts"] * best)
    _, stats = policy.compute_gradients(SampleBatch(batch))
    np.testing.assert_allclose(stats["td_error"], errors, rtol=1e-4, atol=1e-6)


class TestRefused:
    @pytest.mark.parametrize(
        ("changes", "action_space", "words"),
        [
            ({"action_mask": None}, ACTIONS, ("Embeddings of actions require an action mask", "MultiBinary(5)")),
            ({}, spaces.Discrete(4), ("5 slots", "Discrete(5)")),
            ({}, spaces.Box(-1, 1, (5,), np.float32), ("the action space is not Discrete", "Discrete(slots)")),
            ({}, spaces.MultiDiscrete([5]), ("the action space is not Discrete", "Discrete(slots)")),
            ({"avail_actions": spaces.Box(-1, 1, (5,), np.float32)}, ACTIONS, ("not a table", "(5, E)")),
            ({"avail_actions": spaces.MultiBinary((5, 3))}, ACTIONS, ("not a table", "(5, E)")),
        ],
    )
    def test_spaces_that_do_not_fit(self, changes, action_space, words):
        parts = {key: space for key, space in {**SPACE.spaces, **changes}.items() if space is not None}
        with pytest.raises(SpaceError) as refusal:
            PPO.make_policy(spaces.Dict(parts), action_space, {"seed": 0})
        assert all(word in str(refusal.value) for word in words), refusal.value

    def test_other_spaces_pass(self):
        check_parametric(SPACE, ACTIONS)
        check_parametric(SEEN, spaces.Box(-1, 1, (5,), np.float32))

    def test_a_mask_of_another_number_of_slots(self):
        space = spaces.Dict({**SPACE.spaces, "action_mask": spaces.MultiBinary(3)})
        policy = PPO.make_policy(space, ACTIONS, {"seed": 0})
        columns = {
            "seen": np.zeros((1, 2)),
            "avail_actions": np.zeros((1, SLOTS, SIZE)),
            "action_mask": np.ones((1, 3)),
        }
        with pytest.raises(ShapeError, match=r"mask has the wrong width(.|\n)*\(1, 3\)(.|\n)*\(1, 5\)"):
            policy.compute_actions(columns)
