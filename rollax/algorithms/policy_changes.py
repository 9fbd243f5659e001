"""Changes of the set of policies of a trainer, while it runs and when a checkpoint is restored.

A trainer whose policies change is made again from its changed config, and gets its own state back, as if it had been
saved and opened with `from_checkpoint(..., multiagent=...)`. So workers, optimizers, replay shards and evaluation do
not have to change in place, and a run goes on in the same way before and after it is saved.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollax.batch import DEFAULT_POLICY
from rollax.config import TrainerConfig
from rollax.errors import ConfigError, PolicyError
from rollax.policy.policy_spec import PolicySpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollax.algorithms.trainer import Trainer

log = logging.getLogger("rollax.algorithms")
_OWN_RANDOMNESS = ("acting", "learning_rng")
"""The parts of a policy's state that are not copied: equal random numbers would correlate the two policies."""


def add(
    trainer: Trainer,
    policy_id: str,
    spec: Any,
    *,
    copy_of: str | None,
    trained: bool,
    policy_mapping_fn: Callable[..., str] | None,
) -> None:
    """Adds a policy; see `Trainer.add_policy`."""
    where, policies = f"{type(trainer).__name__}.add_policy(policy_id=...)", trainer.worker.policies
    if not isinstance(policy_id, str):
        raise PolicyError("The id of a policy is not a string.", where, policy_id).expected("a string")
    if policy_id in policies:
        raise PolicyError("The trainer has a policy of this id.", where, policy_id).expected(
            f"an id other than {list(policies)}",
            "choose another id; set_weights({id: weights}) changes an existing policy",
        )
    if copy_of is not None:
        trainer.get_policy(copy_of)
    PolicySpec.of(spec, policy_id)  # raises for a wrong spec
    to_train = _to_train(trainer)
    _remake(
        trainer,
        {**_specs(trainer), policy_id: spec},
        (*to_train, policy_id) if trained else to_train,
        policy_mapping_fn,
        {} if copy_of is None else {policy_id: copy_of},
    )


def remove(trainer: Trainer, policy_id: str, *, policy_mapping_fn: Callable[..., str] | None) -> None:
    """Removes a policy; see `Trainer.remove_policy`."""
    trainer.get_policy(policy_id)
    specs = {other: spec for other, spec in _specs(trainer).items() if other != policy_id}
    if not specs:
        raise ConfigError(
            "The only policy of a trainer cannot be removed.", f"{type(trainer).__name__}.remove_policy", policy_id
        ).expected("a trainer with several policies", "add another policy before: add_policy(policy_id, ...)")
    _remake(trainer, specs, tuple(other for other in _to_train(trainer) if other != policy_id), policy_mapping_fn, {})


def of_policies(state: Mapping[str, Any], policy_ids: Collection[str]) -> dict[str, Any]:
    """Returns a trainer's state, as from `Trainer.get_state`, with only the policies `policy_ids`.

    The optimizer's part is returned unchanged: optimizers skip the entries of policies that they do not train.
    """

    def some(of_policy: Mapping[str, Any]) -> dict[str, Any]:
        return {policy_id: values for policy_id, values in of_policy.items() if policy_id in policy_ids}

    workers = state["workers"]
    sampling = [
        {**one, "acting": some(one["acting"])} if "acting" in (one or ()) else one for one in workers["sampling"]
    ]
    parts = {name: some(workers[name]) for name in ("policies", "filters")}
    return {**state, "workers": {**workers, **parts, "sampling": sampling}}


def warn_of_others(stored: Collection[str], policy_ids: Collection[str], path: Path) -> None:
    """Warns of policies that only the checkpoint has, and of policies that only the trainer has."""
    begun = [policy_id for policy_id in policy_ids if policy_id not in stored]
    dropped = [policy_id for policy_id in stored if policy_id not in policy_ids]
    if begun:
        log.warning(
            "Policies %s are not in the checkpoint: they keep their weights, which are untrained in a new trainer: %s",
            begun,
            path,
        )
    if dropped:
        log.warning("Policies %s of the checkpoint are dropped: this trainer does not have them: %s", dropped, path)


def _specs(trainer: Trainer) -> dict[str, Any]:
    return dict(trainer.config.multiagent.policies) or {DEFAULT_POLICY: None}


def _to_train(trainer: Trainer) -> tuple[str, ...]:
    to_train = trainer.config.multiagent.policies_to_train
    return tuple(trainer.worker.policies) if to_train is None else to_train


def _remake(
    trainer: Trainer,
    specs: Mapping[str, Any],
    to_train: tuple[str, ...],
    policy_mapping_fn: Callable[..., str] | None,
    copies: Mapping[str, str],
) -> None:
    """Makes the trainer again with other policies; `copies`: id of a new policy -> id of the policy to copy."""
    before, multiagent = trainer.config, trainer.config.multiagent
    changes: dict[str, Any] = {"policies": specs, "policies_to_train": None if {*to_train} == {*specs} else to_train}
    if policy_mapping_fn is not None:
        changes["policy_mapping_fn"] = policy_mapping_fn
    values = {name: getattr(multiagent, name) for name in type(multiagent).model_fields}
    config = before.changed(multiagent={**values, **changes})  # raises before anything has changed
    state = _whole_state(trainer)
    try:
        _begin_again(trainer, config, of_policies(state, specs), copies)
    except BaseException:
        _begin_again(trainer, before, state, {})
        raise


def _whole_state(trainer: Trainer) -> dict[str, Any]:
    """The trainer's state with its replay buffers, which a checkpoint may leave out."""
    optimizer, config = trainer.optimizer, trainer.optimizer.config
    try:
        if hasattr(config, "store_buffer_in_checkpoints"):
            optimizer.config = config.model_copy(update={"store_buffer_in_checkpoints": True})
        return trainer.get_state()
    finally:
        optimizer.config = config


def _begin_again(trainer: Trainer, config: TrainerConfig, state: Mapping[str, Any], copies: Mapping[str, str]) -> None:
    with _kept(trainer):
        trainer.stop()
        trainer.__init__(config=config)
        workers, made = state["workers"], trainer.worker.policies
        policies, filters = dict(workers["policies"]), dict(workers["filters"])
        for policy_id, source in copies.items():
            own = made[policy_id].get_state()
            policies[policy_id] = {**policies[source], **{name: own[name] for name in _OWN_RANDOMNESS if name in own}}
            filters[policy_id] = filters[source]
        trainer.set_state({**state, "workers": {**workers, "policies": policies, "filters": filters}})


@contextmanager
def _kept(trainer: Trainer) -> Iterator[None]:
    """Keeps what a checkpoint does not hold, such as the running calls, the step limit and the run folder."""
    running, interval, recorded_in = trainer._running, trainer._evaluation_interval, trainer.recorded_in
    stop_at, episodes = trainer.optimizer.stop_at, trainer.episodes
    try:
        yield
    finally:
        running.stopped = False
        trainer._running, trainer._evaluation_interval, trainer.recorded_in = running, interval, recorded_in
        trainer.optimizer.stop_at, trainer.episodes = stop_at, episodes
