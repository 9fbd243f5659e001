"""Groups of fields of Q-learning, and of algorithms that learn from the actions of other policies."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollax.config.field_group import ENABLED, FieldGroup, NotIn
from rollax.config.field_types import ProbabilityPoints, SchedulePoints
from rollax.config.groups import OWN_NETWORKS
from rollax.config.hooks import ConfigHooks
from rollax.config.replay_groups import ReplayFields
from rollax.config.trainer import TrainerConfig
from rollax.core.schedules import Schedule
from rollax.errors import ConfigError
from rollax.models.config import ModelConfig


class HindsightFields(ConfigHooks):
    """Goals that replace the goals of replayed transitions; see `HindsightDraw`."""

    requires = {"hindsight_strategy": {"hindsight_goals": ENABLED}}
    places = {("hindsight_goals", "hindsight_strategy"): ("policy",)}

    hindsight_goals: int = Field(
        default=0,
        ge=0,
        description="k of hindsight experience replay: k of k + 1 replayed rows get a goal that their trajectory "
        "reached later; 0 changes no goal",
    )
    hindsight_strategy: Literal["future", "final"] = Field(
        default="future",
        description="the new goal: future, one that was reached at this row or at a later one, with equal probability; "
        "final, the one reached last",
    )

    def check(self) -> None:
        super().check()
        needed = {"n_step": 1, "frame_stack": 1, "action_repeat": 1, "clip_rewards": None, "env_wrappers": ()}
        for key, value in {**needed, "observation_filter": "NoFilter"}.items():
            got = getattr(self, key, value)
            if self.hindsight_goals and got != value and got is not False:
                raise ConfigError(
                    "Rewards of other goals are computed for one step, from goals as the environment returns them.",
                    where=f"config key '{key}' ({type(self).__name__}), with hindsight_goals",
                    got=got,
                    expected=value,
                    fix=f"set {key} to {value!r}, or leave hindsight_goals out",
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
    in_evaluation = {"num_replay_shards": 1}

    num_replay_shards: int = Field(
        default=1, ge=1, description="number of processes with a part of the replay buffer; at most num_workers"
    )
    updates_per_draw: int = Field(
        default=1, ge=1, description="updates whose rows are sampled together; they run in one compiled call"
    )
    learner_queue_size: int = Field(
        default=4,
        ge=1,
        description="largest number of draws that are requested from the shards or wait for the learner; at this "
        "number, sampling pauses while updates are due",
    )
    max_weight_sync_delay: int = Field(
        default=400,
        ge=1,
        description="number of steps of each worker, on average, after which the next update broadcasts the weights",
    )
    worker_epsilon: float = Field(
        default=0.4, ge=0, le=1, description="ε: worker i of N explores with the constant ε^(1 + α · (i - 1)/(N - 1))"
    )
    worker_epsilon_alpha: float = Field(
        default=7.0, ge=0, description="α in the exponent of worker_epsilon: larger values make workers more different"
    )

    def check(self) -> None:
        super().check()
        if self.num_workers > 0:  # without workers there is one buffer in this process
            self.refuse_larger("num_replay_shards", "num_workers")


class EpsilonGreedyFields(ConfigHooks):
    """ε-greedy exploration by a network of action values; see `EpsilonGreedy`."""

    requires = {("initial_epsilon", "epsilon_timesteps", "final_epsilon"): {"epsilon_schedule": None}, **OWN_NETWORKS}

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

    def epsilon(self) -> Schedule:
        """Timestep -> ε; a policy that has learned before does not begin with random actions."""
        points = ((0, self.initial_epsilon), (self.epsilon_timesteps, self.final_epsilon))
        if self.is_pretrained:
            points = ((0, self.final_epsilon),)
        return Schedule(self.epsilon_schedule or points, where="config key 'epsilon_schedule'")


class CopiedTargetFields(FieldGroup):
    """Target networks that become copies at intervals."""

    places = {"target_network_update_freq": ("policy",)}

    target_network_update_freq: int = Field(
        default=500, ge=1, description="updates after which the target networks become copies of the online networks"
    )


class QLearningFields(CopiedTargetFields, EpsilonGreedyFields):
    """Q-learning of discrete actions with a target network and ε-greedy exploration."""

    defaults = {"lr": 5e-4, "grad_clip": 10.0}
    places = {"double_q": ("policy",)}

    double_q: bool = Field(default=True, description="whether the online network chooses the next action in targets")


class RepeatedNoiseFields(FieldGroup):
    """How long exploration keeps its noise; see `RepeatedNoise`."""

    places = {"longest_repeat": ("policy",)}

    longest_repeat: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description="largest number of steps for which exploration keeps its noise; it is kept for k steps with a "
        "probability proportional to 1/k²; 1: new noise at each step",
    )


class ActorCriticFields(HindsightFields, ReplayFields):
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
