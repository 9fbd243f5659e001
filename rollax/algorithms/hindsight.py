"""Hindsight experience replay (HER): `hindsight_goals` of algorithms with a replay buffer."""

from __future__ import annotations

from gymnasium import spaces

from rollax.batch import Fragment, SampleBatch
from rollax.core.spaces import ACHIEVED, DESIRED, same_space, space_text
from rollax.errors import PolicyError, SpaceError
from rollax.policy.algorithm import Algorithm
from rollax.policy.base_algorithm import Values
from rollax.policy.recurrent_columns import RecurrentColumns
from rollax.policy.replayed import Draw
from rollax.replay.hindsight import NEXT_ACHIEVED, HindsightDraw


class Hindsight(Algorithm):
    """An algorithm that can learn from goals that were reached by chance; see `HindsightDraw`."""

    derives_from_settings = True
    """Whether the columns that `postprocess` of this class adds follow from the config and the recorded rows alone."""

    def replayed(self, memory: RecurrentColumns) -> Draw:
        config = self.config
        if not config.hindsight_goals:
            return super().replayed(memory)
        if memory.present:
            raise PolicyError("Goals cannot be replaced in sequences.", self.label, "a model with memory").expected(
                "a model without memory, which learns from rows", "leave hindsight_goals out, or use such a model"
            )
        goals, strategy = config.hindsight_goals, config.hindsight_strategy
        return HindsightDraw(goal_space=self._goal_space(), k=goals, strategy=strategy)

    def _goal_space(self) -> spaces.Space:
        """The space of a goal; SpaceError unless an observation is a Dict of both goals, which have equal spaces."""
        space = self.observation_space
        parts = space.spaces if isinstance(space, spaces.Dict) else {}
        achieved, desired = parts.get(ACHIEVED), parts.get(DESIRED)
        if achieved is None or desired is None or not same_space(achieved, desired):
            raise SpaceError(
                "The observations have no goals that can be replaced.",
                where=f"observation_space of {self.label}, with hindsight_goals",
                got=space_text(space),
                expected=f"a Dict with {ACHIEVED} and {DESIRED}, which have equal spaces",
                fix="leave hindsight_goals out, or put both goals into the observations",
            )
        return desired

    def changes_rows(self) -> bool:
        return bool(self.config.hindsight_goals)

    def postprocess(self, fragment: Fragment, values: Values) -> SampleBatch:
        if self.config.hindsight_goals:
            fragment[NEXT_ACHIEVED] = fragment.following(SampleBatch.OBS)[ACHIEVED]
        return fragment
