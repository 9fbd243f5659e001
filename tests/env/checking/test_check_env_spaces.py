"""`check_env` with spaces that differ by agent, and with actions that are masked."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rollax import EnvError, MultiAgentEnv, SpaceError, check_env
from rollax.env.checking.random_play import RandomActions
from tests.env.refused import refused
from tests.env.worlds import ALL, OBS_SPACE, Counting


class OwnSpaces(MultiAgentEnv):
    """Declares no spaces: its policies do, or a subclass."""

    spaces_by_agent = {"a": (spaces.Discrete(3), spaces.Box(-1, 1, (2,))), "b": (OBS_SPACE, spaces.Discrete(4))}

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return self._obs(), {}

    def step(self, actions):
        for agent, action in actions.items():
            assert self.spaces_by_agent[agent][1].contains(action)
        self.count += 1
        return self._obs(), {}, {ALL: self.count == 4}, {ALL: False}, {}

    def _obs(self):
        return {"a": 1, "b": np.zeros(3, np.float32)}


class TestSpacesByAgent:
    def test_spaces_declared_by_the_environment(self):
        class Named(OwnSpaces):
            observation_spaces = {agent: pair[0] for agent, pair in OwnSpaces.spaces_by_agent.items()}
            action_spaces = {agent: pair[1] for agent, pair in OwnSpaces.spaces_by_agent.items()}

        report = check_env(Named)
        assert report.findings == ()
        assert report.agents == ("a", "b")
        assert "  observations: different for each agent\n" in str(report)

        class Off(Named):
            def _obs(self):
                return {"a": 1, "b": np.zeros(4, np.float32)}

        refused(EnvError, check_env, Off, says="wrong shape...sub-environment 0, agent 'b'...(4,)...(3,)")

    def test_spaces_declared_by_the_policies(self):
        assert check_env(OwnSpaces, spaces_of=OwnSpaces.spaces_by_agent.get).findings == ()
        says = "An agent has no space...observation_space, agent 'a'...spaces_of"
        refused(SpaceError, check_env, OwnSpaces, says=says)
        bad = {"a": (None, spaces.Discrete(2))}
        refused(SpaceError, lambda: check_env(OwnSpaces, spaces_of=bad.get), says="An agent has no space...'a'")
        bad = {agent: (pair[0], spaces.Text(3)) for agent, pair in OwnSpaces.spaces_by_agent.items()}
        refused(SpaceError, lambda: check_env(OwnSpaces, spaces_of=bad.get), says="space is not supported...agent 'a'")


MASKED = spaces.Dict({"x": OBS_SPACE, "action_mask": spaces.MultiBinary(5)})


class Masked(Counting):
    """Allows one action at a time."""

    observation_space, length = MASKED, 15

    def step(self, action):
        assert action == self.count % 5
        return super().step(action)

    def obs(self):
        return {"x": super().obs(), "action_mask": np.eye(5, dtype=np.int8)[self.count % 5]}


class TestMasks:
    def test_masks_are_respected(self):
        assert check_env(Masked).findings == ()

    def test_masks_without_a_valid_action(self):
        class Stuck(Masked):
            def obs(self):
                return {**super().obs(), "action_mask": np.zeros(5, np.int8)}

        says = "The action mask allows no action...sub-environment 0...[0, 0, 0, 0, 0]"
        refused(EnvError, check_env, Stuck, says=says)

    def test_a_mask_of_the_wrong_size(self):
        class Wide(Masked):
            action_space = spaces.Discrete(4)

        refused(EnvError, check_env, Wide, says="The action mask has the wrong width...5 entries...4, for")

    def test_masks_of_nested_actions(self):
        """Five choices, then two times two, side by side; the rest is free."""
        parts = {"n": spaces.Discrete(5, start=10), "m": spaces.MultiDiscrete([2, 2]), "x": spaces.Box(-1, 1, (2,))}
        space = spaces.Tuple([spaces.Dict(parts), spaces.MultiBinary(2)])
        source, seen = RandomActions(0), set()
        # Dict keeps the order of its keys: "n", "m", "x".
        order = list(space[0].spaces)
        masks = {"n": [0, 1, 0, 1, 0], "m": [1, 0, 0, 1], "x": []}
        mask = np.concatenate([masks[key] for key in order])
        for _ in range(30):
            action = source.draw(space, {"action_mask": mask}, "")
            assert space.contains(action) or space.contains((action[0], np.asarray(action[1], np.int8)))
            assert action[0]["m"].tolist() == [0, 1]
            seen.add(int(action[0]["n"]))
        assert seen == {11, 13}


def test_actions_that_built_in_policies_refuse():
    class Whole(Counting):
        action_space = spaces.Dict({"a": spaces.Box(-3, 3, (2,), np.int32)})

    assert [finding.name for finding in check_env(Whole).findings] == ["integer actions"]


class TestMasksOfAMethod:
    """The method `action_masks` of environments for MaskablePPO."""

    class Masked(Counting):
        action_space = spaces.Discrete(4)

        def action_masks(self):
            return np.array([True, False, True, False])

    class InObservation(gym.ObservationWrapper):
        def __init__(self, env):
            super().__init__(env)
            self.observation_space = spaces.Dict({"obs": OBS_SPACE, "action_mask": spaces.MultiBinary(4)})

        def observation(self, observation):
            return {"obs": observation, "action_mask": self.unwrapped.action_masks().astype(np.int8)}

    @pytest.mark.parametrize(
        "wrap", [lambda env: env, lambda env: gym.wrappers.TimeLimit(env, 5)], ids=["bare", "wrapped"]
    )
    def test_is_not_called(self, wrap):
        (finding,) = check_env(lambda context: wrap(self.Masked())).findings
        assert (finding.severity, finding.name) == ("warning", "unread mask")
        assert finding.message.startswith("Masked has a method action_masks, which is not called")

    def test_of_the_old_interface(self):
        class OldMasked(self.Masked):
            def reset(self):
                return np.zeros(3, np.float32)

            def step(self, action):
                return np.zeros(3, np.float32), 0.0, True, {}

        assert {finding.name for finding in check_env(OldMasked).findings} == {"seed", "unread mask"}

    def test_is_in_the_observation(self):
        assert not check_env(lambda context: self.InObservation(self.Masked())).findings
