"""What every algorithm does, for each kind of environment and model that docs/algorithms.md says it supports.

Masked and parametric environments raise an error for an invalid action, also in greedy evaluations.
"""

from typing import Any

import numpy as np
import pytest

from rollax import Trainer
from rollax.algorithms.registry import ALGORITHMS, get_trainer_class
from rollax.core.runtime import trace_count
from rollax.errors import ConfigError, PolicyError, SpaceError
from rollax.rollout.compiled_sampler import CompiledSampler
from tests.algorithms.checkpoints import continue_training, to_plain
from tests.algorithms.contract import cases
from tests.algorithms.contract.cases import KINDS, VARIANTS, cells, has_replay, in_short, kind_of, make, one_of_each
from tests.algorithms.replayed import DATA_ALGORITHMS, GROUP_ALGORITHMS, SEARCH_ALGORITHMS

RUNS = {
    ("A3C", "discrete"),
    ("ES", "discrete"),
    ("IMPALA", "masked"),
    ("DQN", "masked"),
    ("APEX", "masked"),
    ("QMIX", "masked"),
    ("A2C", "continuous"),
    ("SAC", "continuous"),
    ("TD3", "multi-agent"),
    ("A3C", "recurrent"),
    ("PPO", "centralized critic"),
    ("A2C", "parametric, recurrent"),
    ("APPO", "nested actions"),
    ("DDPG", "pictures"),
    ("PPO", "compiled"),
}
"""Each kind, and one algorithm of each optimizer, in the short part of the tests."""


def learned_observations(trainer: Trainer) -> dict[str, list[np.ndarray]]:
    """Policy id -> the columns of observations that it will learn from."""
    learned: dict[str, list[np.ndarray]] = {}

    def spy(policy: Any, policy_id: str) -> None:
        select, learned[policy_id] = policy.algorithm.loss_columns, []

        def loss_columns(batch: Any, rng: Any) -> dict[str, Any]:
            learned[policy_id].append(np.array(batch["obs"]))
            return select(batch, rng)

        vars(policy.algorithm)["loss_columns"] = loss_columns

    trainer.workers.local.foreach_policy(spy)
    return learned


def moved(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return any(not np.array_equal(value, after[name]) for name, value in before.items())


OTHERS = [variant for variant in VARIANTS if variant not in ALGORITHMS]
CELLS = [*cells(KINDS), *cells(("masked", "recurrent"), OTHERS)]


@pytest.mark.parametrize(("variant", "kind"), in_short(RUNS, CELLS))
def test_it_learns_and_reports_the_same_statistics_in_every_iteration(variant, kind, tmp_path):
    name, options = VARIANTS[variant]
    late = {"learning_starts": 60} if has_replay(name) else {}  # in the second iteration
    with make(name, kind, tmp_path / "data", **late, **options) as trainer:
        learned = learned_observations(trainer) if kind == "multi-agent" else {}
        before, statistics = trainer.get_weights(), trainer.optimizer.stats
        assert all(statistics.values())
        assert {value for found in statistics.values() for value in found.values()} == {None}
        statistics = {policy_id: dict(found) for policy_id, found in statistics.items()}
        results = [trainer.train()["info"]["learner"] for _ in range(3)]
        if late and name not in DATA_ALGORITHMS:
            assert results[0] == statistics
        for result in results:
            assert {policy_id: set(found) for policy_id, found in result.items()} == {
                policy_id: set(found) for policy_id, found in statistics.items()
            }
        for policy_id, found in results[-1].items():
            known = [value for value in found.values() if value is not None]  # the actor's may be of every other update
            assert known, policy_id
            assert np.isfinite(known).all(), (policy_id, found)
            after = trainer.get_weights()[policy_id]
            assert moved(before[policy_id], after)
            assert all(np.isfinite(value).all() for value in after.values())
        if kind == "multi-agent" and name not in GROUP_ALGORITHMS:
            for side, policy_id in enumerate(("left", "right")):
                assert {float(row) for obs in learned[policy_id] for row in obs[:, 0]} == {float(side)}
        if kind == "compiled":
            assert type(trainer.workers.local.sampler) is CompiledSampler
        assert trainer.evaluate(1)["episodes"] == 1


REFUSED = [
    (n, k)
    for k in (*cases.COLUMNS, "nested actions")
    for n in ALGORITHMS
    if n not in cases.supported(k) | GROUP_ALGORITHMS
]


@pytest.mark.parametrize(("name", "kind"), REFUSED)
def test_what_is_not_supported_is_refused(name, kind, tmp_path):
    with pytest.raises((ConfigError, SpaceError, PolicyError)):
        make(name, kind, tmp_path)


def with_state(name: str, kind: str) -> dict[str, Any]:
    """Settings with as much state as the algorithm can have."""
    if name in SEARCH_ALGORITHMS:
        return {"observation_filter": "MeanStdFilter"}
    config: dict[str, Any] = {"lr_schedule": [[0, 1e-3], [200, 1e-4]], "num_envs_per_worker": 2}
    if name in ("IMPALA", "APPO"):
        # 64 is no multiple of a fragment's 14 steps, and recent fragments are replayed.
        config |= {"rollout_fragment_length": 7, "train_batch_size": 64, "timesteps_per_iteration": 100}
        config |= {"replay_proportion": 1.5, "replay_buffer_num_slots": 3}
    if has_replay(name):
        prioritized = kind != "recurrent" and name != "MARWIL"
        config |= {"store_buffer_in_checkpoints": True, "prioritized_replay": prioritized}
        config |= {} if name == "TD7" else {"n_step": 2}
    if kind == "continuous" and name in ("DDPG", "TD3", "TD7", "SAC", "FlashSAC", "TQC", "CrossQ"):
        config["exploration"] = "OrnsteinUhlenbeckNoise"
    return config


def states_of(trainer: Trainer) -> list[Any]:
    """The state and the coefficients of each policy, without arrays."""
    policies: Any = trainer.worker.policies.values()
    return [(to_plain(policy.get_state()), policy.coefficients()) for policy in policies]


RESTORED = [*one_of_each(("continuous", "discrete"), VARIANTS), *cells(["recurrent"], VARIANTS)]
RESTORED += [("DQN", "multi-agent"), ("PPO", "multi-agent"), ("PPO", "centralized critic")]
RESTORED_IN_SHORT = {("A2C", "continuous"), ("IMPALA", "continuous"), ("DQN", "discrete"), ("SAC", "continuous")}


@pytest.mark.short("A2C-continuous", "SAC-continuous")
@pytest.mark.parametrize(("variant", "kind"), in_short(RESTORED_IN_SHORT, RESTORED))
def test_a_restored_run_continues_exactly(variant, kind, tmp_path):
    name, options = VARIANTS[variant]
    with make(name, kind, tmp_path / "data", **{**with_state(name, kind), **options}) as trainer:
        for _ in range(2):
            trainer.train()
        path = trainer.save(tmp_path / "saved", exact=True)
        with Trainer.from_checkpoint(path, trust_code=True) as restored:
            assert states_of(trainer) == states_of(restored)
            assert continue_training(trainer, 2) == continue_training(restored, 2)
            assert states_of(trainer) == states_of(restored)  # targets too
            assert restored.evaluate(1)["episodes"] == 1


ON_ROWS = [variant for variant, (name, _) in VARIANTS.items() if name not in SEARCH_ALGORITHMS | DATA_ALGORITHMS]
COMPILED = [*one_of_each(("masked", "recurrent", "continuous"), ON_ROWS)]
COMPILED += [("QMIX", "recurrent"), ("PPO", "recurrent"), ("PPO", "centralized critic")]


@pytest.mark.long
@pytest.mark.usefixtures("cleared_cache")
@pytest.mark.parametrize(("variant", "kind"), COMPILED)
def test_it_compiles_for_few_sizes_only(variant, kind, tmp_path):
    """Fragments end where episodes do, and the number of due updates differs from step to step."""
    name, options = VARIANTS[variant]
    replayed = has_replay(name)
    sizes = {"training_intensity": 0.7, "timesteps_per_iteration": 0} if replayed else {"rollout_fragment_length": 60}
    with make(name, kind, tmp_path, **sizes, **options) as trainer:
        policy: Any = next(iter(trainer.worker.policies.values()))
        for _ in range(10):
            trainer.train()
        before = policy.compilations()
        for _ in range(10):
            trainer.train()
        # Batches of PG are of whole episodes, so that their sizes differ most.
        assert trace_count(policy.learner.steps) <= (2 if replayed else 5 if name == "PG" else 3)
        assert policy.compilations() <= before + 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "continuous") for name in ("DDPG", "TD3", "TD7", "SAC", "FlashSAC", "TQC", "CrossQ")),
        ("QMIX", "recurrent"),
        ("SAC", "recurrent"),
    ],
)
def test_one_worker_gives_the_same_numbers_as_none(name, kind, small_ray):
    config = {**cases.settings(name), **kind_of(kind, name), "num_envs_per_worker": 2}
    if kind == "continuous":
        config["exploration"] = "OrnsteinUhlenbeckNoise"
    found = []
    for workers in (0, 1):
        with get_trainer_class(name)(config={**config, "num_workers": workers}) as trainer:
            results = [trainer.train() for _ in range(2)]
            numbers = [(result["info"]["learner"], result["episode_reward_mean"]) for result in results]
            found.append((numbers, to_plain(trainer.get_weights())))
    assert found[0] == found[1]
