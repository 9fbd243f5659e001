"""The replay buffers of a policy, and the rows of one update."""

from __future__ import annotations

from functools import partial
from typing import Any

from rollax.errors import ConfigError, PolicyError
from rollax.optimizers.optimizer import inexact
from rollax.policy.policy import Policy
from rollax.policy.spec import PolicySpec
from rollax.replay.frames import StackedFrames
from rollax.replay.prioritized import PrioritizedReplay
from rollax.replay.shard import BufferOfSize
from rollax.replay.uniform import UniformReplay

_OF_ALL_POLICIES = (
    "buffer_size",
    "learning_starts",
    "training_intensity",
    "prioritized_replay",
    "prioritized_replay_alpha",
    "prioritized_replay_beta",
    "prioritized_replay_eps",
    "frame_stack_axis",
    "store_buffer_in_checkpoints",
)


def buffers_of(policy: Policy, config: Any, *columns: str) -> BufferOfSize:
    """Returns a factory of the buffers of a policy, from a config with `ReplayFields`.

    Args:
        policy: it.
        config: the trainer's.
        columns: that are kept beside those that the policy names.
    Raises:
        PolicyError: the policy's config does not say over how many steps it learns.
        ConfigError: its observations are not stacked as the config says.
    """
    if not hasattr(policy.config, "n_step"):
        raise PolicyError(
            "A policy that cannot learn from replayed experience is among those to train.",
            where=f"policy {policy.name!r}, class {type(policy).__name__}, config key 'multiagent.policies_to_train'",
            got=f"a {type(policy.config).__name__}, which has no 'n_step'",
            expected="a policy whose config has the keys of replay: one of DQN, SAC or TD3, for instance",
            fix="leave it out of policies_to_train, and train it in a trainer of its own algorithm "
            "(docs/two-trainers.md)",
        )
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
    """Rows of one update: the policy's own number if it has one, else the optimizer's."""
    return policy.minibatch_size or train_batch_size


def learns_in_minibatches(policy: Policy) -> bool:
    """Whether `learn_on_batch` makes one update per `rows_of_update` rows; other policies make one of all rows."""
    return policy.minibatch_size is not None


def check_keys_of_policies(config: Any, *further: str) -> None:
    """Refuses changes of a policy's spec that would do nothing, because all policies that learn share the value.

    Args:
        config: the trainer's, with `ReplayFields`.
        further: keys of its own that are shared too.
    Raises:
        ConfigError: a spec has such a key, with another value than the trainer's.
    """
    trained = config.multiagent.policies_to_train
    for policy_id, given in config.multiagent.policies.items():
        changes = PolicySpec.of(given, policy_id).config if trained is None or policy_id in trained else {}
        for key in (*_OF_ALL_POLICIES, *further):
            if key in changes and changes[key] != getattr(config, key):
                raise ConfigError(
                    "A policy's spec changes a key that has one value for all policies of a trainer.",
                    where=f"multiagent.policies[{policy_id!r}], config key {key!r}",
                    got=changes[key],
                    expected=f"{getattr(config, key)!r}, as for the trainer, or no such key",
                    fix=f"set {key} in the trainer's config; what may differ is n_step, gamma, train_batch_size and "
                    "what else only the policy reads",
                )


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


def _of_sequences(policy: Policy) -> tuple[str, ...]:
    """The further columns that a recurrent policy requires."""
    return () if policy.replayed is None else policy.replayed.columns


def _where(policy: Policy) -> str:
    return f"replay buffer of policy {policy.name!r}"


def inexact_without_buffers() -> ConfigError:
    """The error for an exact save without the buffers."""
    return inexact(
        got="store_buffer_in_checkpoints=False: a restored run begins with empty buffers",
        expected="store_buffer_in_checkpoints=True",
    )
