"""The fields of algorithms with an actor and critics that learn from replayed experience: DDPG, TD3 and SAC."""

from __future__ import annotations

from pydantic import Field

from rollax.config.replay import ReplayFields
from rollax.config.trainer import SchedulePoints
from rollax.models.config import ModelConfig


class ActorCriticFields(ReplayFields):
    """Step sizes of the parts, how targets follow, and how actions are perturbed."""

    train_batch_size: int = Field(default=256, ge=1, description="rows of one update")
    rollout_fragment_length: int = Field(
        default=8,
        ge=1,
        description="env steps of each sub-environment at a time (RLlib: 1); what updates they make due are one call",
    )
    timesteps_per_iteration: int = Field(default=1000, ge=0, description="steps of one train() at least")
    training_intensity: float = Field(
        default=1.0, gt=0, description="updates for each step sampled; each update learns from train_batch_size rows"
    )
    learning_starts: int = Field(default=1500, ge=0, description="steps before the first update")
    grad_clip: float | None = Field(
        default=None, gt=0, description="bound on the norm of the gradient of each part of the model; None for none"
    )
    model: ModelConfig = Field(
        default=ModelConfig(fcnet_hiddens=(256, 256), fcnet_activation="relu"),
        description="the layers of actor and critics, 256×256 relu; actions join the encoded observation before them. "
        "One that is given is taken as a whole: name its fcnet_activation too",
    )
    actor_lr: float | None = Field(default=None, ge=0, description="step size of the actor; None: lr")
    critic_lr: float | None = Field(default=None, ge=0, description="step size of the critics; None: lr")
    tau: float = Field(
        default=5e-3, gt=0, le=1, description="τ, the part of the way that targets go towards what they follow"
    )
    random_steps: int = Field(default=1000, ge=0, description="steps at first whose actions are uniformly random")
    noise_scale: float = Field(
        default=0.1,
        ge=0,
        description="deviation of GaussianNoise and factor of OrnsteinUhlenbeckNoise, in units of half an action's "
        "range",
    )
    noise_scale_schedule: SchedulePoints | None = Field(
        default=None, description="[[timestep, noise_scale], ...], linear in between; takes the place of noise_scale"
    )
    ou_theta: float = Field(
        default=0.15, ge=0, le=1, description="θ of OrnsteinUhlenbeckNoise: how fast it falls back to 0"
    )
    ou_sigma: float = Field(
        default=0.2, ge=0, description="σ of OrnsteinUhlenbeckNoise: deviation of what each step adds"
    )
