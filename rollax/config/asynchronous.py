"""The fields of algorithms that sample and learn at the same time."""

from __future__ import annotations

from pydantic import BaseModel, Field

from rollax.config.replay import ReplayFields


class AsyncSamplesFields(BaseModel):
    """How samples stream from the workers to the learner, and weights back; see `AsyncSamplesOptimizer`."""

    max_requests_in_flight_per_worker: int = Field(
        default=2, ge=1, description="fragments that each worker is asked for ahead, so that it never waits"
    )
    learner_queue_size: int = Field(
        default=4, ge=1, description="train batches that may wait for the learner before sampling has to wait for it"
    )
    broadcast_interval: int = Field(
        default=1, ge=1, description="updates from one handing out of the weights to the next"
    )
    replay_proportion: float = Field(
        default=0.0, ge=0, description="recent fragments that are learned from once more, for each fresh one"
    )
    replay_buffer_num_slots: int = Field(
        default=0, ge=0, description="recent fragments that are kept for that; 0 keeps none"
    )


class AsyncReplayFields(ReplayFields):
    """How samples, what is drawn of them, errors and weights stream; see `AsyncReplayOptimizer`.

    The defaults, also of what all replay has, are those of Ape-X for Atari games and many workers.
    """

    train_batch_size: int = Field(default=512, ge=1, description="rows of one update")
    rollout_fragment_length: int = Field(default=50, ge=1, description="env steps of each sub-environment at a time")
    timesteps_per_iteration: int = Field(default=25_000, ge=0, description="steps of one train() at least")
    buffer_size: int = Field(default=2_000_000, ge=1, description="rows that are kept in all shards together")
    learning_starts: int = Field(default=50_000, ge=0, description="steps before the first update")
    training_intensity: float = Field(
        default=0.002, gt=0, description="updates for each step sampled; each update learns from train_batch_size rows"
    )
    n_step: int = Field(default=3, ge=1, description="n, the steps whose rewards stand before the bootstrapped value")
    prioritized_replay: bool = Field(
        default=True, description="whether rows are drawn the more often the larger their last error was"
    )
    num_replay_shards: int = Field(
        default=1, ge=1, description="processes that keep what is sampled; not more than there are workers"
    )
    updates_per_draw: int = Field(
        default=1, ge=1, description="updates that are drawn for at once and run in one compiled call"
    )
    max_requests_in_flight_per_worker: int = Field(
        default=2, ge=1, description="fragments that each worker is asked for ahead, so that it never waits"
    )
    learner_queue_size: int = Field(
        default=4, ge=1, description="draws that may wait for the learner, or be under way, before sampling has to wait"
    )
    max_weight_sync_delay: int = Field(
        default=400, ge=1, description="steps that a worker samples, on average, before it gets new weights"
    )
    worker_epsilon: float = Field(
        default=0.4, ge=0, le=1, description="ε: worker i of N explores with ε^(1 + α (i - 1)/(N - 1)) all the time"
    )
    worker_epsilon_alpha: float = Field(default=7.0, ge=0, description="α, how far the workers are apart in that")

    def check(self) -> None:
        super().check()
        if self.num_workers > 0:  # without workers nothing is kept elsewhere, whatever these keys say
            self.refuse_larger("num_replay_shards", "num_workers")
