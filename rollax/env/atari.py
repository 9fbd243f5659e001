"""Atari games: ids that begin with `ALE/`, preprocessed and stacked.

Single environments and the native vector environment give the same task: observations [stack, height, width] of uint8
(with colours, [stack, height, width, 3]).
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rollax.env.registry import EnvContext
from rollax.env.vector import VectorEnv
from rollax.errors import ConfigError, nearest, not_installed

_NOOP, _FIRE = 0, 1


class AtariConfig(BaseModel):
    """The keys of `env_config` for an Atari game. Sticky actions as in Machado et al. (2018), arXiv:1709.06009."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    frame_skip: int = Field(
        4, ge=1, description="number of frames for which an action is repeated; an image is the maximum of the last two"
    )
    screen_size: int | tuple[int, int] = Field(84, description="side of the square image, or (width, height)")
    grayscale: bool = Field(True, description="one channel instead of three")
    stack: int = Field(4, ge=1, description="number of latest images in an observation")
    noop_max: int = Field(30, ge=0, description="largest number of frames without an action at the start of an episode")
    fire_reset: bool = Field(True, description="press FIRE at the start of an episode, in games with this action")
    terminal_on_life_loss: bool = Field(False, description="whether a lost life ends the episode")
    clip_rewards: bool = Field(
        False,
        description="clip each reward to [-1, 1]; the reported scores then sum clipped rewards, unlike with the "
        "trainer's clip_rewards",
    )
    repeat_action_probability: float | None = Field(
        None, ge=0, le=1, description="probability of sticky actions; None: that of the registered game"
    )
    full_action_space: bool = Field(False, description="use all 18 actions, not only those of the game")
    max_num_frames_per_episode: int = Field(108_000, ge=1, description="the time limit, in frames")
    mode: int | None = Field(None, description="variant of the game's rules; a value selects single environments")
    difficulty: int | None = Field(None, description="difficulty of the game; a value selects single environments")
    render_mode: str | None = Field(None, description='"rgb_array" or "human"; a value selects single environments')
    native_vector: bool = Field(
        True, description="use ale-py's vector environment, unless another key requires single environments"
    )
    num_threads: int = Field(0, ge=0, description="threads of the native vector environment; 0: ale-py's default")

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of an image."""
        return self.screen_size if isinstance(self.screen_size, tuple) else (self.screen_size, self.screen_size)

    @property
    def needs_single_envs(self) -> bool:
        """True if `native_vector` is False, or if ale-py's vector env does not support the config."""
        return not self.native_vector or any(x is not None for x in (self.mode, self.difficulty, self.render_mode))

    def game_options(self) -> dict[str, Any]:
        """The options that have the same name in single and vector environments."""
        names = ("repeat_action_probability", "full_action_space", "max_num_frames_per_episode")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


class AtariCreator:
    """Makes environments of one Atari game, such as "ALE/Pong-v5"."""

    def __init__(self, env_id: str) -> None:
        self.env_id = env_id

    def __call__(self, context: EnvContext) -> gym.Env:
        """One environment, with Gymnasium's own preprocessing and frame stacking."""
        config = self._config(context)
        _quiet()
        single = {name: getattr(config, name) for name in ("mode", "difficulty", "render_mode")}
        env: gym.Env = gym.make(self.env_id, frameskip=1, disable_env_checker=True, **single, **config.game_options())
        waits = env.unwrapped.get_action_meanings()[_FIRE:][:1] == ["FIRE"]  # type: ignore[attr-defined]
        fires = config.fire_reset and waits
        if fires:
            env = _FireReset(env, config.noop_max)
        env = gym.wrappers.AtariPreprocessing(
            env,
            noop_max=0 if fires else config.noop_max,
            frame_skip=config.frame_skip,
            screen_size=config.size,
            terminal_on_life_loss=config.terminal_on_life_loss,
            grayscale_obs=config.grayscale,
        )
        if config.clip_rewards:
            env = gym.wrappers.ClipReward(env, -1.0, 1.0)
        # Frames before the first one are black, as in ale-py's vector environment, so that both give the same task.
        return gym.wrappers.FrameStackObservation(env, config.stack, padding_type="zero")

    def make_vector(self, context: EnvContext, num_envs: int) -> gym.vector.VectorEnv | VectorEnv:
        """`num_envs` copies: ale-py's own vector env, or single environments if the config requires them."""
        config = self._config(context)
        if config.needs_single_envs or gym.spec(self.env_id).vector_entry_point is None:
            return VectorEnv.wrap(lambda index: self(context.at(index)), num_envs=num_envs)
        _quiet()
        width, height = config.size
        return gym.make_vec(
            self.env_id,
            num_envs,
            vectorization_mode="vector_entry_point",
            img_width=width,
            img_height=height,
            grayscale=config.grayscale,
            stack_num=config.stack,
            frameskip=config.frame_skip,
            noop_max=config.noop_max,
            episodic_life=config.terminal_on_life_loss,
            reward_clipping=config.clip_rewards,
            use_fire_reset=config.fire_reset,
            num_threads=config.num_threads,
            **config.game_options(),
        )

    def _config(self, context: EnvContext) -> AtariConfig:
        try:
            # JSON and YAML have no tuples.
            return AtariConfig.model_validate({k: tuple(v) if isinstance(v, list) else v for k, v in context.items()})
        except ValidationError as error:
            problem = error.errors()[0]
            key = str(problem["loc"][0])
            unknown = problem["type"] == "extra_forbidden"
            raise ConfigError(
                "Unknown key of an Atari game." if unknown else "A value for an Atari game is invalid.",
                f"env_config, env={self.env_id!r}, key '{key}'",
                problem["input"],
                expected=f"one of {', '.join(AtariConfig.model_fields)}" if unknown else problem["msg"],
            ).fix(nearest(key, AtariConfig.model_fields) if unknown else "leave the key out, or correct it") from None


class _FireReset(gym.Wrapper):
    """Begins an episode with 1 to `noop_max` frames without an action (none for 0) and one FIRE."""

    def __init__(self, env: gym.Env, noop_max: int) -> None:
        super().__init__(env)
        self._noop_max = noop_max

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        noops = int(self.unwrapped.np_random.integers(1, self._noop_max + 1)) if self._noop_max else 0
        for action in (*[_NOOP] * noops, _FIRE):
            obs, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        return obs, info


def register_games() -> None:
    """Registers the ids of ale-py with Gymnasium; `ConfigError` if ale-py is not installed."""
    try:
        import ale_py
    except ImportError as error:
        where = "an env id that begins with ALE/"
        raise not_installed("Atari", error, where=where, package="ale-py", extra="atari") from error
    gym.register_envs(ale_py)


def _quiet() -> None:
    """Keeps the emulator from printing its version for every environment."""
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
