"""The cliff of Sutton and Barto (2018), Example 6.6, as tables; and policies with tables of probabilities."""

from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces

from rollax.core import trees
from rollax.offline.estimators.episodes import LoggedEpisodes
from rollax.offline.estimators.target_policy import TargetPolicy
from rollax.policy.policy import Policy
from rollax.rollout.actions import ActionMap
from rollax.rollout.filters import NoFilter
from rollax.rollout.policy_runner import PolicyRunner

ROWS, COLUMNS = 4, 12
STATES, ACTIONS = ROWS * COLUMNS, 4
START, GOAL = 36, 47
GAMMA = 0.99
_MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))


def cliff() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`(next state [S, A], reward [S, A], terminated [S, A])`; falling off costs 100 and leads to the start."""
    following, rewards = np.zeros((STATES, ACTIONS), int), np.full((STATES, ACTIONS), -1.0)
    for state in range(STATES):
        row, column = divmod(state, COLUMNS)
        for action, (down, right) in enumerate(_MOVES):
            to = min(max(row + down, 0), ROWS - 1) * COLUMNS + min(max(column + right, 0), COLUMNS - 1)
            if START < to < GOAL:
                to, rewards[state, action] = START, -100.0
            following[state, action] = to
    return following, rewards, following == GOAL


def optimal_q() -> np.ndarray:
    """[S, A] by value iteration."""
    following, rewards, over = cliff()
    q = np.zeros((STATES, ACTIONS))
    for _ in range(500):
        q = rewards + GAMMA * ~over * q.max(axis=1)[following]
    return q


def epsilon_greedy(epsilon: float) -> np.ndarray:
    """[S, A] probabilities."""
    best = np.eye(ACTIONS)[optimal_q().argmax(axis=1)]
    return (1 - epsilon) * best + epsilon / ACTIONS


def exact_q(probabilities: np.ndarray) -> np.ndarray:
    """[S, A], the solution of (I - γ P_π) Q = r for a policy."""
    following, rewards, over = cliff()
    size = STATES * ACTIONS
    transitions = np.zeros((size, size))
    for pair, (to, ended) in enumerate(zip(following.ravel(), over.ravel(), strict=True)):
        if not ended:
            transitions[pair, to * ACTIONS : (to + 1) * ACTIONS] = probabilities[to]
    return np.linalg.solve(np.eye(size) - GAMMA * transitions, rewards.ravel()).reshape(STATES, ACTIONS)


def logged_episodes(
    obs: Any, actions: Any, rewards: Any = None, *, lengths: Any = None, last_obs: Any = None, terminated: Any = True
) -> LoggedEpisodes:
    """Episodes of these rows, by default of one step with the reward 1, without log-probabilities."""
    rows = trees.length(actions)
    lengths = np.ones(rows, np.int64) if lengths is None else np.asarray(lengths)
    return LoggedEpisodes(
        obs=obs,
        last_obs=trees.index(obs, slice(len(lengths))) if last_obs is None else last_obs,
        actions=actions,
        rewards=np.ones(rows) if rewards is None else rewards,
        lengths=lengths,
        terminated=np.broadcast_to(terminated, len(lengths)),
        behaviour_logp=None,
        where="a test",
    )


def runner_of(policy: Policy, *, mapped: bool = False) -> PolicyRunner:
    """The policy without a filter; `mapped`: with scaled and clipped actions."""
    action_map = ActionMap(policy.action_space, clip_actions=mapped, normalize_actions=mapped)
    return PolicyRunner(policy, NoFilter(policy.observation_space), action_map)


def play_episodes(
    probabilities: np.ndarray, count: int, rng: np.random.Generator, most: int = 20_000
) -> LoggedEpisodes:
    """Whole episodes of a policy, all in parallel."""
    following, rewards, over = cliff()
    state, alive = np.full(count, START), np.arange(count)
    columns: list[tuple[np.ndarray, ...]] = []
    for _ in range(most):
        now = state[alive]
        action = (probabilities[now].cumsum(axis=1) > rng.random(len(now))[:, None]).argmax(axis=1)
        columns.append((alive, now, action, rewards[now, action], np.log(probabilities[now, action])))
        state[alive] = following[now, action]
        alive = alive[~over[now, action]]
        if not len(alive):
            break
    assert not len(alive)
    episode, obs, actions, earned, logp = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    order = np.argsort(episode, kind="stable")
    ends = {"lengths": np.bincount(episode, minlength=count), "last_obs": np.full(count, GOAL)}
    found = logged_episodes(obs[order], actions[order], earned[order], **ends)
    return replace(found, behaviour_logp=logp[order])


class Table(Policy):
    """A policy that is a table [S, A] of probabilities."""

    probabilities: np.ndarray

    def compute_actions(self, obs_batch: Any, explore: bool = True) -> Any:
        return self.probabilities[obs_batch].argmax(axis=1), [], {}

    def action_probabilities(self, obs_batch: Any, *, explore: bool = True) -> np.ndarray:
        return self.probabilities[obs_batch]


def target_of(probabilities: np.ndarray) -> TargetPolicy:
    """The target policy with a table of probabilities."""
    obs, actions = spaces.Discrete(len(probabilities)), spaces.Discrete(probabilities.shape[1])
    policy = Table(obs, actions, {"gamma": GAMMA})
    policy.probabilities = probabilities
    return TargetPolicy(runner_of(policy))


class TableValues:
    """Q and V from tables."""

    def __init__(self, q: np.ndarray, probabilities: np.ndarray) -> None:
        self.table, self.probabilities = q, probabilities

    def q(self, obs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return self.table[obs, actions]

    def v(self, obs: np.ndarray) -> np.ndarray:
        return (self.table * self.probabilities).sum(axis=1)[obs]
