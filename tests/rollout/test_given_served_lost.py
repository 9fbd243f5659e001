"""Off-policy actions, episodes with training disabled, lost episodes, and growing slot numbers."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollax import BaseEnv, PolicyError, RolloutWorker
from rollax.algorithms.ppo import PPO
from rollax.env.rows import NO_ENVS, Rows
from tests.rollout.worlds import ACTION_SPACE, OBS_SPACE, Encode, action_for, observation


class Slots(BaseEnv):
    """Episodes of `length` steps in every slot, all stepped at each poll; there can be more slots than `num_envs`.

    Args:
        slots: number of parallel episodes.
        length: number of steps of an episode.
        given: slot -> action that is taken there without a request.
        served: slots with training disabled.
        lost: poll -> slots whose episodes are lost in it.
    """

    observation_space, action_space = OBS_SPACE, ACTION_SPACE
    num_envs = 1

    def __init__(
        self,
        slots: int,
        length: int = 4,
        given: dict[int, Any] | None = None,
        served: tuple[int, ...] = (),
        lost: dict[int, tuple[int, ...]] | None = None,
    ) -> None:
        self.slots, self.length, self.given, self.lost = slots, length, given or {}, lost or {}
        self.served = np.isin(np.arange(slots), served)
        self.steps, self.episodes = np.zeros(slots, np.int64), np.zeros(slots, np.int64)
        self.begun = np.zeros(slots, bool)
        self.polls = -1
        self.sent: list[np.ndarray] = []
        self.sent_actions: list[np.ndarray] = []

    def reset_rows(self, env_index, seeds=None):
        return None

    def send_rows(self, rows, selection, actions):
        self.sent.append(rows.env_index if selection is None else rows.env_index[selection])
        self.sent_actions.append(actions)

    def poll_rows(self) -> Rows:
        self.polls += 1
        lost = np.array(self.lost.get(self.polls, NO_ENVS), np.int64)
        self.begun[lost] = False
        self.episodes[lost] += 1
        here = np.setdiff1d(np.arange(self.slots), lost)
        starts = ~self.begun[here]
        self.steps[here] = np.where(starts, 0, self.steps[here] + 1)
        self.begun[here] = True
        over = self.steps[here] == self.length
        obs = np.array([observation(i, int(self.episodes[i]), 0, int(self.steps[i])) for i in here.tolist()])
        obs = obs.reshape(-1, 4).astype(np.float32)
        given = {row: self.given[i] for row, i in enumerate(here.tolist()) if i in self.given and not over[row]}
        acts = ~over
        acts[list(given)] = False
        ended = here[over]
        self.begun[ended] = False
        self.episodes[ended] += 1
        no = np.zeros(len(here), bool)
        rewards = np.where(starts, 0.0, here + 1.0)
        trains = ~self.served[here] if self.served.any() else None
        # The sampler must not take slot numbers for positions.
        slots = self.slots - 1 - here
        return Rows(here, slots, obs, rewards, over, no, starts, acts, ended, None, None, given or None, trains, lost)


def make_worker(env: BaseEnv, policy: Any = Encode, **config: Any) -> RolloutWorker:
    return RolloutWorker(lambda context: env, policy, config=config)


def episode_rows(batch, slot: int) -> np.ndarray:
    return np.flatnonzero(batch["obs"][:, 0] == slot + 1)


class TestGrowingSlotNumbers:
    def test_more_parallel_episodes_than_sub_environments(self):
        worker = make_worker(Slots(300), rollout_fragment_length=3000)
        batch = worker.sample()
        assert batch.env_steps == len(batch) == 3000
        for slot in (0, 63, 64, 299):
            rows = episode_rows(batch, slot)
            assert batch["obs"][rows, 3].tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
            assert batch["obs"][rows, 1].tolist() == [1] * 4 + [2] * 4 + [3] * 2
            assert np.all(batch["rewards"][rows] == slot + 1)
            assert batch["terminateds"][rows].tolist() == [False, False, False, True] * 2 + [False] * 2
            assert np.array_equal(batch["new_obs"][rows, 3], batch["obs"][rows, 3] + 1)
        metrics = worker.get_metrics()
        assert sorted(episode.reward for episode in metrics) == sorted([4.0 * (slot + 1) for slot in range(300)] * 2)

    def test_evaluation_counts_the_episodes_that_end_first(self):
        episodes = make_worker(Slots(7)).evaluate(10)
        assert [episode.length for episode in episodes] == [4] * 10

    def test_episode_objects_stay_valid_when_the_table_grows(self):
        worker = make_worker(Slots(2))
        worker.sampler.step()
        held = worker.sampler.episodes.episode(1)
        worker.sampler.episodes.make_room(500)
        worker.sampler.step()
        assert (held.length, held.total_reward) == (2, 4.0)


class TestGivenActions:
    def test_they_are_in_the_batch_and_are_not_sent(self):
        env = Slots(4, given={1: 9, 3: 2})
        batch = make_worker(env, multiagent={"policies_to_train": []}, rollout_fragment_length=40).sample()
        assert all(set(sent.tolist()) <= {0, 2} for sent in env.sent)
        assert np.all(batch["actions"][episode_rows(batch, 1)] == 9)
        assert np.all(batch["actions"][episode_rows(batch, 3)] == 2)
        own = np.concatenate([episode_rows(batch, 0), episode_rows(batch, 2)])
        assert np.array_equal(batch["actions"][own], action_for(batch["obs"][own]))
        # prev_actions also have the given actions, not the policy's.
        assert batch["prev_actions"][episode_rows(batch, 1)].tolist()[:5] == [0, 9, 9, 9, 0]

    def test_nothing_is_sent_if_all_actions_are_given(self):
        env = Slots(2, given={0: 1, 1: 1})
        make_worker(env, accept_off_policy_actions=True, rollout_fragment_length=8).sample()
        assert env.sent == []

    def test_rows_are_marked_and_have_the_policys_log_probabilities(self):
        env = Slots(4, given={1: 9})
        worker = make_worker(env, PPO, rollout_fragment_length=40, seed=0, accept_off_policy_actions=True)
        batch = worker.sample()
        assert np.array_equal(np.flatnonzero(batch["off_policy"]), episode_rows(batch, 1))
        logits = batch["action_dist_inputs"]
        logp = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        expected = np.take_along_axis(logp, batch["actions"][:, None], 1)[:, 0]
        np.testing.assert_allclose(batch["action_logp"], expected, rtol=1e-5)
        worker.policies["default_policy"].learn_on_batch(batch)

    def test_box_actions_are_in_the_environments_units(self):
        env = Slots(2, given={1: np.array([5.0], np.float32)})
        env.action_space = spaces.Box(0.0, 10.0, (1,), np.float32)
        worker = make_worker(env, PPO, rollout_fragment_length=8, accept_off_policy_actions=True, seed=0)
        batch = worker.sample()
        assert np.all(batch["actions"][episode_rows(batch, 1)] == 0.0)  # the middle of the bounds
        assert all(np.all((sent >= 0) & (sent <= 10)) for sent in env.sent_actions)

    @pytest.mark.long
    def test_evaluation_and_policies_that_do_not_learn_accept_them(self):
        assert len(make_worker(Slots(2, given={1: 9}), PPO).evaluate(4)) == 4
        make_worker(Slots(2, given={1: 9}), PPO, multiagent={"policies_to_train": []}).sample()

    def test_invalid_actions_are_refused(self):
        with pytest.raises(PolicyError, match="cannot be stacked"):
            make_worker(Slots(2, given={1: "left"}), accept_off_policy_actions=True).sample()


class TestServedEpisodes:
    def test_they_get_actions_and_are_not_learned_from(self):
        env = Slots(3, served=(1,))
        worker = make_worker(env, rollout_fragment_length=24)
        for _ in range(3):
            batch = worker.sample()
            assert batch.env_steps == len(batch) == 24
            assert not len(episode_rows(batch, 1))
            assert len(episode_rows(batch, 0)) == len(episode_rows(batch, 2)) == 12
        assert all(1 in sent.tolist() for sent in env.sent if len(sent) == 3)
        assert {episode.reward for episode in worker.get_metrics()} == {4.0, 8.0, 12.0}

    def test_they_are_left_out_of_complete_episodes(self):
        worker = make_worker(Slots(3, served=(1,)), rollout_fragment_length=24, batch_mode="complete_episodes")
        batch = worker.sample()
        assert batch.env_steps == len(batch) == 24
        assert not len(episode_rows(batch, 1))

    def test_their_rows_do_not_accumulate(self):
        worker = make_worker(Slots(50, served=tuple(range(50))))
        sizes = []
        for _ in range(400):
            worker.sampler.step()
            sizes.append(len(worker.sampler._trajectories["default_policy"]))
        assert max(sizes) <= 512
        assert worker.sampler.episodes.take_finished()[1] == 0

    def test_a_slot_can_be_learned_from_again(self):
        env = Slots(2, served=(1,))
        worker = make_worker(env, rollout_fragment_length=8)
        worker.sample()
        env.served[:] = False
        worker.sample()
        assert len(episode_rows(worker.sample(), 1)) == 4


class TestLostEpisodes:
    @pytest.mark.parametrize("mode", ["truncate_episodes", "complete_episodes"])
    def test_their_rows_and_rewards_are_dropped(self, mode):
        # Poll 0 has the first observations, 1 and 2 are steps; slot 1 is lost in 3 and begins again in 4.
        worker = make_worker(Slots(3, lost={3: (1,)}), rollout_fragment_length=3 * 12, batch_mode=mode)
        batch = worker.sample()
        rows = episode_rows(batch, 1)
        assert 1 not in batch["obs"][rows, 1]  # its first episode
        assert batch["obs"][rows, 1].tolist()[:4] == [2] * 4
        assert batch["obs"][rows, 3].tolist()[:4] == [1, 2, 3, 4]
        assert batch["obs"][episode_rows(batch, 0), 1].tolist()[:4] == [1] * 4
        rewards = [episode.reward for episode in worker.get_metrics() if episode.env_index == 1]
        assert set(rewards) == {8.0}

    def test_an_episode_lost_in_a_later_fragment_drops_only_its_pending_rows(self):
        worker = make_worker(Slots(2, length=10, lost={5: (1,)}), rollout_fragment_length=6)
        first, second = worker.sample(), worker.sample()
        assert len(episode_rows(first, 1)) == 3
        assert second["obs"][episode_rows(second, 1)].tolist() == [[2, 2, 1, 1], [2, 2, 1, 2]]  # no row of the first
        assert second["obs"][episode_rows(second, 0), 3].tolist() == [4, 5, 6, 7, 8]
        assert (first.env_steps, second.env_steps) == (6, 7)  # 3 of the first episode are in the first fragment

    def test_the_only_episode_is_lost(self):
        batch = make_worker(Slots(1, lost={2: (0,)}), rollout_fragment_length=9).sample()
        assert batch["obs"][:, 3].tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 1]
        assert batch.env_steps == 9
