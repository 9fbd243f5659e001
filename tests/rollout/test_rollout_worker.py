"""`RolloutWorker` without a trainer."""

import numpy as np
import pytest

from rollax import ConfigError, EnvContext, EnvError, Policy, PolicyError, RolloutWorker, TrainerConfig, VectorEnv
from rollax.rollout.messages import Update
from tests.env.refused import refused
from tests.env.worlds import ArrayVector
from tests.rollout.worlds import Encode, Line, Weighted


class TestEnvironments:
    def test_each_copy_gets_its_indices(self):
        seen: list[tuple] = []

        def creator(context: EnvContext) -> Line:
            seen.append((dict(context), context.vector_index, context.worker_index, context.num_workers))
            return Line(context)

        config = {"num_envs_per_worker": 3, "env_config": {"length": 7}}
        worker = RolloutWorker(creator, Encode, config=config, worker_index=2, num_workers=4)
        assert seen == [({"length": 7}, index, 2, 4) for index in range(3)]
        assert worker.foreach_env(lambda env: env.index) == [0, 1, 2]

    def test_functions_need_single_environments(self):
        class Arrays(ArrayVector):
            get_sub_environments = VectorEnv.get_sub_environments

        worker = RolloutWorker(lambda context: Arrays(2), Encode)
        refused(EnvError, worker.foreach_env, print, says="no single sub-environments...worker.env.env")
        assert worker.env.env.num_envs == 2  # pyright: ignore[reportAttributeAccessIssue]

    def test_a_class_without_arguments(self):
        class Plain(Line):
            def __init__(self):
                super().__init__(0)

        assert RolloutWorker(Plain, Encode).env.num_envs == 1
        with pytest.raises(ConfigError, match="The environment does not accept an env_config"):
            RolloutWorker(Plain, Encode, config={"env_config": {"length": 7}})


class TestConfig:
    def test_the_config_class_of_the_policy(self):
        class Own(TrainerConfig):
            temperature: float = 1.0

        class Tempered(Encode):
            config_class = Own

        worker = RolloutWorker(Line, {"a": Tempered}, config={"temperature": 0.5})
        assert worker.get_policy("a").config.temperature == 0.5

    def test_a_worker_with_record_false_cannot_sample(self):
        refused(ConfigError, RolloutWorker(Line, Encode, record=False).sample, says="record=False")


class TestState:
    def test_weights_of_plain_numbers(self):
        worker, other = RolloutWorker(Line, Weighted), RolloutWorker(Line, Weighted)
        weights = worker.get_weights()
        assert weights == {"default_policy": {"bias": 1.5, "scale": 2}}
        other.set_weights({"default_policy": {"bias": 2.5, "scale": 3}})
        assert other.get_weights() == {"default_policy": {"bias": 2.5, "scale": 3}}
        assert worker.get_weights() == weights
        refused(PolicyError, worker.set_weights, {"other": {}})

    def test_an_update_brings_the_filters_where_the_number_of_workers_is_not_given(self):
        config = {"observation_filter": "MeanStdFilter", "rollout_fragment_length": 10}
        driver, worker = (RolloutWorker(Line, Encode, config=config, worker_index=index) for index in (0, 1))
        for version in (1, 2):
            driver.sample()
            worker.apply_update(Update(version, 0, driver.get_weights(), driver.get_filters()))
            counts = [one.get_filters()["default_policy"]["count"] for one in (driver, worker)]
            assert counts[0] == counts[1]

    def test_the_whole_state(self):
        config = {"observation_filter": "MeanStdFilter", "num_envs_per_worker": 3, "seed": 1}
        worker = RolloutWorker(Line, Weighted, config=config)
        worker.sample()
        worker.set_timestep(77)
        state = worker.get_state()
        smaller = RolloutWorker(Line, Weighted, config={**config, "num_envs_per_worker": 2})
        smaller.set_state(state)
        assert smaller.get_policy().timestep == 77
        assert smaller.get_filters()["default_policy"]["count"] == state["filters"]["default_policy"]["count"]
        assert smaller.sample()["eps_id"].min() == state["sampling"]["next_episode_id"]
        assert state["sampling"]["episodes_begun"].tolist() == worker.sampler.episodes["begun"].tolist()


def test_arguments_of_compute_actions():
    calls: list[dict] = []

    class RecordsArguments(Policy):
        batch_columns = frozenset({"infos"})

        def compute_actions(  # type: ignore[override]
            self,
            obs_batch,
            state_batches,
            prev_action_batch,
            prev_reward_batch,
            info_batch,
            episodes,
            explore,
            timestep,
        ):
            calls.append({name: value for name, value in locals().items() if name not in ("self", "calls")})
            return np.full(len(obs_batch), 3), [], {}

    config = {"num_envs_per_worker": 2, "rollout_fragment_length": 3, "explore": False}
    worker = RolloutWorker(Line, RecordsArguments, config=config)
    worker.set_timestep(50)
    batch = worker.sample()
    first, second = calls[:2]
    assert first["prev_action_batch"].tolist() == [0, 0]
    assert first["info_batch"] == [{}, {}]
    assert len(first["state_batches"]) == 0
    assert (first["explore"], first["timestep"]) == (False, 50)
    assert [episode.env_index for episode in first["episodes"]] == [0, 1]
    assert first["episodes"][0].policy_for("agent0") == "default_policy"
    # Sub-environment 0's first episode had one step: its new one starts from zeros.
    assert [episode.env_index for episode in second["episodes"]] == [0, 1]
    assert second["prev_action_batch"].tolist() == [0, 3]
    assert second["prev_reward_batch"].tolist() == [0, batch["rewards"][batch["eps_id"] == 1][0]]
    assert second["info_batch"] == [{}, {"count": 1}]
    assert [info.get("count", 0) for info in batch["infos"]] == [0, 0, 1, 2, 0, 1]


def test_a_worker_that_could_not_be_made_has_a_repr():
    # Ray calls it if the actor's class could not be imported; an error would hide the cause.
    assert repr(RolloutWorker.__new__(RolloutWorker)) == "RolloutWorker(worker_index=None)"
