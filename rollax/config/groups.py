"""Groups of fields that several algorithms share: replay, streams of samples, state values.

The documentation shows their descriptions. An algorithm declares the fields that it alone has; if it differs only in a
default, it names the default in `defaults` (see `FieldGroup`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from gymnasium.spaces import Space
from pydantic import ConfigDict, Field

from rollax.config.contributed import FieldsOfReplay
from rollax.config.field_group import ENABLED, FieldGroup, NotIn
from rollax.config.field_types import Lambda, SchedulePoints
from rollax.config.trainer import TrainerConfig
from rollax.errors import ConfigError
from rollax.models.config import MOST_LAYERS, Width

_PRIORITIES = tuple(f"prioritized_replay_{name}" for name in ("alpha", "beta", "eps"))
OWN_NETWORKS = {
    "model.vf_share_layers": "this algorithm has networks of its own",
    "model.free_log_std": "this algorithm has networks of its own",
}


class CentralizedCriticFields(FieldGroup):
    """Whether the value function sees all agents; see `CentralCritic`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    requires = {"critic_space": {"centralized_critic": True}}
    places = {("centralized_critic", "critic_space"): ("policy",)}

    centralized_critic: bool = Field(
        default=False,
        description="whether the value function takes the observations of all agents and the actions of the others; "
        "the agents still act on their own observations",
    )
    critic_space: Space | None = Field(
        default=None, description="space of the input of a centralized critic; None: derived from the environment"
    )


def critic_space_of(config: TrainerConfig, policy_class: str) -> Space | None:
    """The space of a centralized critic's observations, None without one; ConfigError if a trainer did not fill it."""
    if not getattr(config, "centralized_critic", False):
        return None
    space = getattr(config, "critic_space", None)
    if space is None:
        raise ConfigError(
            "A policy with a centralized critic is created without the space of the critic.",
            "config key 'critic_space'",
            policy_class,
        ).expected("the space of the critic's observations", "let a trainer or a RolloutWorker create the policy")
    return space


class ValueLossFields(FieldGroup):
    """The weight of the loss of a state-value critic, which may share layers with the actor."""

    places = {"vf_loss_coeff": ("policy",)}

    vf_loss_coeff: float = Field(default=0.5, ge=0, description="c_v, weight of the value loss")


class LambdaFields(FieldGroup):
    """The λ of returns that mix sampled rewards and values."""

    places = {"lambda_": ("policy",)}

    lambda_: Lambda = 1.0


class StateValueFields(LambdaFields, ValueLossFields):
    """The loss of an actor and a critic of states: policy loss + c_v · value loss - c_e · entropy."""

    places = {("entropy_coeff", "entropy_coeff_schedule"): ("policy",)}

    entropy_coeff: float = Field(default=0.01, ge=0, description="c_e, weight of the entropy bonus")
    entropy_coeff_schedule: SchedulePoints | None = Field(
        default=None, description="[[timestep, c_e], ...], linear in between; replaces entropy_coeff"
    )


MODEL_WITH_MEMORY = [
    *({"model.use_lstm": True}, {"model.use_gru": True}, {"model.use_attention": True}),
    {"model.custom_model": NotIn(None)},
]
"""What a setting of models with memory requires; a custom model may have memory, too."""


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
        default=False, description="whether sequences begin with a state of zeros instead of the state used when acting"
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


class NormalizedRewardFields(FieldGroup):
    """Whether an on-policy algorithm learns from normalized rewards."""

    places = {"normalize_rewards": ("policy",)}

    normalize_rewards: bool = Field(
        default=False,
        description="whether rewards are divided by the running standard deviation of their discounted sum, and then "
        "clipped to [-10, 10], before learning; results report the rewards of the environment",
    )


class StateDependentExplorationFields(FieldGroup):
    """Exploration that is a smooth function of the observation; see `StateDependentExploration`."""

    requires = {
        "use_sde": {"model.custom_model": None, "model.free_log_std": False},
        ("sde_sample_freq", "sde_log_std_init"): {"use_sde": True},
    }
    places = {("use_sde", "sde_sample_freq", "sde_log_std_init"): ("policy",)}

    use_sde: bool = Field(
        default=False,
        description="whether the noise of continuous actions is a function of the observation (gSDE), which stays the "
        "same for several steps",
    )
    sde_sample_freq: int | None = Field(
        default=None, ge=1, le=2**24, description="steps until this function is drawn again; None: the whole trajectory"
    )
    sde_log_std_init: float = Field(
        default=-2.0, description="initial log σ of the noise for each hidden feature and action element"
    )


class ExplorationBonusFields(FieldGroup):
    """Bonuses for observations that are new; see `ExplorationBonus`."""

    requires = {("bonus_coeff", "bonus_hiddens", "predictor_share"): {"exploration_bonus": "rnd"}}
    places = {("exploration_bonus", "bonus_coeff", "bonus_hiddens", "predictor_share"): ("policy",)}

    exploration_bonus: Literal["rnd"] | None = Field(
        default=None,
        description="rnd: random network distillation, bonuses for next observations whose features a network cannot "
        "predict yet; None: no bonuses",
    )
    bonus_coeff: float = Field(
        default=0.5, ge=0, description="weight of bonuses, which have the deviation of their discounted sums as unit"
    )
    bonus_hiddens: Annotated[tuple[Width, ...], Field(min_length=1, max_length=MOST_LAYERS)] = Field(
        default=(128, 64),
        description="widths of the hidden layers and of the output of the random network; the predictor has two more "
        "hidden layers",
    )
    predictor_share: float = Field(
        default=0.25, gt=0, le=1, description="share of the rows of a batch that the predictor learns from"
    )


class BonusAdvantageFields(ExplorationBonusFields):
    """Bonuses for observations that are new, with a value function of their own; see `BonusAdvantages`."""

    requires = {"bonus_gamma": {"exploration_bonus": "rnd"}}
    places = {"bonus_gamma": ("policy",)}

    bonus_gamma: float = Field(
        default=0.99, ge=0, le=1, description="γ of bonuses, whose sums do not end with the episode"
    )


class MinibatchFields(TrainerConfig):
    """Several epochs of minibatches over each train batch."""

    places = {("sgd_minibatch_size", "num_sgd_iter"): ("policy",)}

    sgd_minibatch_size: int = Field(default=64, ge=1, description="M, rows of one gradient step")
    num_sgd_iter: int = Field(default=10, ge=1, description="K, epochs over each train batch")

    def check(self) -> None:
        super().check()
        self.refuse_larger("sgd_minibatch_size", "train_batch_size")


class StreamFields(FieldGroup):
    """How fragments are requested from workers that sample while the learner learns."""

    places = {"max_requests_in_flight_per_worker": ()}

    max_requests_in_flight_per_worker: int = Field(
        default=2, ge=1, description="fragments requested from each worker in advance, so that it does not wait"
    )


class AsyncSamplesFields(StreamFields, TrainerConfig):
    """How fragments stream from the workers to the learner, and weights back; see `AsyncSamplesOptimizer`."""

    requires = {"replay_buffer_num_slots": {"replay_proportion": ENABLED}}
    places = {("learner_queue_size", "broadcast_interval", "replay_proportion", "replay_buffer_num_slots"): ()}

    learner_queue_size: int = Field(
        default=4,
        ge=1,
        description="train batches that may wait for the learner; when the queue is full, sampling waits",
    )
    broadcast_interval: int = Field(default=1, ge=1, description="updates between two broadcasts of the weights")
    replay_proportion: float = Field(default=0.0, ge=0, description="number of replayed fragments for each fresh one")
    replay_buffer_num_slots: int = Field(default=0, ge=0, description="number of recent fragments kept for replay")


class ReplayFields(FieldsOfReplay, TrainerConfig):
    """What replay buffers store, how rows are drawn, and how many updates a step brings; see `SyncReplayOptimizer`."""

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
        default=50_000, ge=1, description="capacity of the replay buffer in rows (of all shards together)"
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
        description="axis along which the environment's observations are stacks of images, 0 or -1; each image is then "
        "stored once, as with frame_stack. None stores whole observations",
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
