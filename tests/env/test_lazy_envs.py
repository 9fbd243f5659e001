"""Environments that make their simulator in the first reset: how many environments and simulators are made."""

import gymnasium as gym
import pytest

from rollax import EnvContext, PGTrainer, RolloutWorker, SpaceError, TrainerConfig
from rollax.errors import PolicyError
from tests.env.always_zero import AlwaysZero
from tests.env.refused import refused
from tests.env.worlds import ACTION_SPACE, OBS_SPACE, AsAgents, Counting

KEYS = {"train_batch_size": 60, "seed": 0}
REMOTE = {"remote_worker_envs": True, "remote_env_batch_wait_ms": 1e9}


class Lazy(Counting):
    """Makes its simulator in the first reset."""

    length = 5

    def __init__(self, context: EnvContext) -> None:
        self.context, self.simulator = context, None
        context["event_log"].note("made", context.vector_index)

    def reset(self, *, seed=None, options=None):
        if self.simulator is None:
            self.context["event_log"].note("simulator", self.context.vector_index)
            self.simulator = object()
        return super().reset(seed=seed)

    def step(self, action):
        assert self.simulator is not None
        return super().step(action)


class LazyAgents(AsAgents):
    """The same for two agents."""

    def __init__(self, context: EnvContext) -> None:
        super().__init__(Lazy(context), "a", "b")


class Spaceless(Lazy):
    """Has its spaces only after making its simulator."""

    observation_space = action_space = None  # type: ignore[assignment]

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed)
        self.observation_space, self.action_space = OBS_SPACE, ACTION_SPACE
        return result


@pytest.mark.long
@pytest.mark.parametrize(("cls", "num_envs"), [(Lazy, 3), (LazyAgents, 1)])
def test_a_trainer_makes_only_environments_that_it_steps(cls, num_envs, event_log):
    config = {**KEYS, "env_config": {"event_log": event_log}, "num_envs_per_worker": num_envs}
    with PGTrainer(env=cls, config=config) as trainer:
        assert (event_log.count("made"), event_log.count("simulator")) == (num_envs, 0)
        trainer.train()
        assert (event_log.count("made"), event_log.count("simulator")) == (num_envs, num_envs)
        trainer.evaluate(num_episodes=2)
        evaluating = event_log.count("made") - num_envs
        assert evaluating <= num_envs
        trainer.train()
        trainer.evaluate(num_episodes=2)
        assert event_log.count("made") == num_envs + evaluating
        # two episodes are played in no more than two environments
        assert event_log.count("simulator") == num_envs + min(evaluating, 2)
    assert [event_log.count("made", index) for index in range(3, 6)] == [0, 0, 0]


@pytest.mark.long
def test_remote_environments_are_made_only_in_their_processes(event_log, small_ray):
    sizes = {"num_envs_per_worker": 2, "rollout_fragment_length": 10}
    config = TrainerConfig(env_config={"event_log": event_log}, **sizes, **REMOTE)
    worker = RolloutWorker(LazyAgents, AlwaysZero, config=config)
    assert (event_log.count("made"), event_log.count("simulator")) == (2, 0)
    assert worker.sample().env_steps == 20
    assert (event_log.count("made"), event_log.count("simulator")) == (2, 2)
    worker.stop()


@pytest.mark.long
@pytest.mark.parametrize(("remote", "num_envs"), [(False, 2), (True, 1)])
def test_spaces_of_the_config_replace_unknown_ones(event_log, remote, num_envs, request):
    if remote:
        request.getfixturevalue("small_ray")
    sizes = {"num_envs_per_worker": num_envs, "rollout_fragment_length": 10}
    spaces = {"observation_space": OBS_SPACE, "action_space": ACTION_SPACE}
    config = TrainerConfig(env_config={"event_log": event_log}, **sizes, **spaces, **(REMOTE if remote else {}))
    worker = RolloutWorker(Spaceless, AlwaysZero, config=config)
    assert event_log.count("simulator") == 0
    assert worker.sample().env_steps == 10 * num_envs
    assert worker.env.observation_space == OBS_SPACE
    assert event_log.count("made") == num_envs
    worker.stop()


def test_without_spaces_it_is_refused_before_a_simulator_is_made(event_log):
    config = TrainerConfig(env_config={"event_log": event_log}, observation_space=OBS_SPACE)
    says = "This is not a Gymnasium space...Spaceless, sub-environment 0, action_space"
    refused(SpaceError, RolloutWorker, Spaceless, AlwaysZero, config=config, says=says)
    assert event_log.count("simulator") == 0


def test_spaces_of_the_config_that_contradict_the_env_are_refused(event_log):
    config = TrainerConfig(env_config={"event_log": event_log}, observation_space=gym.spaces.Box(0, 1, (2,)))
    with pytest.raises(PolicyError, match="observation_space is not the environment's"):
        RolloutWorker(Lazy, AlwaysZero, config=config)
