"""Batches that do not fit the policy: each error names the column, what it has, and what the policy's spaces have."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from examples.torch_dqn import TorchDQN
from examples.torch_ppo import TorchPPO
from rollax import BatchError, PolicyError, SampleBatch
from rollax.algorithms.dqn import DQN
from rollax.algorithms.ppo import PPO
from rollax.algorithms.sac import SAC
from rollax.batch.columns import MissingColumnError
from rollax.offline.marwil import BC
from tests.env.refused import refused

SEEN, CHOICES, FORCES = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)
ROWS = 4
SMALL = {"model": {"fcnet_hiddens": (4,)}, "train_batch_size": ROWS}
PPO_CONFIG = {**SMALL, "sgd_minibatch_size": ROWS, "num_sgd_iter": 1}


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((ROWS, *shape)).astype(np.float32)


def sampled(policy: Any) -> dict[str, Any]:
    """What a PPO policy learns from."""
    actions, _, fetches = policy.compute_actions(numbers(3))
    columns = {"obs": numbers(3), "actions": actions, "advantages": numbers(), "value_targets": numbers()}
    return {**columns, **fetches}


def replayed(policy: Any) -> dict[str, Any]:
    """What a DQN or SAC policy learns from."""
    columns = {"obs": numbers(3), "actions": policy.compute_actions(numbers(3))[0], "new_obs": numbers(3)}
    return {**columns, "rewards": numbers(), "discounts": numbers(), "weights": np.ones(ROWS, np.float32)}


MADE: dict[str, tuple[Any, ...]] = {
    "PPO": (PPO, CHOICES, PPO_CONFIG, sampled),
    "DQN": (DQN, CHOICES, SMALL, replayed),
    "SAC": (SAC, FORCES, SMALL, replayed),
    "PPO in PyTorch": (TorchPPO, CHOICES, PPO_CONFIG, sampled),
    "DQN in PyTorch": (TorchDQN, CHOICES, SMALL, replayed),
}
METHODS = ["learn_on_batch", "compute_gradients", "td_errors"]


@pytest.fixture(params=MADE, scope="module")
def case(request) -> tuple[Any, dict[str, Any]]:
    policy_class, action_space, config, columns = MADE[request.param]
    policy = policy_class.make_policy(SEEN, action_space, config)
    return policy, columns(policy)


def error_of(case: tuple[Any, dict[str, Any]], method: str, column: str, value: Any) -> str:
    policy, columns = case
    before = policy.get_weights()
    with pytest.raises(BatchError, match=rf"{policy.made_by.__name__}, column '{column}'") as error:
        getattr(policy, method)(SampleBatch({**columns, column: value}))
    np.testing.assert_equal(policy.get_weights(), before)
    return str(error.value)


@pytest.mark.parametrize("method", METHODS)
class TestWrong:
    def test_padding_without_a_memory(self, case, method):
        policy, columns = case
        padded = SampleBatch({**columns, "eps_id": np.zeros(ROWS, np.int64)}).sequences(3)
        with pytest.raises(BatchError, match="padded for a model with memory") as error:
            getattr(policy, method)(padded)
        assert "2 sequences of 3 rows, 4 of them real" in str(error.value)

    @pytest.mark.parametrize(
        ("value", "got"),
        [
            (numbers(5), r"float32[4, 5]"),
            (numbers(), r"float32[4]"),
            (np.full((ROWS, 3), "1"), r"<U1[4, 3]"),
            (np.full((ROWS, 3), None), r"object[4, 3]"),
            (numbers(3) * 1j, "complex64[4, 3]"),
            ({"position": numbers(3)}, "a dict with the keys ['position']"),
        ],
    )
    def test_observations(self, case, method, value, got):
        for column in {"obs", "new_obs"} & case[1].keys():
            text = error_of(case, method, column, value)
            assert "do not fit the policy's observation space" in text
            assert got in text
            assert "expected: numbers [4, 3], of Box" in text

    # Postprocessing of its own may change actions.
    @pytest.mark.parametrize("case", [name for name in MADE if name != "PPO in PyTorch"], indirect=True)
    def test_actions(self, case, method):
        policy, columns = case
        text = error_of(case, method, "actions", columns["actions"][..., None])
        space = "Box" if policy.action_space is FORCES else "Discrete(3)"
        assert f"{list(columns['actions'].shape)}, of {space}" in text
        assert "fix:      pass one row for each step, in the shapes of the action space" in text
        if policy.action_space is CHOICES:
            text = error_of(case, method, "actions", columns["actions"] + 0.5)
            assert "expected: whole numbers [4], of Discrete(3)" in text
            assert "fix:      convert the column: batch['actions'].astype(np.int64)" in text

    def test_missing_columns(self, case, method):
        policy, columns = case
        read = policy.algorithm.loss_columns(SampleBatch(columns), policy.learning_rng).keys() & columns.keys()
        assert len(read) > 4
        for name in read:
            left = {other: column for other, column in columns.items() if other != name}
            message = rf"lacks a column(.|\n)*, column '{name}'(.|\n)*fix: +pass a batch that postprocess returned"
            with pytest.raises(MissingColumnError, match=message) as error:
                getattr(policy, method)(SampleBatch(left))
            assert f"got:      columns {list(left)}" in str(error.value)


@pytest.mark.short("PPO", "DQN", "PPO in PyTorch", "DQN in PyTorch")
def test_other_numbers_are_accepted(case):
    policy, columns = case
    columns = {**columns, "obs": np.ones((ROWS, 3), np.int64)}
    if policy.action_space is CHOICES:
        columns["actions"] = columns["actions"].astype(np.uint8)
    assert policy.learn_on_batch(SampleBatch(columns))["total_loss"] is not None


def test_parts_of_nested_spaces():
    seen = spaces.Dict({"place": SEEN, "kinds": spaces.Tuple([spaces.MultiBinary(2)])})
    policy = BC.make_policy(seen, spaces.Tuple([CHOICES, FORCES]), SMALL)
    good = {"place": numbers(3), "kinds": (np.ones((ROWS, 2), np.int8),)}
    actions = (np.zeros(ROWS, int), numbers(2))

    def batch(obs: Any, chosen: Any) -> SampleBatch:
        return SampleBatch({"obs": obs, "actions": chosen, "weights": np.ones(ROWS, np.float32)})

    narrow = batch({**good, "kinds": (np.ones((ROWS, 1), np.int8),)}, actions)
    with pytest.raises(BatchError, match=r"column 'obs', key 'kinds', element 0(.|\n)*int8\[4, 1\](.|\n)*\[4, 2\]"):
        policy.learn_on_batch(narrow)
    without = batch({"kinds": good["kinds"]}, actions)
    refused(BatchError, policy.learn_on_batch, without, says="column 'obs', key 'place'...no such part in dict")
    floats = batch(good, (np.zeros(ROWS), numbers(2)))
    refused(BatchError, policy.learn_on_batch, floats, says="column 'actions', element 0...float64...whole numbers [4]")
    assert policy.learn_on_batch(batch(good, actions))


class Own(PPO):
    """Reads a column that it does not name, and one-hot actions."""

    also = "rewards"

    def loss_columns(self, batch, rng):
        return {**super().loss_columns(batch, rng), "actions": np.eye(3, dtype=np.float32)[batch["actions"]]}

    def loss(self, model, out, batch, mask, coefficients):
        return (out.policy * batch["actions"]).sum() + jnp.sum(batch[self.also]), {}


class OneHot(PPO):
    """Changes columns for its own loss after sampling."""

    own_columns = frozenset({"new_obs", "actions"})

    def postprocess(self, fragment, values):
        batch = super().postprocess(fragment, values)
        batch["new_obs"] = np.concatenate([batch["obs"], batch["obs"]], axis=1)
        batch["actions"] = np.eye(3, dtype=np.float32)[batch["actions"]]
        return batch

    def loss_columns(self, batch, rng):
        return {**super().loss_columns(batch, rng), "new_obs": batch["new_obs"]}

    def loss(self, model, out, batch, mask, coefficients):
        return (out.policy * batch["actions"]).sum() + batch["new_obs"].mean(), {}


def test_columns_that_own_postprocessing_changes():
    policy = OneHot.make_policy(SEEN, CHOICES, PPO_CONFIG)
    columns = {**sampled(policy), "new_obs": numbers(6)}
    columns["actions"] = np.eye(3, dtype=np.float32)[columns["actions"]]
    assert policy.learn_on_batch(SampleBatch(columns))["total_loss"] is not None
    refused(BatchError, policy.learn_on_batch, SampleBatch({**columns, "obs": numbers(5)}), says="OneHot, column 'obs'")


def test_keys_of_other_dicts_are_not_columns():
    class Looks(Own):
        key = "obs"

        def loss_columns(self, batch, rng):
            return {**super().loss_columns(batch, rng), "target": numbers()}

        def loss(self, model, out, batch, mask, coefficients):
            return {}[self.key], {}

    for algorithm in (Looks, type("LooksForTarget", (Looks,), {"key": "target"})):
        policy = algorithm.make_policy(SEEN, CHOICES, PPO_CONFIG)
        with pytest.raises(KeyError, match=f"^'{algorithm.key}'") as error:
            policy.learn_on_batch(SampleBatch(sampled(policy)))
        assert not isinstance(error.value, MissingColumnError)


def test_columns_of_an_own_loss():
    policy = Own.make_policy(SEEN, CHOICES, PPO_CONFIG)
    columns = {**sampled(policy), "rewards": numbers()}
    fix = "name it: reads = (*BaseClass.reads, 'rewards')"
    refused(MissingColumnError, policy.learn_on_batch, SampleBatch(columns), says=f"does not name...'rewards'...{fix}")
    policy = type("Named", (Own,), {"also": "value_targets"}).make_policy(SEEN, CHOICES, PPO_CONFIG)
    assert policy.learn_on_batch(SampleBatch(columns))["total_loss"] is not None
    # no column: some other lookup
    policy = type("Unknown", (Own,), {"also": "unknown"}).make_policy(SEEN, CHOICES, PPO_CONFIG)
    with pytest.raises(KeyError, match="^'unknown'"):
        policy.learn_on_batch(SampleBatch(columns))


def test_targets_under_another_name():
    """The error was a KeyError with the text 'q_target'."""

    class Renamed(DQN):
        def targets(self, model, target_model, batch, mask, coefficients):
            return {"targets": batch["rewards"]}

    columns = {"obs": numbers(3), "actions": np.zeros(ROWS, int), "new_obs": numbers(3)}
    columns |= {name: numbers() for name in ("rewards", "discounts", "weights")}
    policy = Renamed.make_policy(SEEN, CHOICES, {})
    refused(PolicyError, policy.learn_on_batch, SampleBatch(columns), says="Renamed, targets...'targets'...'target'")


class WithoutMemory(DQN):
    """Its targets are for models without memory."""

    def targets(self, model, target_model, batch, mask, coefficients):
        return {"target": self.forward(target_model, {"obs": batch[self.next_column]}).policy.max(axis=-1)}


@pytest.mark.parametrize(
    ("column", "missing", "got"),
    [("obs", "state_in", "without the inputs of the memory"), ("new_obs", "new_obs", "target_rows")],
)
def test_targets_without_memory_for_a_model_with_memory(column, missing, got):
    """The error named `reads`, where neither column helps, or was a KeyError without a text."""
    algorithm = type("Own", (WithoutMemory,), {"next_column": column})
    config = {"model": {"use_gru": True, "max_seq_len": ROWS}, "train_batch_size": ROWS}
    policy = algorithm.make_policy(SEEN, CHOICES, config)
    columns = {"obs": numbers(3), "actions": np.zeros(ROWS, int), "rewards": numbers(), "discounts": numbers()}
    columns |= {"weights": numbers(), "eps_id": np.zeros(ROWS, int), "target_steps": np.zeros(ROWS, np.int32)}
    columns["state_in"] = [np.zeros((ROWS, 64), np.float32)]
    refused(
        MissingColumnError,
        policy.learn_on_batch,
        SampleBatch(columns).sequences(ROWS),
        says=f"model has memory...column '{missing}'...{got}...self.forward(model, batch)",
    )
