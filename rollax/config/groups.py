"""Groups of fields that several algorithms share: replay, streams of samples, state values, Q-learning, actor-critics.

The documentation shows their descriptions. An algorithm declares the fields that it alone has; if it differs only in a
default, it names the default in `defaults` (see `TrainerConfig`).
"""

from __future__ import annotations

from gymnasium.spaces import Space
from pydantic import ConfigDict, Field

from rollax.config.contributed import FieldsOfReplay
from rollax.config.field_types import Lambda, ProbabilityPoints, SchedulePoints
from rollax.config.hooks import ConfigHooks
from rollax.config.rules import ENABLED, FieldGroup, NotIn
from rollax.config.trainer import TrainerConfig
from rollax.core.schedules import Schedule
from rollax.errors import ConfigError
from rollax.models.config import ModelConfig

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


class StateValueFields(ValueLossFields):
    """The loss of an actor and a critic of states: policy loss + c_v · value loss - c_e · entropy."""

    places = {("lambda_", "entropy_coeff", "entropy_coeff_schedule"): ("policy",)}

    lambda_: Lambda = 1.0
    entropy_coeff: float = Field(default=0.01, ge=0, description="c_e, weight of the entropy bonus")
    entropy_coeff_schedule: SchedulePoints | None = Field(
        default=None, description="[[timestep, c_e], ...], linear in between; replaces entropy_coeff"
    )


MODEL_WITH_MEMORY = [{"model.use_lstm": True}, {"model.use_gru": True}, {"model.custom_model": NotIn(None)}]
"""What a setting of models with memory requires; a custom model may have one."""


class BurnInFields(FieldGroup):
    """Rows before each sequence that a model with memory learns from."""

    requires = {"burn_in": MODEL_WITH_MEMORY}
    places = {"burn_in": ("policy",)}

    burn_in: int = Field(
        default=0, ge=0, description="rows before each sequence from which its initial recurrent state is recomputed"
    )


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
    """What is kept, how it is drawn, and how many updates are made for each step; see `SyncReplayOptimizer`."""

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
        description="axis along which observations are stacks of images, 0 or -1; each image is then stored once. None "
        "stores whole observations",
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


class AsyncReplayFields(StreamFields, ReplayFields):
    """How samples, draws, errors and weights stream; see `AsyncReplayOptimizer`.

    The defaults come from Ape-X, for Atari games and many workers.
    """

    defaults = {
        "train_batch_size": 512,
        "rollout_fragment_length": 50,
        "timesteps_per_iteration": 25_000,
        "buffer_size": 2_000_000,
        "learning_starts": 50_000,
        "training_intensity": 0.002,
        "n_step": 3,
        "prioritized_replay": True,
    }
    places = {("num_replay_shards", "updates_per_draw", "learner_queue_size", "max_weight_sync_delay"): ()}

    num_replay_shards: int = Field(
        default=1, ge=1, description="number of processes with a part of the replay buffer; at most num_workers"
    )
    updates_per_draw: int = Field(
        default=1, ge=1, description="updates whose rows are sampled together; they run in one compiled call"
    )
    learner_queue_size: int = Field(
        default=4,
        ge=1,
        description="largest number of requested or waiting samples from the shards; at this number, the workers wait",
    )
    max_weight_sync_delay: int = Field(
        default=400,
        ge=1,
        description="mean number of steps that a worker samples between two broadcasts of the weights",
    )
    worker_epsilon: float = Field(
        default=0.4, ge=0, le=1, description="ε: worker i of N explores with the constant ε^(1 + α (i - 1)/(N - 1))"
    )
    worker_epsilon_alpha: float = Field(
        default=7.0, ge=0, description="α of this formula: larger values make workers more different"
    )

    def check(self) -> None:
        super().check()
        if self.num_workers > 0:  # without workers there is one buffer in this process
            self.refuse_larger("num_replay_shards", "num_workers")


class QLearningFields(ConfigHooks):
    """Q-learning of discrete actions with a target network and ε-greedy exploration; see `EpsilonGreedy`."""

    defaults = {"lr": 5e-4, "grad_clip": 10.0}
    requires = {
        ("initial_epsilon", "epsilon_timesteps", "final_epsilon"): {"epsilon_schedule": None},
        **OWN_NETWORKS,
    }
    places = {("double_q", "target_network_update_freq"): ("policy",)}

    initial_epsilon: float = Field(default=1.0, ge=0, le=1, description="ε at the first step")
    final_epsilon: float = Field(
        default=0.02, ge=0, le=1, description="ε after epsilon_timesteps; with then_online, at all steps"
    )
    epsilon_timesteps: int = Field(default=10_000, ge=1, description="steps over which ε falls linearly")
    epsilon_schedule: ProbabilityPoints | None = Field(
        default=None,
        description="[[timestep, ε], ...], linear in between; replaces initial_epsilon, final_epsilon and "
        "epsilon_timesteps",
    )
    double_q: bool = Field(default=True, description="whether the online network chooses the next action in targets")
    target_network_update_freq: int = Field(
        default=500, ge=1, description="updates after which the target network becomes a copy of the online network"
    )

    def epsilon(self) -> Schedule:
        """Timestep -> ε; a policy that has learned before does not begin with random actions."""
        points = ((0, self.initial_epsilon), (self.epsilon_timesteps, self.final_epsilon))
        if self.is_pretrained:
            points = ((0, self.final_epsilon),)
        return Schedule(self.epsilon_schedule or points, where="config key 'epsilon_schedule'")


class ActorCriticFields(ReplayFields):
    """Step sizes of actor and critics, target networks, and the noise of actions: DDPG, TD3 and SAC."""

    defaults = {
        "train_batch_size": 256,
        "rollout_fragment_length": 8,
        "training_intensity": 1.0,
        "learning_starts": 1500,
    }
    requires = {
        ("lr", "lr_schedule"): [{"actor_lr": None}, {"critic_lr": None}],
        ("noise_scale", "noise_scale_schedule"): {"exploration": NotIn("StochasticSampling")},
        ("ou_theta", "ou_sigma"): {"exploration": "OrnsteinUhlenbeckNoise"},
        **OWN_NETWORKS,
    }
    places = {("actor_lr", "critic_lr", "tau", "twin_q"): ("policy",)}

    model: ModelConfig = Field(
        default=ModelConfig(fcnet_hiddens=(256, 256), fcnet_activation="relu"),
        description="layers of actor and critics; actions are concatenated to the encoded observation. A model in the "
        "config replaces the whole default, fcnet_activation included",
    )
    actor_lr: float | None = Field(default=None, ge=0, description="step size of the actor; None: lr")
    critic_lr: float | None = Field(default=None, ge=0, description="step size of the critics; None: lr")
    tau: float = Field(default=5e-3, gt=0, le=1, description="Polyak coefficient τ of the target networks")
    random_steps: int = Field(
        default=1000, ge=0, description="number of initial steps with uniformly random actions; none with then_online"
    )
    noise_scale: float = Field(
        default=0.1,
        ge=0,
        description="standard deviation of GaussianNoise, factor of OrnsteinUhlenbeckNoise, or distance of actions "
        "with ParameterNoise; in units of half an action's range",
    )
    noise_scale_schedule: SchedulePoints | None = Field(
        default=None, description="[[timestep, noise_scale], ...], linear in between; replaces noise_scale"
    )
    ou_theta: float = Field(default=0.15, ge=0, le=1, description="θ of OrnsteinUhlenbeckNoise, its decay rate")
    ou_sigma: float = Field(
        default=0.2, ge=0, description="σ of OrnsteinUhlenbeckNoise, standard deviation of each step's increment"
    )
    twin_q: bool = Field(default=True, description="whether there are two critics; the lower of their values is used")
