"""`CentralCritic`: every part of what it sees counts, row by row; and models that bring a critic of their own."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax.models.central_critic import CentralCritic, with_critic
from rollax.models.config import ModelConfig

AGENTS, ROWS = 3, 5
PART = spaces.Dict({"obs": spaces.Box(-1, 1, (2,), np.float32), "actions": spaces.Discrete(4)})
SPACE = spaces.Dict(
    {
        "agent": spaces.Discrete(AGENTS),
        "obs": spaces.Box(-1, 1, (2,), np.float32),
        "other": spaces.Dict({"presence": spaces.Discrete(3), "parts": spaces.Tuple([PART])}),
    }
)


def critic(agents: int = AGENTS) -> CentralCritic:
    space = spaces.Dict({**SPACE.spaces, "agent": spaces.Discrete(agents)})
    return CentralCritic(space, ModelConfig(fcnet_hiddens=(8,)), rngs=nnx.Rngs(0))


def seen() -> dict:
    random = np.random.default_rng(0)
    others = (ROWS, AGENTS - 1)
    part = {
        "obs": random.uniform(-1, 1, (*others, 2)).astype(np.float32),
        "actions": random.integers(0, 4, others),
    }
    return {
        "agent": random.integers(0, AGENTS, ROWS),
        "obs": random.uniform(-1, 1, (ROWS, 2)).astype(np.float32),
        "other": {"presence": random.integers(0, 3, others), "parts": (part,)},
    }


LEAVES = {
    "agent": lambda columns: columns["agent"],
    "own observation": lambda columns: columns["obs"],
    "presence": lambda columns: columns["other"]["presence"],
    "observations of others": lambda columns: columns["other"]["parts"][0]["obs"],
    "actions of others": lambda columns: columns["other"]["parts"][0]["actions"],
}


def values(columns: dict, model: CentralCritic | None = None) -> np.ndarray:
    return np.asarray((model or critic())(jax.tree.map(jnp.asarray, columns)))


@pytest.mark.parametrize("name", LEAVES)
def test_each_part_counts_in_its_own_row(name):
    columns, model = seen(), critic()
    before = values(columns, model)
    assert before.shape == (ROWS,)
    leaf = LEAVES[name](columns)
    leaf[2] = leaf[2] + 1 if leaf.dtype == np.float32 else (leaf[2] + 1) % 3
    changed = np.abs(values(columns, model) - before) > 1e-6
    assert changed.tolist() == [False, False, True, False, False]


def test_the_others_have_their_places():
    columns = seen()
    swapped = {**columns, "other": jax.tree.map(lambda leaf: leaf[:, ::-1], columns["other"])}
    assert np.abs(values(swapped) - values(columns)).min() > 1e-6


def test_the_number_of_layers_does_not_grow_with_the_agents():
    few, many = (nnx.to_flat_state(nnx.state(critic(agents), nnx.Param)) for agents in (2, 100))
    assert [path for path, _ in few] == [path for path, _ in many]


def test_a_model_may_bring_its_own():
    own = SimpleNamespace(critic="its own")
    assert with_critic(own, SPACE, ModelConfig(), rngs=nnx.Rngs(0)).critic == "its own"
    model = with_critic(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), SPACE, ModelConfig(), rngs=nnx.Rngs(0))
    assert isinstance(model.critic, CentralCritic)
