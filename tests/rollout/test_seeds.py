"""The same seed gives the same numbers, and those of a sub-environment do not depend on the number of others."""

import gymnasium as gym
import numpy as np

from rollax import EnvContext, RolloutWorker
from rollax.algorithms.ppo import PPO
from rollax.rollout.episodes import EpisodeTable
from tests.rollout.worlds import ACTION_SPACE, OBS_SPACE, Encode, Line, Weighted


class Noise(gym.Env):
    """Observations, rewards and lengths are random; the first element is the index of the sub-environment."""

    observation_space, action_space = OBS_SPACE, ACTION_SPACE

    def __init__(self, context) -> None:
        self.index = context.vector_index

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action):
        reward = float(action) + self.np_random.random()
        return self._observation(), reward, self.np_random.random() < 0.1, self.np_random.random() < 0.1, {}

    def _observation(self) -> np.ndarray:
        return np.append(np.float32(self.index), self.np_random.integers(0, 100, 3)).astype(np.float32)


class Unnumbered(Encode):
    """Its actions do not depend on the index of the sub-environment."""

    def compute_actions(self, obs_batch):  # type: ignore[override]
        return super().compute_actions(obs_batch * np.array([0, 1, 1, 1], np.float32))


def history(num_envs: int, index: int, rows: int = 60, fragment: int = 7, seed=5, **kwargs) -> np.ndarray:
    """[rows, ...] the observations, actions and outcomes of sub-environment `index`."""
    config = {"num_envs_per_worker": num_envs, "rollout_fragment_length": fragment, "seed": seed}
    worker = RolloutWorker(Noise, Unnumbered, config=config, **kwargs)
    parts, count = [], 0
    while count < rows:
        batch = worker.sample()
        batch = batch.rows(batch["obs"][:, 0] == index)
        names = ("actions", "rewards", "terminateds", "truncateds", "t")
        parts.append(np.column_stack([batch["obs"][:, 1:], *(batch[name] for name in names)]))
        count += len(batch)
    return np.concatenate(parts)[:rows]


def test_same_seed_same_numbers():
    first, second = history(3, 1), history(3, 1)
    np.testing.assert_array_equal(first, second)
    assert first[:, -1].max() > 3
    assert (history(3, 1, seed=6) != first).any()
    assert (history(3, 2) != first).any()
    assert (history(3, 1, seed=None) != first).any()


def test_a_sub_environment_does_not_depend_on_their_number():
    np.testing.assert_array_equal(history(1, 0), history(4, 0, fragment=3))
    for index in (0, 3):
        np.testing.assert_array_equal(history(4, index), history(8, index, fragment=20))


def test_the_driver_samples_like_worker_1_and_worker_2_continues_the_indices():
    np.testing.assert_array_equal(history(4, 1), history(4, 1, worker_index=1, num_workers=2))
    np.testing.assert_array_equal(history(4, 1, worker_index=2, num_workers=2), history(8, 5))


class TestRestarts:
    def test_a_restarted_worker_plays_other_episodes(self):
        runs = [history(2, 1, worker_index=2, num_workers=2, restarts=restarts) for restarts in (0, 1, 2, 1)]
        np.testing.assert_array_equal(runs[1], runs[3])
        for a, b in ((0, 1), (0, 2), (1, 2)):
            assert (runs[a] != runs[b]).any()

    def test_ids_of_episodes_and_trajectories_are_unique(self):
        seen = set()
        for index, restarts in ((0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1)):
            worker = RolloutWorker(Noise, Weighted, worker_index=index, num_workers=2, restarts=restarts)
            batch = worker.sample()
            for name in ("eps_id", "trajectory_id"):
                numbers = {(name, number) for number in batch[name].tolist()}
                assert len(numbers) > 5
                assert not numbers & seen
                seen |= numbers

    def test_its_policy_uses_other_random_numbers(self):
        def drawn(**place):
            config = {"seed": 3, "num_workers": 2, "model": {"fcnet_hiddens": (4,)}}
            policy = RolloutWorker(Noise, PPO, config=config, **place).get_policy()
            return tuple(policy.acting_rng.random(4).tolist())

        places = [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
        numbers = [drawn(worker_index=index, restarts=restarts) for index, restarts in places]
        assert numbers[0] == numbers[1]  # the driver without workers equals worker 1
        assert len(set(numbers)) == len(places) - 1


def expected_seed(seed: int, env: int, begun: int) -> int:
    table = EpisodeTable(1, seed=seed, first_env=env)
    table["begun"][0] = begun
    seeds = table.seeds()
    assert seeds is not None
    return seeds[0]


class TestResets:
    def make(self, seed: int | None, env: type = Line) -> RolloutWorker:
        config = {"num_envs_per_worker": 2, "rollout_fragment_length": 16, "seed": seed}
        return RolloutWorker(env, Encode, config=config)

    def test_only_the_first_reset_is_seeded(self):
        worker = self.make(9)
        worker.sample()
        for index, env in enumerate(worker.env.get_sub_environments()):
            assert env.seeds[0] == expected_seed(9, index, 0)
            assert len(env.seeds) > 4
            assert set(env.seeds[1:]) == {None}

    def test_restart_counts_the_episodes_begun(self):
        worker = self.make(9)
        worker.sample()
        envs = worker.env.get_sub_environments()
        begun = [len(env.seeds) for env in envs]
        assert begun[0] != begun[1]
        worker.sampler.restart()
        worker.sample()
        for index, env in enumerate(envs):
            assert env.seeds[begun[index]] == expected_seed(9, index, begun[index])
            assert set(env.seeds[begun[index] + 1 :]) == {None}

    def test_a_restored_worker_continues_like_a_restarted_one(self):
        worker, restored = self.make(9, Noise), self.make(9, Noise)
        worker.sample()
        restored.set_state(worker.get_state())
        worker.sampler.restart()
        for _ in range(3):
            ours, theirs = worker.sample(), restored.sample()
            for name in ours:
                np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)

    def test_trajectory_ids_are_unique_after_a_restore(self):
        def trajectories(worker):
            return set(worker.sample()["trajectory_id"].tolist())

        worker, fresh = RolloutWorker(Noise, Weighted), RolloutWorker(Noise, Weighted)
        seen = trajectories(worker)
        state = worker.get_state()
        later = trajectories(worker)
        for restored in (fresh, worker):
            restored.set_state(state)
            assert not trajectories(restored) & seen
        worker.set_state(state)
        assert not trajectories(worker) & (seen | later)

    def test_seeds_are_distinct_and_valid_for_gymnasium(self):
        seeds = {expected_seed(seed, env, begun) for seed in range(3) for env in range(5) for begun in range(4)}
        assert len(seeds) == 60
        Noise(EnvContext()).reset(seed=max(seeds))

    def test_without_a_seed_nothing_is_seeded(self):
        worker = self.make(None)
        worker.sample()
        assert {seed for env in worker.env.get_sub_environments() for seed in env.seeds} == {None}
