"""Which buffers the experience of a policy is kept in, and how much of it an update learns from."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rollax.errors import ConfigError
from rollax.policy.policy import Policy
from rollax.replay.frames import StackedFrames
from rollax.replay.prioritized import PrioritizedReplay
from rollax.replay.shard import BufferOfSize
from rollax.replay.uniform import UniformReplay


def uniform_buffers(policy: Policy) -> BufferOfSize:
    """What makes buffers that are drawn from uniformly, with the policy's γ and single steps."""
    return _simple(UniformReplay, policy)


def prioritized_buffers(policy: Policy) -> BufferOfSize:
    """What makes buffers that are drawn from by priority, with the policy's γ and single steps."""
    return _simple(PrioritizedReplay, policy)


def buffers_of(policy: Policy, config: Any, *columns: str) -> BufferOfSize:
    """What makes the buffers of a policy, from a config with `ReplayFields`.

    Args:
        policy: it.
        config: the trainer's.
        columns: that are kept beside those that the policy names.
    """
    settings: dict[str, Any] = {
        "gamma": policy.config.gamma,
        "n_step": policy.config.n_step,
        "where": _where(policy),
        "columns": (*columns, *_of_sequences(policy)),
    }
    if config.frame_stack_axis is not None:
        settings["frames"] = _stacked_frames(policy, config.frame_stack_axis)
    if not config.prioritized_replay:
        return partial(UniformReplay, **settings)
    alpha, eps = config.prioritized_replay_alpha, config.prioritized_replay_eps
    return partial(PrioritizedReplay, alpha=alpha, eps=eps, **settings)


def rows_of_update(policy: Policy, train_batch_size: int) -> int:
    """Rows of one update: the policy's own number, where it was made with one, or that of the optimizer."""
    return getattr(policy, "sgd_minibatch_size", None) or train_batch_size


def _stacked_frames(policy: Policy, axis: int) -> StackedFrames:
    shape = policy.observation_space.shape
    if not shape or not -len(shape) <= axis < len(shape):
        raise ConfigError(
            "Observations that are no stacks of images along this axis.",
            where="config key 'frame_stack_axis'",
            got=f"{axis}, for {policy.observation_space}",
            expected="an axis of a Box",
            fix="leave it out for observations that are not stacked",
        )
    return StackedFrames(shape[axis], axis)


def _simple(kind: type[UniformReplay], policy: Policy) -> BufferOfSize:
    config = policy.config
    gamma = config.get("gamma", 0.99) if isinstance(config, Mapping) else config.gamma
    return partial(kind, gamma=gamma, columns=_of_sequences(policy), where=_where(policy))


def _of_sequences(policy: Policy) -> tuple[str, ...]:
    """The further columns that a policy with memory wants to be kept."""
    return () if policy.replayed is None else policy.replayed.columns


def _where(policy: Policy) -> str:
    return f"replay buffer of policy {policy.name!r}"
