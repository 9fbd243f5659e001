"""The fields of algorithms that learn from replayed experience."""

from __future__ import annotations

from pydantic import Field

from rollax.config.trainer import TrainerConfig


class ReplayFields(TrainerConfig):
    """What is kept, how it is drawn, and how many updates are made for each step; see `SyncReplayOptimizer`."""

    buffer_size: int = Field(default=50_000, ge=1, description="rows that are kept to be learned from again")
    learning_starts: int = Field(default=1000, ge=0, description="steps before the first update")
    training_intensity: float = Field(
        default=0.25, gt=0, description="updates for each step sampled; each update learns from train_batch_size rows"
    )
    n_step: int = Field(default=1, ge=1, description="n, the steps whose rewards stand before the bootstrapped value")
    prioritized_replay: bool = Field(
        default=False, description="whether rows are drawn the more often the larger their last error was"
    )
    prioritized_replay_alpha: float = Field(
        default=0.6, ge=0, description="α of prioritized replay: 0 draws uniformly, 1 in proportion to the errors"
    )
    prioritized_replay_beta: float = Field(
        default=0.4, ge=0, le=1, description="β of prioritized replay: how far importance weights make up for it"
    )
    prioritized_replay_eps: float = Field(
        default=1e-6, gt=0, description="ε of prioritized replay: how likely rows without an error still are"
    )
    frame_stack_axis: int | None = Field(
        default=None,
        description="the axis along which observations are stacks of images, of which each is stored once: 0 or -1; "
        "None stores observations as they are",
    )
    store_buffer_in_checkpoints: bool = Field(
        default=False, description="whether checkpoints hold what the buffers keep; without it they begin empty"
    )

    def check(self) -> None:
        super().check()
        self.refuse_larger("train_batch_size", "buffer_size")
        self.refuse_larger("n_step", "buffer_size")
