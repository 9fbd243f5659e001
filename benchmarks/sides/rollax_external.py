"""rollax's `RolloutWorker.sample` over an `ExternalEnv` with many free episodes, one 64x64 tanh policy."""

import argparse
import threading
from typing import Any

import numpy as np

from benchmarks.free_env import ACTION_SPACE, OBSERVATION_SPACE
from benchmarks.protocol import serve_rates, versions
from rollax import EnvStoppedError, ExternalEnv, RolloutWorker
from rollax.algorithms.ppo import PPO, PPOConfig
from rollax.models.config import ModelConfig

_LENGTH = 200


class FreeEpisodes(ExternalEnv):
    """Precomputed observations, a reward of 1 per step, episodes of 200 steps that end at different times."""

    def __init__(self, episodes: int, threads: bool) -> None:
        super().__init__(OBSERVATION_SPACE, ACTION_SPACE)
        rng = np.random.default_rng(0)
        self.count, self.threads = episodes, threads
        self.obs = rng.normal(size=(episodes, 4)).clip(-10, 10).astype(np.float32)
        self.lengths = rng.integers(1, _LENGTH, episodes).tolist()  # lengths of the first episodes

    def run(self) -> None:
        """Plays all episodes in one thread, or each in its own."""
        if not self.threads:
            self.play_all()
            return
        threads = [threading.Thread(target=self.play, args=(number,)) for number in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def play_all(self) -> None:
        """Plays all episodes in lockstep."""
        left, ids = list(self.lengths), [self.start_episode() for _ in range(self.count)]
        while True:
            self.get_actions(dict(zip(ids, self.obs, strict=True)))
            for number, episode_id in enumerate(ids):
                self.log_returns(episode_id, 1.0)
                left[number] -= 1
                if not left[number]:
                    self.end_episode(episode_id, self.obs[number])
                    ids[number], left[number] = self.start_episode(), _LENGTH

    def play(self, number: int) -> None:
        """Plays one episode after another."""
        obs, length = self.obs[number], self.lengths[number]
        try:
            while True:
                episode_id = self.start_episode()
                for _ in range(length):
                    self.get_action(episode_id, obs)
                    self.log_returns(episode_id, 1.0)
                self.end_episode(episode_id, obs)
                length = _LENGTH
        except EnvStoppedError:
            return


def main() -> None:
    """Serves rounds of sampling."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, required=True, help="how many run at once")
    parser.add_argument("--fragment", type=int, required=True)
    parser.add_argument("--threads", action="store_true", help="a thread for each episode instead of get_actions")
    args = parser.parse_args()

    config = PPOConfig(
        rollout_fragment_length=args.fragment,
        train_batch_size=args.fragment,
        model=ModelConfig(fcnet_hiddens=(64, 64), fcnet_activation="tanh"),
        seed=0,
    )
    worker = RolloutWorker(lambda context: FreeEpisodes(args.episodes, args.threads), PPO, config=config)
    polls, poll_rows = 0, worker.env.poll_rows

    def counted() -> Any:
        nonlocal polls
        polls += 1
        return poll_rows()

    worker.env.poll_rows = counted  # type: ignore[method-assign]

    def collect() -> int:
        steps = worker.sample().env_steps
        # A trainer reads the metrics once per iteration; unread metrics would accumulate.
        worker.get_metrics()
        return steps

    collect()
    polls = 0
    actions_per_forward = round(sum(collect() for _ in range(10)) / polls, 1)
    facts = versions("rollax", "jax", "flax", "gymnasium", "numpy")
    serve_rates(collect, actions_per_forward=actions_per_forward, versions=facts)
    worker.stop()


if __name__ == "__main__":
    main()
