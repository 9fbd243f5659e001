"""Exported policies with memory: the state, previous actions and previous rewards of several steps."""

import json

import numpy as np
import pytest
from gymnasium import spaces

import rollax
from rollax.core import trees
from tests.serving.export.policies import columns_of, compare, in_onnx, in_stablehlo, named, onnx_session, runner_of

OBS = spaces.Dict({"x": spaces.Box(-2.0, 2.0, (3,), np.float32), "action_mask": spaces.MultiBinary(3)})
ACTIONS = spaces.Tuple([spaces.Discrete(3), spaces.Box(np.float32([1, -4]), np.float32([3, 0]))])
INPUTS = {"lstm_use_prev_action": True, "lstm_use_prev_reward": True}


@pytest.mark.parametrize(
    ("algorithm", "actions_space", "model"),
    [
        (rollax.PPO, ACTIONS, {"use_lstm": True, **INPUTS}),
        pytest.param(rollax.PPO, ACTIONS, {"use_gru": True}, marks=pytest.mark.long),
        pytest.param(
            rollax.PPO, ACTIONS, {"use_attention": True, "attention_memory": 2, **INPUTS}, marks=pytest.mark.long
        ),
        pytest.param(rollax.PPO, ACTIONS, {"use_gru": True, "vf_share_layers": True, **INPUTS}, marks=pytest.mark.long),
        pytest.param(rollax.SAC, spaces.Discrete(3), {"use_lstm": True, **INPUTS}, marks=pytest.mark.long),
    ],
    ids=["LSTM", "GRU", "transformer", "GRU, shared layers", "SAC"],
)
def test_steps_are_equal(algorithm, actions_space, model):
    runner = runner_of(
        algorithm,
        OBS,
        actions_space,
        model=model if "use_attention" in model else {**model, "lstm_cell_size": 4},
        observation_filter="MeanStdFilter",
        normalize_actions=True,
        clip_rewards=True,
    )
    session = onnx_session(runner)
    rows, states, actions, rewards = 3, None, None, None
    described = json.loads(session.get_modelmeta().custom_metadata_map["inputs"])
    memory = {
        part["name"]: np.repeat(np.array(part["initial"], part["dtype"])[None], rows, axis=0)
        for part in described
        if "initial" in part
    }
    for step in range(3):
        columns = columns_of(OBS, rows, seed=step)
        inputs = {**named("obs", OBS, columns), **memory}
        actions, states, _ = runner.compute_actions(
            columns, states, prev_actions=actions, prev_rewards=None if step == 0 else rewards
        )
        expected = {**named("action", actions_space, actions), "state_out_0": states[0]}
        got = in_onnx(session, inputs)
        compare(got, expected)
        if step == 1:
            compare(in_stablehlo(runner, inputs), expected, types=False)
        rewards = np.array([-3.0, 0.0, 0.5], np.float32)
        now = {"state_in_0": got["state_out_0"], "prev_reward": rewards, **named("prev_action", actions_space, actions)}
        memory = {name: now[name] for name in memory}
    one = trees.index(columns_of(OBS, 1), 0)
    assert states is not None
    action, state, _ = runner.compute_single_action(one, [part[0] for part in states])
    assert state[0].shape == (got["state_out_0"].shape[1],)
    assert actions_space.contains(action)
