"""Rounds in compiled calls on two devices are those of one device; checked in a process with two devices."""

import tempfile
import warnings
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from rollax import NonFiniteError, PPOTrainer
from rollax.algorithms.ppo import PPO
from rollax.many.together import train_together
from rollax.optimizers.compiled_replay import CompiledReplayOptimizer
from rollax.optimizers.sync_replay import SyncReplayOptimizer
from tests.optimizers import test_compiled_replay as replay
from tests.optimizers import test_device_batches as samples
from tests.optimizers.compared import assert_same_weights, trainer_of, weights_of
from tests.python_process import on_cpus

DEVICES = 2
FRESH = ("PPO", "PPO, truncated", "PPO, fragments", "PPO, sde", "PPO, agents", "PPO, returns", "A2C", "PQN")
REPLAY = ("DQN", "DQN, priorities", "SAC", "FlashSAC")


def make(case: str, **keys: Any) -> Any:
    """A trainer whose rounds are compiled calls."""
    if case in REPLAY:
        return replay.maker(case)(**keys)
    trainer_class, env, own = samples.CASES[case]
    return trainer_class(env, samples.config_of(trainer_class, {**own, **keys}))


def make_on_one(case: str, **keys: Any) -> Any:
    local_devices = jax.local_devices
    jax.local_devices = lambda *args, **settings: local_devices(*args, **settings)[:1]
    try:
        trainer = make(case, **keys)
    finally:
        jax.local_devices = local_devices
    assert trainer.get_policy().learner.devices.count == 1
    return trainer


def shards(leaf: jax.Array, axis: int = 0) -> list[int]:
    """The length along an axis of the part on each device."""
    assert len({shard.device for shard in leaf.addressable_shards}) == len(leaf.addressable_shards)
    return [shard.data.shape[axis] for shard in leaf.addressable_shards]


def check_numbers_are_those_of_one_device(case: str) -> None:
    with make(case) as two, make_on_one(case) as one:
        assert two.get_policy().learner.devices.count == DEVICES
        compiled.clear()
        result, last = [[trainer.train() for _ in range(4)][-1] for trainer in (two, one)]
        assert compiled.count("jit(traced_run)") == 2  # once for each
        assert_same_weights(two, one, rtol=1e-3, atol=2e-5)
        for key in ("timesteps_total", "num_episodes_total", "agent_timesteps_total"):
            assert result.get(key) == last.get(key)
        learner, others = (found["info"]["learner"]["default_policy"] for found in (result, last))
        assert learner.keys() == others.keys()
        for name, value in learner.items():
            assert value == (None if others[name] is None else pytest.approx(others[name], rel=1e-2, abs=1e-3)), name
        check_arrays_are_divided(two)


def check_arrays_are_divided(trainer: Any) -> None:
    """Sub-environments and replayed rows are divided; each device has the variables, the first one those that act."""
    for leaf in jax.tree.leaves(trainer.worker.env.running):
        assert shards(leaf) == [trainer.worker.env.num_envs // DEVICES] * DEVICES
    policy = trainer.get_policy()
    for leaf in policy.params.values():
        assert len(leaf.devices()) == 1
    for leaf in jax.tree.leaves(policy.learner.variables.optimizer_state):
        assert leaf.is_fully_replicated
        assert len(leaf.devices()) == DEVICES
    if isinstance(trainer.optimizer, CompiledReplayOptimizer):
        stored = trainer.optimizer.rounds._stored
        for leaf in jax.tree.leaves(stored.rows):
            assert shards(leaf, axis=1) == [trainer.optimizer.rounds.places // DEVICES] * DEVICES
        for leaf in jax.tree.leaves(stored.priorities):
            assert leaf.is_fully_replicated


compiled: list[str] = []
seen: list[tuple[str, int]] = []


def note_compilation(event: str, duration: float, fun_name: str = "", **_: Any) -> None:
    if event.endswith("backend_compile_duration"):
        compiled.append(fun_name)


def note(name: str, array: jax.Array) -> None:
    def noted(sharding: Any) -> None:
        seen.append((name, sharding.shard_shape(array.shape)[0]))

    jax.debug.inspect_array_sharding(array, callback=noted)


class Noting(PPO):
    """Notes how many trajectories and rows of a minibatch a device has."""

    def traced_columns(self, steps: Any) -> Any:
        note("trajectories", steps.rewards)
        return super().traced_columns(steps)

    def loss(self, model: Any, out: Any, batch: Any, mask: Any, coefficients: Any) -> Any:
        note("rows", batch["obs"])
        return super().loss(model, out, batch, mask, coefficients)


def check_each_device_has_its_share_within_a_round() -> None:
    with trainer_of(Noting, PPOTrainer)("jax:CartPole-v1", samples.KEYS) as trainer:
        trainer.train()
        assert trainer.optimizer.rounds is not None
    assert set(seen) == {("trajectories", 4 // DEVICES), ("rows", 24 // DEVICES)}


def check_what_devices_cannot_share_learns_on_the_host() -> None:
    with make("PPO", num_envs_per_worker=5) as trainer:
        assert trainer.optimizer.rounds is None
        trainer.train()
    with make("DQN", num_envs_per_worker=5) as trainer:
        assert type(trainer.optimizer) is SyncReplayOptimizer
        trainer.train()


def check_odd_minibatches() -> None:
    odd = {"PPO": {"sgd_minibatch_size": 23, "train_batch_size": 4 * 19}, "DQN": {"train_batch_size": 15}}
    for case, keys in odd.items():
        with make(case, **keys) as two, make_on_one(case, **keys) as one:
            for trainer in (two, one):
                trainer.train()
            assert_same_weights(two, one, rtol=1e-3, atol=2e-5)
            check_arrays_are_divided(two)


def check_exact_resume(case: str) -> None:
    keys = {"store_buffer_in_checkpoints": True} if case in REPLAY else {}
    with tempfile.TemporaryDirectory() as folder:
        with make(case, **keys) as trainer:
            trainer.train()
            path = trainer.save(folder, exact=True)
            trainer.train()
        with make(case, **keys) as other, make_on_one(case, **keys) as one:
            for restored in (other, one):
                restored.restore(path)
                restored.train()
        assert_same_weights(trainer, other)
        assert_same_weights(trainer, one, rtol=1e-3, atol=2e-5)


def check_the_host_goes_on_after_rounds() -> None:
    """The third batch of four makes weights that are not finite: the host samples it again, after two rounds."""
    keys = {"lr_schedule": [[0, 1e-3], [127, 1e-3], [128, 1e38], [10**6, 1e38]], "timesteps_per_iteration": 256}
    with make("PPO, truncated", **keys) as trainer:
        assert trainer.optimizer.rounds is not None
        with pytest.raises(NonFiniteError):
            trainer.train()
        assert trainer.optimizer.steps == 128


def check_fragments_between_rounds() -> None:
    """A fragment goes through the host, from episodes that are divided among the devices, and rounds go on from it."""
    with make("PPO") as two, make_on_one("PPO") as one:
        fragments = []
        for trainer in (two, one):
            trainer.train()
            fragments.append(trainer.worker.sample())
            trainer.train()
        np.testing.assert_allclose(fragments[0]["obs"], fragments[1]["obs"], rtol=1e-3, atol=1e-5)
        assert_same_weights(two, one, rtol=1e-3, atol=2e-5)
        check_arrays_are_divided(two)


def check_runs_that_train_together() -> None:
    def weights(trainer: Any) -> dict[str, np.ndarray]:
        for _ in range(2):
            trainer.train()
        return weights_of(trainer)

    def make_one(number: int) -> Any:
        return make("PPO", seed=number, kl_coeff=0.0)

    found: Any = train_together(make_one, 2, lambda _, trainer: weights(trainer), mapped=True)
    for number in range(2):
        with make_one(number) as alone:
            assert_same_weights(found[number], weights(alone), rtol=1e-3, atol=2e-5)


CHECKS = {
    **{case: partial(check_numbers_are_those_of_one_device, case) for case in (*FRESH, *REPLAY)},
    **{f"resume, {case}": partial(check_exact_resume, case) for case in ("PPO", "DQN, priorities", "SAC")},
    "shares": check_each_device_has_its_share_within_a_round,
    "no shares": check_what_devices_cannot_share_learns_on_the_host,
    "odd": check_odd_minibatches,
    "host": check_the_host_goes_on_after_rounds,
    "fragments": check_fragments_between_rounds,
    "together": check_runs_that_train_together,
}


def check(names: list[str]) -> None:
    """Runs checks, in a process with two devices."""
    warnings.simplefilter("error")
    jax.monitoring.register_event_duration_secs_listener(note_compilation)
    assert jax.local_device_count() == DEVICES
    for name in names:
        CHECKS[name]()


@pytest.mark.long
@pytest.mark.parametrize(
    "names",
    [[*FRESH], [*REPLAY], [name for name in CHECKS if name not in (*FRESH, *REPLAY)]],
    ids=["fresh", "replay", "others"],
)
def test_rounds_on_two_devices(names):
    on_cpus(DEVICES, "-c", f"from tests.optimizers.test_several_devices import check; check({names})")
