"""What the table in docs/algorithms.md says that each algorithm supports, where no other test shows it; and refusals.

Masked and parametric environments raise an error for an invalid action, also in greedy evaluations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from examples.parametric_actions import ParametricCartPole
from rollax import MultiAgentEnv, Trainer
from rollax.algorithms.registry import ALGORITHMS, get_trainer_class
from rollax.config.groups import ReplayFields
from rollax.errors import ConfigError, PolicyError, SpaceError
from rollax.rollout.compiled_sampler import CompiledSampler
from tests.algorithms.envs import Echo, MaskedCartPole, Shown
from tests.algorithms.group_envs import Lift, TwoStep, paired
from tests.algorithms.replayed import DATA_ALGORITHMS, GROUP_ALGORITHMS, SEARCH_ALGORITHMS, SMALL, env_of
from tests.algorithms.results import assert_same_weights
from tests.test_docs import REPOSITORY, table

PAGE = REPOSITORY / "docs" / "algorithms.md"
CLAIMS = {name: cells for name, *cells in table(PAGE, "| algorithm | discrete |")}
COLUMNS = ("discrete", "masked", "parametric", "continuous", "multi-agent", "recurrent", "centralized critic")
FEWER_ACTIONS = {name for row in table(PAGE, "| algorithm | action space |") for name in row[0].split(", ")}
"""Algorithms without MultiDiscrete and nested actions."""

BOX = spaces.Box(np.array([-3, 0], np.float32), np.array([1, 10], np.float32))
NESTED = spaces.Tuple([spaces.Discrete(3), spaces.Dict({"b": BOX, "a": spaces.MultiDiscrete([3, 2])})])
MEMORY = {"use_gru": True, "lstm_cell_size": 3, "fcnet_hiddens": (4,), "max_seq_len": 4, "lstm_use_prev_action": True}
IMAGES = {"fcnet_hiddens": (8,), "conv_filters": ((4, 3, 2),), "conv_dense": 8}
ON_POLICY: dict[str, Any] = {
    "train_batch_size": 40,
    "rollout_fragment_length": 20,
    "timesteps_per_iteration": 0,
    "model": {"fcnet_hiddens": (8,)},
    "seed": 3,
}
SEARCH: dict[str, Any] = {"num_directions": 2, "num_envs_per_worker": 2, "model": {"fcnet_hiddens": (8,)}, "seed": 3}


class Sides(MultiAgentEnv):
    """Two agents; the observation is [0 for `left` or 1 for `right`, steps / 5]."""

    possible_agents = ("left", "right")

    def __init__(self, context):
        self.observation_space, self.action_space = spaces.Box(0, 1, (2,), np.float32), context["space"]

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self._obs(), {}

    def step(self, actions):
        self.steps += 1
        over = {"__all__": self.steps == 5}
        return self._obs(), {"left": 1.0, "right": 10.0}, over, {"__all__": False}, {}

    def _obs(self):
        return {agent: np.array([side, self.steps / 5], np.float32) for side, agent in enumerate(self.possible_agents)}


class Pictures(Shown):
    """`Shown` with an image inside of a Dict, and actions of any kind."""

    def __init__(self, context):
        super().__init__({"image": True})
        self.pictures, self.action_space = self.observation_space, context["space"]
        parts = {"picture": self.pictures, "number": spaces.Discrete(3), "noise": spaces.Box(-1, 1, (2,), np.float32)}
        self.nested = spaces.Dict(parts)
        self.observation_space = self.nested

    def step(self, action):
        assert self.action_space.contains(action), action
        return super().step(0)

    def _next(self):
        self.observation_space = self.pictures
        picture, self.observation_space = super()._next(), self.nested
        noise = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"picture": picture, "number": np.int64(self.np_random.integers(3)), "noise": noise}


def space_for(name: str) -> spaces.Space:
    """Actions that the algorithm takes."""
    return spaces.Discrete(4, start=-1) if CLAIMS[name][0] == "yes" else BOX


def has_replay(name: str) -> bool:
    """Whether the algorithm has a replay buffer."""
    return issubclass(get_trainer_class(name).config_class, ReplayFields)


def settings(name: str) -> dict[str, Any]:
    """A small config."""
    config = dict(SMALL if has_replay(name) else ON_POLICY)
    if name == "A3C":
        del config["train_batch_size"]
    if name == "PPO":
        config |= {"sgd_minibatch_size": 20, "num_sgd_iter": 1}
    return dict(SEARCH) if name in SEARCH_ALGORITHMS else config


def echo(space: spaces.Space) -> dict[str, Any]:
    return {"env": Echo, "env_config": {"space": space}}


def kind_of(kind: str, name: str) -> dict[str, Any]:
    """The config keys that set an environment and a model of this kind."""
    memory = {"model": MEMORY} if kind == "recurrent" else {}
    if name in GROUP_ALGORITHMS:
        game = Lift if kind in ("masked", "recurrent") else TwoStep
        return {"env": lambda context: paired(game(context)), **memory}
    policies = {"policies": {"left": None, "right": None}, "policy_mapping_fn": lambda agent: agent}
    sides = {"env": Sides, "env_config": {"space": space_for(name)}, "multiagent": policies}
    return {
        "discrete": echo(spaces.Discrete(4, start=-1)),
        "masked": {"env": MaskedCartPole},
        "parametric": {"env": ParametricCartPole},
        "continuous": echo(BOX),
        "multi-agent": {**sides, "observation_filter": "NoFilter"},
        "recurrent": {**echo(space_for(name)), **memory},
        "centralized critic": {**sides, "centralized_critic": True},
        "nested actions": echo(NESTED),
        "pictures": {"env": Pictures, "env_config": {"space": space_for(name)}, "model": IMAGES},
        "compiled": {"env": f"jax:{env_of(get_trainer_class(name))}", "batch_mode": "truncate_episodes"},
        "exact": echo(space_for(name)),
    }[kind]


def make(name: str, kind: str, folder: Path, **changes: Any) -> Trainer:
    """A trainer; that of BC learns from episodes of another one's first policy, which it writes into the folder."""
    config = {**settings(name), **kind_of(kind, name), **changes}
    if name in DATA_ALGORITHMS:
        config = {"train_batch_size": 8, "seed": 3, "model": {"fcnet_hiddens": (8,)}, **kind_of(kind, name)}
        if not folder.exists():
            with get_trainer_class("PG")(config=config) as played:
                played.record(3, folder)
        config |= {"input": folder, "updates_per_step": 4, "timesteps_per_iteration": 0}
    return get_trainer_class(name)(config=config)


# Where another test shows it: those of losses by hand that exclude invalid actions, and runs of small tasks.
ACTOR_CRITICS = {"A2C", "A3C", "IMPALA", "APPO"}  # test_actor_critics.py
LOGGED = {"DQN", "Rainbow", "APEX", "SAC", "TD3", "DDPG", "APEX_DDPG", "MARWIL", "IQL", "CQL", "DiscreteCQL", "TD3BC"}
ELSEWHERE = {
    "discrete": ACTOR_CRITICS | LOGGED | {"PPO", "PG", "BC", "ARS", "ES", *GROUP_ALGORITHMS},  # test_off_policy.py, ...
    "masked": ACTOR_CRITICS | {"PPO", "DQN", "APEX", "SAC", "QMIX"},
    "parametric": ACTOR_CRITICS | {"PPO", "SAC"},
    "continuous": ACTOR_CRITICS | {"PPO", "TD3", "DDPG", "APEX_DDPG", "CQL", "TD3BC", "SAC", "ARS", "ES"},
    "multi-agent": GROUP_ALGORITHMS,
    "recurrent": ACTOR_CRITICS | {"PPO", "MARWIL", "BC", "QMIX"},
    "centralized critic": {"PPO", "A2C", "A3C"},  # test_centralized_critic.py
    "nested actions": ACTOR_CRITICS | {"PPO"},
    "pictures": {"DDPG", "TD3", "SAC", "PPO", *GROUP_ALGORITHMS},
    "compiled": SEARCH_ALGORITHMS | DATA_ALGORITHMS | GROUP_ALGORITHMS,
    "exact": {
        "PPO",
        "PG",
        "A3C",
        "IMPALA",
        "APPO",
        "DQN",
        "APEX",
        "SAC",
        "TD3",
        "DDPG",
        "ARS",
        "ES",
        *GROUP_ALGORITHMS,
    },
}


def supported(kind: str) -> set[str]:
    """The algorithms that support this kind."""
    if kind in COLUMNS:
        return {name for name, cells in CLAIMS.items() if cells[COLUMNS.index(kind)] != "–"}
    return set(ALGORITHMS) - (FEWER_ACTIONS if kind == "nested actions" else set())


CELLS = [(name, kind) for kind in ELSEWHERE for name in ALGORITHMS if name in supported(kind) - ELSEWHERE[kind]]
REFUSED = [(n, k) for k in (*COLUMNS, "nested actions") for n in ALGORITHMS if n not in supported(k) | GROUP_ALGORITHMS]


def learned_observations(trainer: Trainer) -> dict[str, list[np.ndarray]]:
    """Policy id -> the columns of observations that it will learn from."""
    learned: dict[str, list[np.ndarray]] = {}

    def spy(policy: Any, policy_id: str) -> None:
        select, learned[policy_id] = policy.algorithm.drawn, []

        def drawn(batch: Any, rng: Any) -> dict[str, Any]:
            learned[policy_id].append(np.array(batch["obs"]))
            return select(batch, rng)

        vars(policy.algorithm)["drawn"] = drawn

    trainer.workers.local.foreach_policy(spy)
    return learned


@pytest.mark.long
@pytest.mark.parametrize(("name", "kind"), CELLS)
def test_what_is_supported_runs(name, kind, tmp_path):
    exact = {"store_buffer_in_checkpoints": True} if kind == "exact" and has_replay(name) else {}
    with make(name, kind, tmp_path / "data", **exact) as trainer:
        learned = learned_observations(trainer) if kind == "multi-agent" else {}
        for _ in range(2):
            result = trainer.train()
        for policy_id, stats in result["info"]["learner"].items():
            found = [value for value in stats.values() if value is not None]  # the actor's may be of every other update
            assert found, policy_id
            assert np.isfinite(found).all(), (policy_id, stats)
        if kind == "multi-agent":
            for side, policy_id in enumerate(("left", "right")):
                assert {float(row) for obs in learned[policy_id] for row in obs[:, 0]} == {float(side)}
        if kind == "compiled":
            assert type(trainer.workers.local.sampler) is CompiledSampler
        if kind == "exact":
            with Trainer.from_checkpoint(trainer.save(tmp_path / "saved", exact=True), trust_code=True) as restored:
                for _ in range(2):
                    assert restored.train()["info"]["learner"] == trainer.train()["info"]["learner"]
                assert_same_weights(trainer, restored)
        assert trainer.evaluate(1)["episodes"] == 1


@pytest.mark.parametrize(("name", "kind"), REFUSED)
def test_what_is_not_supported_is_refused(name, kind, tmp_path):
    with pytest.raises((ConfigError, SpaceError, PolicyError)):
        make(name, kind, tmp_path)
