"""The fields of algorithms that sample and learn at the same time."""

from __future__ import annotations

from pydantic import BaseModel, Field


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
