"""Inputs of members and of the mixer of a group, and members as batch rows of their network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax.core.spaces import stack
from rollax.models.config import ModelConfig
from rollax.models.group_q_network import make_group_model
from rollax.models.group_view import GroupView
from rollax.models.outputs import is_recurrent

MEMBER = spaces.Dict(
    {
        "place": spaces.Box(-1, 1, (2,), np.float32),
        "kind": spaces.Discrete(3),
        "action_mask": spaces.MultiBinary(4),
        "state": spaces.Dict({"time": spaces.Discrete(5), "all": spaces.Box(-1, 1, (3,), np.float32)}),
    }
)
ACTIONS = spaces.Tuple([spaces.Discrete(4, start=2)] * 3)
GROUP = spaces.Tuple([MEMBER] * 3)


def observed(rows=5, seed=0):
    """Columns of rows in which all members observe the same state and have a valid action."""
    GROUP.seed(seed)
    values = [GROUP.sample() for _ in range(rows)]
    for value in values:
        for member in value:
            member["state"] = value[0]["state"]
            member["action_mask"][0] = 1
    return stack(GROUP, values)


def view_of(space=GROUP, state_key="state", agent_ids=True):
    return GroupView.of(space, ACTIONS, state_key, agent_ids)


def test_inputs_of_a_member():
    view, obs = view_of(), observed()
    columns, numbers = jax.tree.map(np.asarray, view.seen(obs))
    assert columns.keys() == {"place", "kind"}
    np.testing.assert_array_equal(columns["place"], np.concatenate([member["place"] for member in obs]))
    assert numbers.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    seen = spaces.Dict({"place": MEMBER["place"], "kind": MEMBER["kind"]})
    assert view.seen_space(GROUP) == spaces.Tuple([seen, spaces.Discrete(3)])
    assert len(view_of(agent_ids=False).seen(obs)) == 1


def test_state_comes_from_a_present_member():
    view, obs = view_of(), observed()
    expected = {name: column.copy() for name, column in obs[0]["state"].items()}
    # zeros of absent members: the first one in rows 0 and 1, the second one in row 1
    for member, rows in ((0, [0, 1]), (1, [1])):
        obs[member]["action_mask"][rows] = 0
        for column in obs[member]["state"].values():
            column[rows] = 0
    found = jax.jit(view.state)(obs)
    np.testing.assert_equal(found, expected)
    assert np.asarray(view.present(obs)).tolist() == [[False, True, True], [False, False, True], *[[True] * 3] * 3]
    assert np.asarray(view.valid(obs))[1, :2].all()


def test_without_masks_state_comes_from_a_member_that_is_not_zero():
    member = spaces.Dict({"place": MEMBER["place"], "state": spaces.Discrete(9)})
    space = spaces.Tuple([member] * 3)
    state = [np.array([0, 4, 0]), np.array([7, 0, 0]), np.array([7, 4, 0])]
    obs = tuple({"place": np.zeros((3, 2), np.float32), "state": column} for column in state)
    assert np.asarray(jax.jit(view_of(space).state)(obs)).tolist() == [7, 4, 0]


def test_without_a_state_key_all_observations_are_the_state():
    view, obs = view_of(state_key=None), observed()
    assert view.hidden == ("action_mask",)
    assert view.state_space(GROUP).spaces[0].spaces.keys() == {"place", "kind", "state"}
    for found, member in zip(view.state(obs), obs, strict=True):
        np.testing.assert_array_equal(found["place"], member["place"])
    plain = spaces.Tuple([spaces.Discrete(3)] * 3)
    assert view_of(plain).state_space(plain) == plain


@pytest.mark.short(every=3)
@pytest.mark.parametrize("mixer", ["qmix", "vdn", None])
@pytest.mark.parametrize("memory", [{}, {"use_gru": True, "lstm_use_prev_action": True, "lstm_use_prev_reward": True}])
def test_members_are_batch_rows_of_the_network(mixer, memory):
    # Each member's values equal those of the network for its observations alone, with its own memory.
    config = ModelConfig(fcnet_hiddens=(8,), lstm_cell_size=4, **memory)
    view, obs = view_of(), observed(6)
    model = make_group_model(view, GROUP, ACTIONS, config, mixer=mixer, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(0)
    columns = {"obs": obs}
    assert is_recurrent(model) == bool(memory)
    if memory:
        # two sequences of three rows
        shapes = [(2, *part.shape) for part in model.initial_state()]
        columns["state_in"] = tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)
        columns["prev_actions"] = tuple(rng.integers(2, 6, size=6) for _ in range(3))
        columns["prev_rewards"] = rng.normal(size=6).astype(np.float32)
        assert model.memory_inputs == ("prev_actions", "prev_rewards")

    def of_member(columns, member):
        """Its values and memory, from the network alone."""
        seen = {key: columns["obs"][member][key] for key in ("place", "kind")}, jnp.full(6, member)
        if not memory:
            return model.network(seen).policy, ()
        state = tuple(part[:, member] for part in columns["state_in"])
        before = {"prev_actions": columns["prev_actions"][member], "prev_rewards": columns["prev_rewards"]}
        own, _, state, _ = model.network(seen, state, **before)
        return own, state

    @jax.jit
    def everything(columns):
        obs, (values, states) = columns["obs"], model.values(columns)
        extra = {name: columns[name] for name in model.memory_inputs} if memory else {}
        outputs, joint, *_ = model(obs, columns["state_in"], **extra) if memory else model(obs)
        best = model.joint(values.max(axis=-1), obs).mean(axis=-1)
        first = model.joint(values[..., 0], obs)
        return values, states, [of_member(columns, member) for member in range(3)], outputs, joint, best, first

    values, states, alone, outputs, joint, best, first = jax.tree.map(np.asarray, everything(columns))
    assert values.shape == (6, 3, 4)
    for member, (own, state) in enumerate(alone):
        if memory:
            np.testing.assert_allclose(states[0][:, member], state[0], rtol=1e-5, atol=1e-6)
        allowed = obs[member]["action_mask"] > 0
        np.testing.assert_allclose(values[:, member][allowed], own[allowed], rtol=1e-5, atol=1e-6)
        assert (values[:, member][~allowed] < -1e20).all()
    np.testing.assert_allclose(outputs, values.reshape(6, 12), rtol=1e-5)
    np.testing.assert_allclose(joint, best, rtol=1e-4, atol=1e-5)
    assert first.shape == (6, 3 if mixer is None else 1)


def test_only_the_mixer_observes_the_state():
    config = ModelConfig(fcnet_hiddens=(8,))
    model = make_group_model(view_of(), GROUP, ACTIONS, config, mixer="qmix", rngs=nnx.Rngs(0))
    obs, other = observed(), observed()
    for member in other:
        member["state"]["all"] = member["state"]["all"] + 1

    @jax.jit
    def both(obs):
        return model.values({"obs": obs})[0], model.joint(jnp.ones((5, 3)), obs)

    (values, joint), (same_values, other_joint) = both(obs), both(other)
    np.testing.assert_array_equal(values, same_values)
    assert not np.allclose(joint, other_joint)
