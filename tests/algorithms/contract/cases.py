"""What the table in docs/algorithms.md says that each algorithm supports, and small trainers for each of its cells."""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from examples.parametric_actions import ParametricCartPole
from rollax import MultiAgentEnv, Trainer
from rollax.algorithms.registry import ALGORITHMS, get_trainer_class
from rollax.config.groups import MinibatchFields
from rollax.config.replay_groups import ReplayFields
from rollax.core.trees import leaves
from tests.algorithms.envs import Echo, MaskedCartPole, Shown
from tests.algorithms.group_envs import Lift, TwoStep, paired
from tests.algorithms.replayed import DATA_ALGORITHMS, GROUP_ALGORITHMS, SEARCH_ALGORITHMS, SMALL, env_of
from tests.test_docs import REPOSITORY, table

PAGE = REPOSITORY / "docs" / "algorithms.md"
CLAIMS = {name: cells for name, *cells in table(PAGE, "| algorithm | discrete |")}
COLUMNS = ("discrete", "masked", "parametric", "continuous", "multi-agent", "recurrent", "centralized critic")
FEWER_ACTIONS = {name for row in table(PAGE, "| algorithm | action space |") for name in row[0].split(", ")}
"""Algorithms without MultiDiscrete and nested actions."""
KINDS = (*COLUMNS, "parametric, recurrent", "nested actions", "pictures", "compiled")

BOX = spaces.Box(np.array([-3, 0], np.float32), np.array([1, 10], np.float32))
NESTED = spaces.Tuple([spaces.Discrete(3), spaces.Dict({"b": BOX, "a": spaces.MultiDiscrete([3, 2])})])
MEMORY = {"use_gru": True, "lstm_cell_size": 3, "fcnet_hiddens": (4,), "max_seq_len": 4}
MEMORY |= {"lstm_use_prev_action": True, "lstm_use_prev_reward": True}
IMAGES = {"fcnet_hiddens": (8,), "conv_filters": ((4, 3, 2),), "conv_dense": 8}
ON_POLICY: dict[str, Any] = {"train_batch_size": 40, "rollout_fragment_length": 20, "timesteps_per_iteration": 0}
ON_POLICY |= {"model": {"fcnet_hiddens": (8,)}, "seed": 3}
SEARCH: dict[str, Any] = {"num_directions": 2, "num_envs_per_worker": 2, "model": {"fcnet_hiddens": (8,)}, "seed": 3}
RANDOM_CRITICS = {"num_critics": 3, "target_critics": 2, "actor_q": "mean"}
DROPPING = {"fcnet_hiddens": (8,), "normalization": "layer", "dropout": 0.1}
BLOCKS = {"fcnet_hiddens": (4, 4), "residual_blocks": True, "normalization": "layer"}
PLAIN = {"residual_blocks": False, "actor_hiddens": (8, 4)}
PLAIN |= {"model": {"fcnet_hiddens": (8, 4), "normalize_observations": True}}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ALGORITHMS},
    "APPO without V-trace": ("APPO", {"vtrace": False, "use_kl_loss": True}),
    "SAC of random critics with dropout": ("SAC", {**RANDOM_CRITICS, "critic_model": DROPPING, "policy_delay": 2}),
    "SAC of residual blocks": ("SAC", {"critic_model": BLOCKS}),
    "FlashSAC of plain layers and normalized observations": ("FlashSAC", PLAIN),
    "QMIX of independent members": ("QMIX", {"mixer": None}),
}
"""Algorithms, and those with settings that change their update as a whole."""


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
        return super().step(int(np.ravel(next(iter(leaves(action))))[0]) % 4)

    def _next(self):
        self.observation_space = self.pictures
        picture, self.observation_space = super()._next(), self.nested
        noise = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"picture": picture, "number": np.int64(self.np_random.integers(3)), "noise": noise}


def supported(kind: str) -> set[str]:
    """The algorithms that support this kind."""
    if kind in COLUMNS:
        return {name for name, cells in CLAIMS.items() if cells[COLUMNS.index(kind)] != "–"}
    if kind == "parametric, recurrent":
        return supported("parametric") & supported("recurrent")
    if kind == "nested actions":
        return set(ALGORITHMS) - FEWER_ACTIONS - GROUP_ALGORITHMS
    if kind == "compiled":
        return set(ALGORITHMS) - DATA_ALGORITHMS - GROUP_ALGORITHMS - SEARCH_ALGORITHMS
    return set(ALGORITHMS) - GROUP_ALGORITHMS


def cells(kinds: Iterable[str], variants: Iterable[str] = ALGORITHMS) -> list[tuple[str, str]]:
    """Each variant with each kind that it supports."""
    return [(variant, kind) for kind in kinds for variant in variants if VARIANTS[variant][0] in supported(kind)]


def one_of_each(kinds: Sequence[str], variants: Iterable[str]) -> list[tuple[str, str]]:
    """Each variant with the first kind that it supports."""
    return [next(iter(cells(kinds, [variant]))) for variant in variants]


def in_short(short: Collection[tuple[str, str]], found: Iterable[tuple[str, str]]) -> list[Any]:
    """A parameter for each cell; those that are not in `short` are marked `long`."""
    found = list(found)
    unknown = set(short) - set(found)
    assert not unknown, f"no such cells: {unknown}"
    return [pytest.param(*cell, marks=() if cell in short else pytest.mark.long) for cell in found]


def space_for(name: str) -> spaces.Space:
    """Actions that the algorithm takes."""
    return spaces.Discrete(4, start=-1) if name in supported("discrete") else BOX


def has_replay(name: str) -> bool:
    """Whether the algorithm has a replay buffer."""
    return issubclass(get_trainer_class(name).config_class, ReplayFields)


def settings(name: str) -> dict[str, Any]:
    """A small config."""
    config = dict(SMALL if has_replay(name) else ON_POLICY)
    if name == "A3C":
        del config["train_batch_size"]
    if issubclass(get_trainer_class(name).config_class, MinibatchFields):
        config |= {"sgd_minibatch_size": 20, "num_sgd_iter": 1}
    if name == "CrossQ":  # its critics have layers of their own
        config["critic_model"] = {"fcnet_hiddens": (8,), "normalization": "batch"}
    return dict(SEARCH) if name in SEARCH_ALGORITHMS else config


def policy_of(agent_id: str) -> str:
    return agent_id


def lifting(context: Any) -> MultiAgentEnv:
    return paired(Lift(context))


def two_step(context: Any) -> MultiAgentEnv:
    return paired(TwoStep(context))


def echo(space: spaces.Space) -> dict[str, Any]:
    return {"env": Echo, "env_config": {"space": space}}


def kind_of(kind: str, name: str) -> dict[str, Any]:
    """The config keys that set an environment and a model of this kind."""
    memory = {"model": MEMORY} if "recurrent" in kind else {}
    if name in GROUP_ALGORITHMS:
        return {"env": lifting if kind in ("masked", "recurrent") else two_step, **memory}
    policies = {"policies": {"left": None, "right": None}, "policy_mapping_fn": policy_of}
    sides = {"env": Sides, "env_config": {"space": space_for(name)}, "multiagent": policies}
    return {
        "discrete": echo(spaces.Discrete(4, start=-1)),
        "masked": {"env": MaskedCartPole},
        "parametric": {"env": ParametricCartPole},
        "continuous": echo(BOX),
        "multi-agent": {**sides, "observation_filter": "NoFilter"},
        "recurrent": {**echo(space_for(name)), **memory},
        "centralized critic": {**sides, "centralized_critic": True},
        "parametric, recurrent": {"env": ParametricCartPole, **memory},
        "nested actions": echo(NESTED),
        "pictures": {"env": Pictures, "env_config": {"space": space_for(name)}, "model": IMAGES},
        "compiled": {"env": f"jax:{env_of(get_trainer_class(name))}", "batch_mode": "truncate_episodes"},
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
