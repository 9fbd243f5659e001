"""Environments and callers may write into actions of every space: they are writable, and nothing else reads them."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from rollax import (
    ExternalEnv,
    ExternalMultiAgentEnv,
    MultiAgentEnv,
    Policy,
    PPOConfig,
    PPOTrainer,
    RolloutWorker,
    check_env,
    load_policy,
)
from rollax.core import trees
from rollax.core.spaces import stack
from tests.env.worlds import ALL, Counting, DictEnvs, ListVector

OBS_SPACE = spaces.Box(-1, 1, (1,), np.float32)
OBS = np.zeros(1, np.float32)
STEPS = 5
NO = {ALL: False}
AGENTS = "a", "b"

SPACES: dict[str, spaces.Space] = {
    "MultiDiscrete": spaces.MultiDiscrete([5, 5]),
    "narrow MultiDiscrete": spaces.MultiDiscrete(np.array([5, 5], np.int8), dtype=np.int8),
    "MultiBinary": spaces.MultiBinary(5),
    "Box": spaces.Box(-1, 1, (2,), np.float32),
    "unbounded Box": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "Box without axes": spaces.Box(-1, 1, (), np.float32),
    "Box of integers": spaces.Box(0, 100, (2,), np.int32),
    "Dict": spaces.Dict(x=spaces.MultiDiscrete([5, 5]), y=spaces.Box(-1, 1, (2,), np.float32), z=spaces.Discrete(3)),
    "Tuple": spaces.Tuple((spaces.MultiBinary(5), spaces.Dict(x=spaces.MultiDiscrete([5, 5])), spaces.Discrete(3))),
}


def row(action: Any) -> tuple[float, ...]:
    return tuple(float(number) for leaf in trees.leaves(action) for number in np.ravel(leaf))


class Writing:
    """Records actions, then overwrites them; it keeps all, and none may share memory with another."""

    def __init__(self, action_space: spaces.Space) -> None:
        self.action_space = action_space
        self.got: list[tuple[float, ...]] = []
        self.kept: list[np.ndarray] = []

    def write(self, action: Any) -> None:
        self.got.append(row(action))
        arrays = [leaf for leaf in trees.leaves(action) if isinstance(leaf, np.ndarray)]
        for place, array in enumerate(arrays):
            assert not any(np.shares_memory(array, other) for other in (*self.kept, *arrays[:place]))
            array[...] = 0
        self.kept += arrays


class Single(Counting):
    observation_space, length = OBS_SPACE, STEPS

    def __init__(self, log: Writing) -> None:
        self.log, self.action_space = log, log.action_space

    def step(self, action):
        self.log.write(action)
        return super().step(action)

    def obs(self):
        return OBS


class Several(MultiAgentEnv):
    observation_space, possible_agents = OBS_SPACE, AGENTS

    def __init__(self, log: Writing) -> None:
        self.log, self.action_space = log, log.action_space

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return dict.fromkeys(AGENTS, OBS), {}

    def step(self, actions):
        for action in actions.values():
            self.log.write(action)
        self.t += 1
        return dict.fromkeys(AGENTS, OBS), dict.fromkeys(AGENTS, 0.0), {ALL: self.t == STEPS}, NO, {}


class _Plays:
    """Its thread writes into the actions of episodes of STEPS steps."""

    obs: Any = OBS

    def __init__(self, log: Writing) -> None:
        super().__init__(OBS_SPACE, log.action_space)  # type: ignore[call-arg]
        self.log = log

    def run(self):
        while True:
            episode = self.start_episode()
            for _ in range(STEPS):
                self.write(self.get_action(episode, self.obs))
            self.end_episode(episode, self.obs)

    def write(self, action):
        self.log.write(action)


class External(_Plays, ExternalEnv):
    pass


class ExternalAgents(_Plays, ExternalMultiAgentEnv):
    obs = dict.fromkeys(AGENTS, OBS)

    def write(self, action):
        for one in action.values():
            self.log.write(one)


KINDS: dict[str, Callable[[Writing], Any]] = {
    "single": Single,
    "single, two policies": Single,
    "VectorEnv": lambda log: ListVector(2, lambda: Single(log)),
    "native vector": lambda log: SyncVectorEnv([lambda: Single(log)] * 2),
    "multi-agent": Several,
    "dict view": lambda log: DictEnvs([Several(log)]),
    "external": External,
    "external multi-agent": ExternalAgents,
}


class Random(Policy):
    """Returns columns of its own that it keeps: arrays that are read-only, as those of JAX, or writable in turns."""

    writable = False

    def compute_actions(self, obs_batch):  # type: ignore[override]
        self.writable = not self.writable
        columns = stack(self.action_space, [self.action_space.sample() for _ in obs_batch])
        for leaf in trees.leaves(columns):
            leaf.flags.writeable = self.writable
        return columns, [], {}


@pytest.mark.short(every=5)
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("kind", KINDS)
def test_environments_that_write_into_actions_do_not_change_what_is_learned(kind, space):
    log, threads = Writing(SPACES[space]), set(threading.enumerate())
    log.action_space.seed(0)
    config = {"rollout_fragment_length": 4 * STEPS, "normalize_actions": False, "clip_actions": False}
    if kind.startswith("single"):
        config["num_envs_per_worker"] = 2
    several = "policies" in kind
    worker = RolloutWorker(
        lambda _: KINDS[kind](log),
        dict.fromkeys("pq", Random) if several else Random,
        policy_mapping_fn=(lambda agent, episode: "pq"[episode.env_index]) if several else None,
        config=config,
    )
    batches = worker.sample().values() if several else [worker.sample()]
    learned = [row(action) for batch in batches for action in trees.rows(batch["actions"])]
    worker.stop()
    for thread in set(threading.enumerate()) - threads:
        thread.join(60)
    assert len(learned) >= 4 * STEPS
    assert not Counter(learned) - Counter(log.got)  # an external environment may have read further actions


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_check_env_sends_actions_as_sampling_does(kind):
    log = Writing(SPACES["Tuple"])
    check_env(lambda _: KINDS[kind](log))
    assert log.got


@pytest.mark.long
@pytest.mark.parametrize("space", ["MultiDiscrete", "MultiBinary", "Box", "Dict"])
def test_callers_may_write_into_the_actions_of_a_trainer_and_a_loaded_policy(space, tmp_path):
    log = Writing(SPACES[space])
    config = PPOConfig(train_batch_size=STEPS, sgd_minibatch_size=STEPS, num_sgd_iter=1)
    with PPOTrainer(lambda _: Single(log), config) as trainer:
        policy = load_policy(trainer.save(tmp_path))
        for act in (trainer, policy, trainer.get_policy()):
            log.write(act.compute_single_action(OBS))
        for act in (trainer, policy):
            rows = act.compute_actions(np.zeros((3, 1), np.float32), explore=True)[0]
            for action in trees.unstack(rows):
                log.write(action)
        raw = trainer.get_policy().compute_actions(np.zeros((3, 1), np.float32))[0]
        for action in trees.unstack(raw):
            log.write(action)
