"""Groups of fields about replayed experience: transitions, and sequences for models with memory."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from rollax.config.contributed import FieldsOfReplay
from rollax.config.field_group import FieldGroup, NotIn
from rollax.config.trainer import TrainerConfig
from rollax.errors import ConfigError

_PRIORITIES = tuple(f"prioritized_replay_{name}" for name in ("alpha", "beta", "eps"))

MODEL_WITH_MEMORY = [
    *({"model.use_lstm": True}, {"model.use_gru": True}, {"model.use_attention": True}),
    {"model.custom_model": NotIn(None)},
]
"""The condition of keys for models with memory; a custom model may have memory too."""


class BurnInFields(FieldGroup):
    """Rows before each sequence that a model with memory learns from."""

    requires = {"burn_in": MODEL_WITH_MEMORY}
    places = {"burn_in": ("policy",)}

    burn_in: int = Field(
        default=0, ge=0, description="rows before each sequence from which its initial recurrent state is recomputed"
    )


OF_SEQUENCES = ("burn_in", "zero_init_states", "overlap", "priority_eta")
"""The keys of `SequenceFields`."""


class SequenceFields(BurnInFields, TrainerConfig):
    """How a model with memory learns from replayed sequences; the options of R2D2."""

    requires = {
        ("zero_init_states", "overlap"): MODEL_WITH_MEMORY,
        "priority_eta": [{**memory, "prioritized_replay": True} for memory in MODEL_WITH_MEMORY],
    }
    places = {("zero_init_states", "overlap", "priority_eta"): ("policy",)}

    zero_init_states: bool = Field(
        default=False,
        description="whether sequences begin with the model's initial state instead of the state used when acting",
    )
    overlap: int = Field(
        default=0, ge=0, description="rows that a sequence has in common with the next one; less than max_seq_len"
    )
    priority_eta: float = Field(
        default=0.9,
        ge=0,
        le=1,
        description="η: the priority of a sequence is η times its largest error plus 1 - η times their mean",
    )

    def check(self) -> None:
        super().check()
        if self.overlap >= self.model.max_seq_len:
            raise ConfigError(
                "A sequence cannot have all of its rows in common with the next one.",
                where="config keys 'overlap' and 'model.max_seq_len'",
                got=f"overlap={self.overlap}, max_seq_len={self.model.max_seq_len}",
                expected="overlap < max_seq_len",
                fix="lower overlap: half of max_seq_len is usual",
            )


class ReplayFields(FieldsOfReplay, TrainerConfig):
    """What replay buffers store, how rows are drawn, and the number of updates per step; see `SyncReplayOptimizer`."""

    replays: ClassVar[bool] = True

    defaults = {"rollout_fragment_length": 4, "timesteps_per_iteration": 1000}
    requires = {
        _PRIORITIES: {"prioritized_replay": True},
        ("accept_off_policy_actions", "max_policy_lag"): "this algorithm learns from all actions, whoever chose them",
    }
    places = {
        ("train_batch_size", "n_step"): ("policy",),
        (
            *("buffer_size", "learning_starts", "training_intensity", "frame_stack_axis"),
            *("prioritized_replay", *_PRIORITIES, "store_buffer_in_checkpoints"),
        ): (),
    }

    train_batch_size: int = Field(
        default=32,
        ge=1,
        description="rows of one update; of a model with memory, train_batch_size // max_seq_len sequences",
    )
    buffer_size: int = Field(
        default=50_000, ge=1, description="capacity of each policy's replay buffer in rows (of all shards together)"
    )
    learning_starts: int = Field(default=1000, ge=0, description="steps before the first update")
    training_intensity: float = Field(
        default=0.25, gt=0, le=1000, description="updates per sampled step; each learns from train_batch_size rows"
    )
    n_step: int | None = Field(
        default=1,
        ge=1,
        description="n, number of rewards before the bootstrapped value; None: all up to the end of the trajectory",
    )
    prioritized_replay: bool = Field(
        default=False, description="whether rows with larger errors are sampled more often"
    )
    prioritized_replay_alpha: float = Field(
        default=0.6,
        ge=0,
        le=10,
        description="α of prioritized replay: 0 samples uniformly, 1 in proportion to the errors",
    )
    prioritized_replay_beta: float = Field(
        default=0.4, ge=0, le=1, description="β of prioritized replay: 1 corrects its bias fully, 0 not at all"
    )
    prioritized_replay_eps: float = Field(
        default=1e-6, gt=0, description="ε of prioritized replay, added to each error"
    )
    frame_stack_axis: int | None = Field(
        default=None,
        description="axis along which the environment's observations are stacks of images, mostly 0 or -1: each image "
        "is then stored once; None: whole observations are stored, except stacks made by frame_stack",
    )
    store_buffer_in_checkpoints: bool = Field(
        default=False,
        description="whether checkpoints contain the replay buffers; false: a restored run starts with empty ones",
    )

    def check(self) -> None:
        super().check()
        if self.steps_the_env:
            self.refuse_larger("train_batch_size", "buffer_size")
            if self.n_step is not None:
                self.refuse_larger("n_step", "buffer_size")
