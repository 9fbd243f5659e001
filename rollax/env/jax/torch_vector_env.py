"""`TorchVectorEnv`: a vector environment of PyTorch tensors, which pass to JAX and back through DLPack; as a `BaseEnv`.

PyTorch is never imported here: an environment that returns tensors has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import AutoresetMode

from rollax.core import runtime, trees
from rollax.core.spaces import Path, path_text, walk
from rollax.env import checks
from rollax.env.copies import EnvCopies
from rollax.env.jax.jax_env import Outcome
from rollax.env.jax.sub_environments import ByAgent, replaced, to_dtypes
from rollax.env.rows import DEFAULT_AGENT, Rows
from rollax.env.vector.native_vector_env import FINAL_OBS, NativeVectorEnv, stated_autoreset_mode
from rollax.errors import EnvError, text_of


class Received(NamedTuple):
    """The results of a step as arrays of JAX, which may share their memory with the environment's tensors.

    The environment may write into this memory in its next step.

    Args:
        obs: [N, ...] where an episode ended, the first observation of the next episode.
        final_obs: [N, ...] the last observations where an episode ended; None only if no episode ended.
        rewards: [N].
        terminateds, truncateds: [N] bool.
    """

    obs: trees.Tree
    final_obs: trees.Tree | None
    rewards: jax.Array
    terminateds: jax.Array
    truncateds: jax.Array


class TorchVectorEnv(gym.vector.VectorEnv):
    """A simulator whose observations, rewards and flags are PyTorch tensors on the device on which JAX computes.

    Return it from an environment's creator. Policies in JAX then act on the tensors, and learn from them where it is
    possible, without a copy to the host: `step_tensors`. For everything else it is a vector environment in NumPy:
    `reset` and `step`.

    The environment resets a sub-environment in the step that ends its episode, as with `AutoresetMode.SAME_STEP`, and
    returns the last observations in `infos["final_obs"]` or `infos["final_observation"]`, for all sub-environments.

    Args:
        env: the simulator. It has `num_envs`, `single_observation_space`, `single_action_space`, and `reset` and `step`
            as `gymnasium.vector.VectorEnv` has. Actions are tensors in the dtypes of the action space.
    Raises:
        EnvError: an object without these attributes, or with another autoreset mode. In `reset` and `step`: results
            that are not tensors, are on another device, or do not have the shapes and dtypes of the spaces; a last
            observation that is missing.
    """

    def __init__(self, env: Any) -> None:
        runtime.configure_jax()
        self.env = self.as_written = env
        if missing := [name for name in _ATTRIBUTES if not hasattr(env, name)]:
            got = f"{env!r} without {missing}"
            raise EnvError("This is not a vector environment.", "TorchVectorEnv", got).expected(
                f"an environment with {', '.join(_ATTRIBUTES)}", "pass the simulator itself, or add what is missing"
            )
        self.num_envs: int = env.num_envs
        self.single_observation_space, self.single_action_space = env.single_observation_space, env.single_action_space
        self.render_mode = getattr(env, "render_mode", None)
        self.metadata = {**(getattr(env, "metadata", None) or {}), "autoreset_mode": AutoresetMode.SAME_STEP}
        self.spec = getattr(env, "spec", None)
        self._name = checks.env_name(env)
        self._check_mode()
        self._device = jax.local_devices()[0]
        self._sent: Any = None  # the last actions, kept because the simulator may read them until the next step

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict]:
        keywords = {} if options is None else {"options": options}
        obs, infos = checks.check_reset(self.env.reset(seed=seed, **keywords), f"{self._name}, reset()")
        return _on_host(self._observed(obs, "reset()")), _in_numpy(infos)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict]:
        received, infos = self._stepped(jax.tree.map(jnp.asarray, actions))
        if received.final_obs is not None:
            infos = {**infos, FINAL_OBS[0]: received.final_obs}
        obs, _, *outcomes = received
        return _on_host(obs), *map(_on_host, outcomes), _in_numpy(infos)

    def step_tensors(self, actions: trees.Tree) -> Received:
        """Steps all sub-environments with [N, ...] actions of JAX, whose memory the environment may write into."""
        return self._stepped(actions)[0]

    def _stepped(self, actions: trees.Tree) -> tuple[Received, dict]:
        self._sent, tensors = actions, walk(self._tensor, self.single_action_space, actions)
        result = self.env.step(tensors)
        checks.check_step(result, self._name)
        obs, rewards, terminateds, truncateds, infos = result
        flags = [
            self._array(flag, (), "b", f"step(), {name}")
            for flag, name in ((terminateds, "terminated"), (truncateds, "truncated"))
        ]
        final = self._final_obs(infos, terminateds, truncateds)
        reward = self._array(rewards, (), "fiu", "step(), rewards")
        return Received(self._observed(obs, "step()"), final, reward, *flags), infos

    def _final_obs(self, infos: Any, terminateds: Any, truncateds: Any) -> trees.Tree | None:
        final = next((infos[key] for key in FINAL_OBS if key in infos), None)
        if final is not None:
            return self._observed(final, "final_obs")
        if over := (terminateds | truncateds).nonzero().flatten().tolist():  # waits for the device
            what, got = "The last observation of an ended episode is missing.", f"infos with {sorted(map(str, infos))}"
            raise EnvError(what, f"{self._name}, sub-environments {over}", got).expected(
                f"infos[{FINAL_OBS[0]!r}], the observations of all sub-environments before any reset",
                "return them, for example by a subclass that computes observations before it resets; without them "
                "episodes that a time limit ends cannot be bootstrapped",
            )
        return None

    def _observed(self, obs: Any, call: str) -> trees.Tree:
        def leaf(space: gym.Space, path: Path, part: Any) -> jax.Array:
            where = f"{call}{path_text(path)}"
            array = self._array(part, space.shape or (), None, where)
            assert space.dtype is not None
            if not np.can_cast(array.dtype, space.dtype, "same_kind"):
                raise EnvError(
                    "The dtype of the observations cannot be cast safely.", f"{self._name}, {where}", array.dtype
                ).expected(str(space.dtype), "return the dtype of the observation space")
            return array

        try:
            return walk(leaf, self.single_observation_space, obs)
        except (KeyError, IndexError, TypeError) as error:
            what, where = "The observations do not have the structure of their space.", f"{self._name}, {call}"
            raise EnvError(what, where, checks.outline(obs)).expected(
                self.single_observation_space, "correct the observations or the space"
            ) from error

    def _array(self, tensor: Any, shape: tuple[int, ...], kinds: str | None, where: str) -> jax.Array:
        """The tensor [N, *shape] as an array of JAX, without a copy if it is contiguous and of a dtype of JAX."""
        where, torch = f"{self._name}, {where}", sys.modules.get("torch")
        if torch is None or not isinstance(tensor, torch.Tensor):
            raise EnvError("The value is not a PyTorch tensor.", where, checks.outline(tensor)).expected(
                "a torch.Tensor", "return the environment itself from its creator, without TorchVectorEnv"
            )
        try:
            array = jnp.from_dlpack(tensor.contiguous())
        except Exception as error:
            got = f"a tensor on {tensor.device}: {type(error).__name__}: {(text_of(error).splitlines() or [''])[0]}"
            raise EnvError("The tensor cannot be passed to JAX.", where, got).expected(*self._on_device()) from error
        if array.devices() != {self._device}:
            raise EnvError("The tensor is on another device than the policy.", where, str(tensor.device)).expected(
                *self._on_device()
            )
        if array.shape != (self.num_envs, *shape):
            raise EnvError.wrong_shape("The tensor has", where, array.shape, (self.num_envs, *shape)).fix(
                "correct the result or the space"
            )
        if kinds is not None and array.dtype.kind not in kinds:
            expected = "booleans" if kinds == "b" else "real numbers"
            raise EnvError("The tensor has the wrong dtype.", where, tensor.dtype).expected(
                expected, "correct the environment"
            )
        return array

    def _on_device(self) -> tuple[str, str]:
        return (
            f"a tensor on {self._device}",
            f"make the environment with the device on which JAX computes, {self._device.platform!r}; JAX_PLATFORMS and "
            "the installed version of JAX decide which one it is",
        )

    def _tensor(self, space: gym.Space, path: Path, action: jax.Array) -> Any:
        torch: Any = sys.modules["torch"]  # the environment has been reset
        return torch.from_dlpack(action).to(getattr(torch, str(space.dtype)))  # JAX has int32 by default

    def _check_mode(self) -> None:
        mode = stated_autoreset_mode(self.env)
        if mode is not None and AutoresetMode(mode) is not AutoresetMode.SAME_STEP:
            raise EnvError("The autoreset mode is not supported.", f"TorchVectorEnv, {self._name}", mode).expected(
                AutoresetMode.SAME_STEP, "make the environment with this mode"
            )

    def render(self) -> Any:
        return _in_numpy(self.env.render())

    def close(self, **kwargs: Any) -> None:
        self.env.close()


class TorchBaseEnv(NativeVectorEnv):
    """The rows of a `TorchVectorEnv`, in NumPy; `SimulatorSampler` steps it without polls, by `step_on_device`.

    Attributes:
        agents: the id of the only agent of each sub-environment.
        running: empty, because the state is in the simulator; None before the first reset.
    """

    env: TorchVectorEnv
    in_jax = True
    agents = (DEFAULT_AGENT,)

    def __init__(self, copies: EnvCopies) -> None:
        super().__init__(copies)
        self.running: tuple[()] | None = None

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> Rows | None:
        rows = super().reset_rows(env_index, seeds)
        self.running = ()
        return rows

    def step_on_device(self, actions: ByAgent) -> Received:
        """Steps all sub-environments with [N, ...] actions; EnvError if the environment raises."""
        with checks.failures_named("step()", f"{self.name}, one of its sub-environments"):
            return self.env.step_tensors(actions[DEFAULT_AGENT])

    # Traced by JAX.

    def traced_outcome(self, received: Received) -> tuple[ByAgent, Outcome]:
        """The current observations, in new episodes the first ones, and the outcome of the step.

        The outcome has a `reward` of shape [N, 1], and no state.
        """
        space, terminated, truncated = self.env.single_observation_space, received.terminateds, received.truncateds
        first = last = to_dtypes(space, received.obs)
        if received.final_obs is not None:
            last = replaced(first, terminated | truncated, to_dtypes(space, received.final_obs))
        reward = received.rewards.astype(jnp.float32)[:, None]
        return {DEFAULT_AGENT: first}, Outcome((), {DEFAULT_AGENT: last}, reward, terminated, truncated)

    def where(self, env_index: int, agent: str) -> str:
        return self._where(env_index)


_ATTRIBUTES = ("num_envs", "single_observation_space", "single_action_space", "reset", "step")


def _on_host(tree: trees.Tree) -> trees.Tree:
    """Copies in NumPy: the environment may write into its tensors in the next step."""
    return trees.tree_map(np.array, tree)


def _in_numpy(value: Any) -> Any:
    """Infos or frames, with tensors and arrays of JAX as arrays of NumPy."""
    if isinstance(value, dict):
        return {name: _in_numpy(part) for name, part in value.items()}
    if isinstance(value, jax.Array):
        return np.array(value)
    torch = sys.modules.get("torch")
    return value.detach().cpu().numpy().copy() if torch is not None and isinstance(value, torch.Tensor) else value
