"""`TargetPolicy`: the probabilities with which a policy would take logged actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium import spaces

from rollax.batch import SampleBatch
from rollax.core import trees
from rollax.core.spaces import space_text
from rollax.errors import PolicyError
from rollax.offline.estimators.episodes import LoggedEpisodes
from rollax.offline.estimators.importance import starts_of
from rollax.policy.exploration import greedy
from rollax.policy.model_policy import ModelPolicy
from rollax.policy.policy import Policy
from rollax.rollout.policy_runner import PolicyRunner

_ROWS_AT_ONCE = 4096


class TargetPolicy:
    """A policy whose value is estimated.

    Args:
        runner: the policy with its observation filter and action map, as `load_policy` returns it.
        explore: True for the policy as it acts in training, False for its greedy actions.
    """

    def __init__(self, runner: PolicyRunner, *, explore: bool = True) -> None:
        self.runner, self.explore = runner, explore

    @property
    def is_discrete(self) -> bool:
        """Whether the action space is Discrete."""
        return isinstance(self.runner.policy.action_space, spaces.Discrete)

    @property
    def has_memory(self) -> bool:
        """Whether the actions depend on earlier steps."""
        return bool(self.runner.policy.get_initial_state())

    def filtered(self, obs: trees.Tree) -> trees.Tree:
        """Raw observations as the policy receives them."""
        return self.runner.filter(obs, update=False)

    def logp(self, episodes: LoggedEpisodes) -> np.ndarray:
        """[N] log π(a_t | s_t) of the logged actions; -∞ for actions that the policy never takes.

        Raises:
            PolicyError: the policy has no probabilities for these actions, such as a greedy one with Box actions.
        """
        actions = episodes.actions
        if self.has_memory:
            return self._logp_with_memory(episodes, actions)
        space = self.runner.policy.action_space
        if isinstance(space, spaces.Discrete):
            indices = np.asarray(actions, np.int64) - int(space.start)
            with np.errstate(divide="ignore"):
                return np.log(self.probabilities(episodes.obs)[np.arange(len(indices)), indices])
        return in_parts(lambda some: self._logp_of(some[1], self.filtered(some[0]), {})[0], (episodes.obs, actions))

    def probabilities(self, obs: trees.Tree) -> np.ndarray:
        """[N, n] π(a | s) of all actions of a Discrete space, for N raw observations.

        Raises:
            PolicyError: a policy with memory, or without probabilities.
        """
        policy = self.runner.policy
        if self.has_memory:
            what = "The probabilities of all actions cannot be computed for a policy with memory."
            fix = "estimate it by 'is', 'pdis', 'wis' or 'wpdis'"
            raise PolicyError(what, policy.label, "a recurrent model", expected="a policy without memory", fix=fix)
        found = in_parts(lambda some: action_probabilities(policy, self.filtered(some), explore=self.explore), obs)
        return np.asarray(found, np.float64)

    def on_bound(self, actions: trees.Tree) -> np.ndarray:
        """[N] whether an element of an action, in the scale of the policy, lies exactly on a bound of its Box.

        Actions beyond a bound do not count: they were recorded unclipped, so the policy's density applies to them.
        """
        action_map = self.runner.action_map
        unchanged = trees.tree_map(
            lambda one, other: np.isclose(one, other, atol=1e-5).reshape(len(one), -1).all(axis=1),
            *(actions, action_map.received(actions)),
        )
        return action_map.on_bound(action_map(actions)) & np.all([*trees.leaves(unchanged)], axis=0)

    def sampled(self, obs: trees.Tree, count: int) -> trees.Tree:
        """Columns [N · count, ...] of actions: `count` adjacent ones for each of N raw observations, 1 if greedy."""
        rows = np.repeat(np.arange(trees.length(obs)), count if self.explore else 1)
        return in_parts(lambda some: self._act(self.filtered(trees.index(obs, some)), {}, sample=True)[0], rows)

    def _act(self, obs: trees.Tree, context: dict[str, Any], *, sample: bool = False) -> tuple[Any, Any, Any]:
        return self.runner.act(obs, sample and self.explore, self.runner.policy.timestep, context)

    def _logp_of(
        self, actions: trees.Tree, obs: trees.Tree, context: dict[str, Any]
    ) -> tuple[np.ndarray, Sequence[Any]]:
        """[N] log-probabilities of actions in filtered observations, and the states for the next step."""
        if self.explore:
            logp, states = action_logp(self.runner.policy, actions, obs, **context)
            return np.asarray(logp, np.float64), states
        if not all(leaf.dtype.kind in "iub" for leaf in trees.leaves(actions)):
            raise _no_probabilities(self.runner.policy, "greedy actions, which have no densities", "explore=True")
        greedy, states, _ = self._act(obs, context)
        # By key: JAX returns the parts of a Dict in alphabetical order, a log in an order of its own.
        same = trees.tree_map(lambda one, other: (one == other).reshape(len(one), -1).all(axis=1), actions, greedy)
        return np.where(np.all([*trees.leaves(same)], axis=0), 0.0, -np.inf), states

    def _logp_with_memory(self, episodes: LoggedEpisodes, actions: trees.Tree) -> np.ndarray:
        """Runs all trajectories in parallel, step by step, with the logged actions in place of the policy's actions."""
        policy, starts = self.runner.policy, starts_of(episodes.lengths)
        logp = np.empty(len(episodes.rewards))
        order = np.argsort(-episodes.lengths, kind="stable")
        context = policy.memory_of(len(order), None, None, None)
        for step in range(int(episodes.lengths.max())):
            alive = order[episodes.lengths[order] > step]
            rows = starts[alive] + step
            context = trees.index(context, slice(len(alive)))
            taken = trees.index(actions, rows)
            logp[rows], states = self._logp_of(taken, self.filtered(trees.index(episodes.obs, rows)), context)
            rewards = self.runner.reward_map(episodes.rewards[rows].astype(np.float32))
            context = policy.memory_of(len(rows), states, self.runner.action_map.received(taken), rewards)
        return logp


@contextmanager
def acting_state_kept(policy: Policy) -> Iterator[None]:
    """Restores the random state of a policy after a block in which the policy acts."""
    state = policy.get_acting_state()
    try:
        yield
    finally:
        policy.set_acting_state(state)


def in_parts(function: Callable[[trees.Tree], trees.Tree], columns: trees.Tree) -> Any:
    """Applies a function to some thousand rows of columns at a time; returns its results for all rows."""
    parts = range(0, trees.length(columns), _ROWS_AT_ONCE)
    return trees.concat([function(trees.index(columns, slice(first, first + _ROWS_AT_ONCE))) for first in parts])


def action_probabilities(policy: Policy, obs: trees.Tree, *, explore: bool = True) -> np.ndarray:
    """[N, n] the probability of each action of a Discrete space, for N filtered observations, without memory.

    A policy that is not a `ModelPolicy` needs a method `action_probabilities(obs_batch, explore=...)`.

    Args:
        explore: True for the policy as it acts in training, False for its greedy action.
    """
    if (own := getattr(policy, "action_probabilities", None)) is not None:
        return own(obs, explore=explore)
    if isinstance(policy, ModelPolicy) and isinstance(policy.action_space, spaces.Discrete):
        if explore and policy.noisy:
            raise _no_probabilities(policy, "a model that explores by the noise of its weights", "explore=False")
        outputs, _ = policy.model_outputs(obs)
        probabilities = policy.exploration.probabilities(outputs, policy.timestep) if explore else greedy(outputs)
        if probabilities is not None:
            return probabilities
    got = f"action space {space_text(policy.action_space)}, and no method action_probabilities"
    raise _no_probabilities(policy, got, "a Discrete action space, and action_probabilities(obs_batch, explore=...)")


def action_logp(
    policy: Policy, actions: trees.Tree, obs: trees.Tree, *context: Any, **named: Any
) -> tuple[np.ndarray, Sequence[Any]]:
    """`([N] log-probabilities, states)` of N actions in the policy's scale, for the policy as it acts in training.

    A policy that is not a `ModelPolicy` needs a method `action_logp(actions, obs_batch, state_batches,
    prev_action_batch, prev_reward_batch)`. `compute_actions` describes these arguments and the returned states.
    """
    if (own := getattr(policy, "action_logp", None)) is not None:
        return own(actions, obs, *context, **named)
    if not isinstance(policy, ModelPolicy):
        raise _no_probabilities(
            policy, "no method action_logp", "action_logp(actions, obs_batch, ...) -> ([N], states)"
        )
    if not policy.exploration.from_distribution:
        got = f"exploration by {type(policy.exploration).__name__}, in {space_text(policy.action_space)}"
        raise _no_probabilities(policy, got, "actions that are drawn from the model's distribution")
    outputs, states = policy.model_outputs(obs, *context, **named)
    inputs = {SampleBatch.ACTION_DIST_INPUTS: outputs}
    # Actions may be uniformly random at first.
    known = policy.behaviour(actions, {**inputs, **policy.fetches_of(actions, inputs)}, explore=True)
    if SampleBatch.ACTION_LOGP not in known:
        raise _no_probabilities(policy, "a model that draws random numbers", "a model without random numbers")
    return known[SampleBatch.ACTION_LOGP], states


def _no_probabilities(policy: Policy, got: str, expected: str) -> PolicyError:
    fix = "estimate it by 'dm' if its actions are a Box; or implement action_probabilities or action_logp in its class"
    what = "The policy has no probabilities of given actions."
    return PolicyError(what, policy.label, got, expected=expected, fix=fix)
