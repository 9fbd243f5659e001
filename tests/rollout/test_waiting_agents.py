"""Agents with a row in a poll, with a reward and a value in every column, that do not act."""

import gymnasium as gym
import numpy as np
import pytest

from rollax import BaseEnv, RolloutWorker
from rollax.env.rows import NO_ENVS, Rows
from rollax.offline.reader import open_dataset
from tests.env.always_zero import AlwaysZero

LAST = 9
FILLER = -1.0
REWARDS = np.array([1.0, 10.0, 100.0, 1000.0])


class WaitingAgents(BaseEnv):
    """Agent i < 3 observes 100 i + t at step t, or a filler if i = t mod 3, when it waits; agent 3 never acts."""

    num_envs = 1
    observation_space = gym.spaces.Box(-1000, 1000, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def _rows(self, step: int) -> Rows:
        over = step == LAST
        agents = np.arange(4)
        acts = (agents != step % 3) & (agents < 3) & (not over)
        obs = np.where(acts | over, 100 * agents + step, FILLER).astype(np.float32)[:, None]
        flags, no, first = np.full(4, over), np.zeros(4, bool), np.full(4, step == 0)
        rewards = np.zeros(4) if step == 0 else REWARDS.copy()
        ended = np.array([0]) if over else NO_ENVS
        return Rows(np.zeros(4, int), agents, obs, rewards, flags, no, first, acts, ended, list("abcd"))

    def reset_rows(self, env_index, seeds=None):
        self.step = 0
        return self._rows(0)

    def send_rows(self, rows, selection, actions):
        pass

    def poll_rows(self):
        self.step += 1
        return self._rows(self.step)


def decisions(agent: int) -> list[tuple[float, float, float, bool]]:
    """(obs, reward, new_obs, terminated) of one episode: rewards count for an action until the agent acts again."""
    steps = [step for step in range(LAST) if agent != step % 3]
    ends = [*steps[1:], LAST]
    return [
        (100 * agent + step, REWARDS[agent] * (end - step), 100 * agent + end, end == LAST)
        for step, end in zip(steps, ends, strict=True)
    ]


def make_worker(policies: int, **config) -> RolloutWorker:
    if policies == 1:
        return RolloutWorker(lambda _: WaitingAgents(), AlwaysZero, config=config)
    two: dict = {"policy_cls_or_specs": dict.fromkeys("xy", AlwaysZero), "policy_mapping_fn": lambda a: "yx"[a in "ad"]}
    return RolloutWorker(lambda _: WaitingAgents(), **two, config=config)


@pytest.mark.parametrize("policies", [1, 2])
@pytest.mark.parametrize("fragment", [1, 2, 3, 4, 5, 9])
def test_rewards_count_for_the_last_action_across_fragments(fragment, policies):
    worker = make_worker(policies, rollout_fragment_length=fragment)
    rows = []
    while sum(terminated for *_, terminated in rows) < 9:  # three agents, three episodes
        batch = worker.sample()
        for part in [batch] if policies == 1 else batch.policy_batches.values():
            columns = (part[name].ravel().tolist() for name in ("obs", "rewards", "new_obs", "terminateds"))
            rows += zip(*columns, strict=True)
    for agent in range(3):
        mine = [row for row in rows if row[0] // 100 == agent]
        assert mine[: 3 * len(decisions(agent))] == 3 * decisions(agent)
    # A reward before an agent's first action counts for the episode.
    assert worker.get_metrics()[0].reward == LAST * REWARDS.sum()


def test_fillers_are_not_observed():
    worker = make_worker(1, rollout_fragment_length=LAST, observation_filter="MeanStdFilter")
    worker.sampler.sample()
    counted = [value for agent in range(3) for value, *_ in decisions(agent)] + [100 * i + LAST for i in range(4)]
    counted += [0 + 100 * i for i in (1, 2)]  # the next episode has started
    state = worker.get_filters()["default_policy"]
    assert state["count"] == len(counted)
    np.testing.assert_allclose(state["mean"], np.mean(counted), rtol=1e-6)


def test_recorded_rows_are_the_same(tmp_path):
    worker = make_worker(1, rollout_fragment_length=4, output=str(tmp_path))
    for _ in range(9):
        worker.sampler.sample()
    worker.stop()
    episodes = list(open_dataset(tmp_path).trajectories())
    for agent in range(3):
        mine = next(one for one in episodes if one.agent_id == "abc"[agent])
        obs = mine.columns["obs"].ravel().tolist()
        rewards = mine.columns["rewards"].tolist()
        assert [*zip(obs[:-1], rewards, obs[1:], strict=True)] == [row[:3] for row in decisions(agent)]
