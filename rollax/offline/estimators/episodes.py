"""`LoggedEpisodes`: recorded trajectories as flat rows, checked for estimates."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from gymnasium import Space

from rollax.batch import SampleBatch
from rollax.core import trees
from rollax.core.memory import available_memory_bytes, gib
from rollax.core.spaces import ACTION_MASK, in_dtypes
from rollax.errors import ConfigError, DatasetError
from rollax.offline.dataset import ENV_ACTIONS, Continuations, DatasetReader, RecordedTrajectory
from rollax.offline.estimators.importance import starts_of
from rollax.offline.value_rules import RecordedChecks
from rollax.policy.mask_checks import has_mask
from rollax.rollout.actions import ActionMap
from rollax.rollout.policy_runner import PolicyRunner

MOST_CUT = 0.1
"""The largest share of cut trajectories that are left out with a warning; more would bias the estimates."""

_RECORD_WHOLE = "record whole episodes: `rollax record` or batch_mode='complete_episodes'"
_LARGEST_LOGP = 1e-3  # a probability of 1, with rounding errors
_WITHOUT_LOGP = (
    "use 'dm', which needs none; or estimate_policy(behaviour='fitted'), which fits a model of the behaviour policy"
)
_READ = frozenset({SampleBatch.OBS, SampleBatch.ACTIONS, ENV_ACTIONS, SampleBatch.REWARDS, SampleBatch.ACTION_LOGP})
_SAME = 1e-4  # the largest difference of equal actions, in the scale of a policy that acts in [-1, 1]


@dataclass(frozen=True, eq=False)
class LoggedEpisodes:
    """n recorded trajectories with N rows in all, one after another; each agent of an episode has its own trajectory.

    Attributes:
        obs: columns [N, ...] of raw observations.
        last_obs: columns [n, ...] of the observation after the last action of each trajectory.
        actions: columns [N, ...], in the scale of the policy.
        rewards: [N] float64.
        lengths: [n] number of steps of each trajectory.
        terminated: [n] false if the trajectory was truncated, as by a time limit.
        behaviour_logp: [N] log μ(a_t | s_t), a density of `actions`; NaN where unknown; None if the log has none.
        where: the origin of the data, for errors.
        left_out: the number of other trajectories in the data, which were cut or continue a cut one.
        episode_numbers: [n] numbers from 0 on, equal for the agents of an episode; None: one agent per episode.
    """

    obs: trees.Tree
    last_obs: trees.Tree
    actions: trees.Tree
    rewards: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    behaviour_logp: np.ndarray | None
    where: str
    left_out: int = 0
    episode_numbers: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def groups(self) -> np.ndarray:
        """[n] the episode number of each trajectory: trajectories of one episode are not independent."""
        return np.arange(len(self)) if self.episode_numbers is None else self.episode_numbers

    @classmethod
    def of(
        cls, reader: DatasetReader, runner: PolicyRunner, *, policy_id: str | None = None, drop_cut: bool = False
    ) -> LoggedEpisodes:
        """The trajectories of a data set for estimates of a policy.

        Args:
            policy_id: the policy in the data whose trajectories are read; None: the only policy, or, if there are
                several, the id of the evaluated policy.
            drop_cut: whether any number of cut trajectories and continuations may be left out; otherwise at most the
                share `MOST_CUT` of all trajectories, because a run that records (`output`) ends in the middle of its
                last episodes.
        Raises:
            ConfigError: the trajectories are larger than half of the memory.
            DatasetError: no whole trajectory of this policy id, too many cut ones, or actions in another scale.
            SpaceError, ShapeError, NonFiniteError, PolicyError, DatasetError: other spaces, or impossible values.
        """
        known, name = list(reader.observation_spaces), runner.policy.name
        wanted = policy_id or (known[0] if len(known) == 1 else name)
        others = set(known) - {wanted} if wanted not in known else set()

        def estimated(agent_id: Hashable, recorded: str) -> str | None:
            if recorded != wanted:
                others.add(recorded)
            return name if recorded == wanted else None

        found = [] if others else trajectories_of(reader, {name: runner}, estimated, "data of estimate_policy")[name]
        if not found and others:
            raise DatasetError.unknown("policy of the data set", wanted, sorted(others), "policy_id")
        return cls.of_trajectories(found, reader, runner, policy_id=wanted, drop_cut=drop_cut)

    @classmethod
    def of_trajectories(
        cls,
        found: list[RecordedTrajectory],
        reader: DatasetReader,
        runner: PolicyRunner,
        *,
        policy_id: str,
        drop_cut: bool,
    ) -> LoggedEpisodes:
        """As `of`, from trajectories of a data set that has the spaces of the policy."""
        whole = _whole(found, policy_id, drop_cut)
        obs, actions, rewards = _checked_columns(whole, reader, runner)
        lengths = np.array(list(map(len, whole)))
        last = np.cumsum(lengths + 1) - 1
        followed = np.ones(len(rewards) + len(whole), np.bool_)
        followed[last] = False
        numbers: dict[str, int] = {}
        return cls(
            obs=trees.index(obs, followed),
            last_obs=_with_choices(trees.index(obs, last), runner),
            actions=actions,
            rewards=rewards,
            lengths=lengths,
            terminated=np.array([one.terminated for one in whole]),
            behaviour_logp=_behaviour_logp(whole, actions, reader, runner),
            where=f"data set of {runner.policy.name!r}",
            left_out=len(found) - len(whole),
            episode_numbers=np.array([numbers.setdefault(one.episode_id, len(numbers)) for one in whole]),
        )

    def chosen(self, numbers: Sequence[int] | np.ndarray) -> LoggedEpisodes:
        """The trajectories with these numbers, in this order."""
        numbers = np.asarray(numbers, np.int64)
        starts, lengths = starts_of(self.lengths).tolist(), self.lengths.tolist()
        rows = np.concatenate([np.arange(starts[i], starts[i] + lengths[i]) for i in numbers.tolist()])
        logp = self.behaviour_logp
        return LoggedEpisodes(
            obs=trees.index(self.obs, rows),
            last_obs=trees.index(self.last_obs, numbers),
            actions=trees.index(self.actions, rows),
            rewards=self.rewards[rows],
            lengths=self.lengths[numbers],
            terminated=self.terminated[numbers],
            behaviour_logp=None if logp is None else logp[rows],
            where=self.where,
            episode_numbers=np.unique(self.groups[numbers], return_inverse=True)[1],
        )

    def following(self) -> trees.Tree:
        """Columns [N, ...] of the observation after each row."""
        next_rows = np.arange(len(self.rewards)) + 1
        next_rows[np.cumsum(self.lengths) - 1] = len(self.rewards) + np.arange(len(self))
        return trees.index(trees.concat([self.obs, self.last_obs]), next_rows)

    def discounts(self, gamma: float) -> np.ndarray:
        """[N] γ, and 0 at the last row of a terminated trajectory."""
        discounts = np.full(len(self.rewards), gamma)
        discounts[(np.cumsum(self.lengths) - 1)[self.terminated]] = 0.0
        return discounts

    def require_logp(self) -> np.ndarray:
        """`behaviour_logp`; DatasetError if the log has none, or lacks the log-probability of some actions."""
        logp = self.behaviour_logp
        if logp is None:
            what = "The data set does not contain the log-probabilities of its actions."
            raise DatasetError(what, self.where, "no column 'action_logp', or not in every file").expected(
                "action_logp of every action, under the policy that chose it",
                f"record with output= or `rollax record` from a policy with an action distribution; or {_WITHOUT_LOGP}",
            )
        if unknown := int(np.count_nonzero(~np.isfinite(logp))):
            what = "The data set has actions whose probability is unknown."
            got = f"{unknown} of {len(logp)} values of action_logp are NaN or infinite"
            expected = "finite numbers; actions that an environment logged, or that were clipped to a bound, have none"
            raise DatasetError(what, self.where, got, expected=expected, fix=_WITHOUT_LOGP)
        discrete = all(leaf.dtype.kind in "iub" for leaf in trees.leaves(self.actions))
        if discrete and (largest := float(logp.max(initial=-np.inf))) > _LARGEST_LOGP:
            what = "The data set has log-probabilities of discrete actions above 0."
            fix = "write log(p) in place of p"
            raise DatasetError(what, self.where, f"action_logp up to {largest:.3g}", fix=fix)
        return logp


def left_out_warning(episodes: LoggedEpisodes) -> str:
    """The warning about cut trajectories, whose returns are unknown."""
    total = len(episodes) + episodes.left_out
    return (
        f"{episodes.left_out} of {total} trajectories lack their beginning or end and are left out, which favours "
        "short episodes"
    )


def trajectories_of(
    reader: DatasetReader,
    runners: Mapping[str, PolicyRunner],
    estimated: Callable[[Hashable, str], str | None],
    where: str,
) -> dict[str, list[RecordedTrajectory]]:
    """Policy id -> the trajectories from which the policy is estimated, with the columns that estimates read.

    `estimated` maps (agent id, recorded policy id) to the policy to estimate.

    Raises:
        DatasetError, SpaceError: the data cannot be read, or a policy has other spaces.
        ConfigError: the trajectories are larger than half of the memory.
    """
    found: dict[str, list[RecordedTrajectory]] = {policy_id: [] for policy_id in runners}
    checks = {policy_id: RecordedChecks(runner.policy) for policy_id, runner in runners.items()}
    size, limit = 0, available_memory_bytes() // 2
    policy_ids: dict[tuple[Hashable, str], str | None] = {}
    for trajectory in reader.trajectories():
        who = trajectory.agent_id, trajectory.policy_id
        if who not in policy_ids:
            policy_ids[who] = estimated(*who)
        policy_id = policy_ids[who]
        if policy_id not in found or not len(trajectory):
            continue
        checks[policy_id].spaces(trajectory, reader)
        columns = {name: column for name, column in trajectory.columns.items() if name in _READ}
        size += sum(leaf.nbytes for leaf in trees.leaves(columns))
        if size > limit:
            what, fix = "The data for estimates needs more than half of the memory.", "estimate from a part of the data"
            raise ConfigError(what, where, f"more than {gib(size)}", expected=f"at most {gib(limit)}", fix=fix)
        found[policy_id].append(replace(trajectory, columns=columns))
    return found


def _whole(found: list[RecordedTrajectory], policy_id: str, drop_cut: bool) -> list[RecordedTrajectory]:
    """The trajectories that were recorded from their beginning to their end; DatasetError if there are too few."""
    continues = Continuations()
    whole = [one for one in found if not continues(one) and not one.cut]
    count = len(found) - len(whole)
    if count > MOST_CUT * len(found) and not drop_cut:
        first = next(one for one in found if one.cut)
        raise DatasetError(
            "Too many trajectories were not recorded to their end, so their returns are unknown.",
            f"{first.where}: agent {first.agent_id!r} of episode {first.episode_id!r}",
            f"{count} of {len(found)} trajectories are neither terminated nor truncated, or continue one such",
        ).expected(
            f"whole trajectories, and at most {MOST_CUT:.0%} others, which are left out",
            f"{_RECORD_WHOLE}; or drop these with drop_cut=True (--drop-cut), which favours short episodes",
        )
    if not whole:
        what, got = "The data set has no whole trajectory of this policy.", f"{len(found)} trajectories, all cut"
        expected = "at least one that terminated or was truncated"
        raise DatasetError(what, f"policy {policy_id!r}", got, expected=expected, fix=_RECORD_WHOLE)
    return whole


def _checked_columns(
    whole: list[RecordedTrajectory], reader: DatasetReader, runner: PolicyRunner
) -> tuple[trees.Tree, trees.Tree, np.ndarray]:
    """All observations (also after the last steps), the actions in the policy's scale, and the rewards."""
    checks, space = RecordedChecks(runner.policy), runner.policy.observation_space
    for one in whole:
        checks.shapes(one)
    obs = trees.concat([in_dtypes(space, one.columns[SampleBatch.OBS]) for one in whole])
    actions = trees.concat([one.columns[SampleBatch.ACTIONS] for one in whole])
    if reader.actions_of == "environment":
        actions = runner.action_map.to_policy(actions)
    if reader.actions_of == "policy":
        received = [one.columns.get(ENV_ACTIONS) for one in whole]
        known = all(part is not None for part in received)
        _check_scale(actions, trees.concat(received) if known else None, reader, runner)
    rewards = np.concatenate([np.asarray(one.columns[SampleBatch.REWARDS], np.float64) for one in whole])
    checks.values(obs, actions, rewards, whole)
    return obs, actions, rewards


def _with_choices(last_obs: trees.Tree, runner: PolicyRunner) -> trees.Tree:
    """The last observations; an action mask of zeros, valid because no action follows, becomes a mask of ones."""
    if not has_mask(runner.policy.observation_space):
        return last_obs
    mask = np.asarray(last_obs[ACTION_MASK])
    return {**last_obs, ACTION_MASK: np.where(mask.any(axis=1, keepdims=True), mask, np.ones_like(mask))}


def _behaviour_logp(
    whole: list[RecordedTrajectory], actions: trees.Tree, reader: DatasetReader, runner: PolicyRunner
) -> np.ndarray | None:
    """[N] log densities of the actions in the policy's scale, NaN where they are unknown; None if the log has none."""
    logged = [one.columns.get(SampleBatch.ACTION_LOGP) for one in whole]
    if any(logp is None for logp in logged):
        return None
    known = np.concatenate([np.asarray(logp, np.float64) for logp in logged])
    logp_of = reader.header.get("logp_of", reader.actions_of)
    if logp_of is None and runner.action_map.log_width:
        what = "The log-probabilities of the sources are of actions in different scales."
        got = "densities of the policy's actions in some, of the environment's in others"
        raise DatasetError(what, whole[0].where, got, fix="estimate from one source at a time")
    if logp_of == "environment":
        return known + runner.action_map.log_width
    is_bounded = getattr(getattr(runner.policy, "distribution", None), "bounded", False)
    if reader.actions_of == "environment" and not is_bounded:
        # Densities of the policy's actions. They are not known for actions on a bound, which were clipped.
        known[runner.action_map.on_bound(runner.action_map(actions))] = np.nan
    return known


def _check_scale(actions: trees.Tree, received: trees.Tree | None, reader: DatasetReader, runner: PolicyRunner) -> None:
    """Raises DatasetError if the recorded actions, and so their densities, have another scale than the policy's.

    `received` are the actions that the environment received; None if they are not recorded.
    """
    space = runner.policy.action_space
    boxes = ActionMap(space, clip_actions=True, normalize_actions=True).boxes.values()
    if all((box.half_width == 1).all() and (box.centre == 0).all() for box in boxes):
        return  # both scales are the same, as with bounds of -1 and 1
    ours = runner.action_map.settings["normalize_actions"]
    # RLlib's default, which learning assumes, too.
    theirs, assumed = reader.header.get("normalize_actions", True), "normalize_actions" not in reader.header
    if received is not None:  # the policy that acted may have a setting of its own
        fitting = [setting for setting in (True, False) if _gives(actions, received, space, setting)]
        if len(fitting) < 2:  # both fit if all actions are on a bound
            theirs, assumed = ours if ours in fitting else not ours, False
    if theirs is not ours:
        said = f"normalize_actions={theirs}" + (", which is assumed because the files do not say it" if assumed else "")
        got = "files that differ in normalize_actions" if theirs is None else said
        what = "The recorded actions have another scale than the policy's actions."
        raise DatasetError(what, f"data set of {runner.policy.name!r}", got).expected(
            f"normalize_actions={ours}, as in the training of the policy",
            "estimate from data of a policy with the same normalize_actions; or, if the recorded actions are those "
            'that the environment received, give the setting actions_of="environment"',
        )


def _gives(actions: trees.Tree, received: trees.Tree, space: Space, normalized: bool) -> bool:
    """Whether the environment receives `received`, apart from clipping, if a policy with this setting acts so."""
    unit = ActionMap(space, clip_actions=True, normalize_actions=True)
    sent = ActionMap(space, clip_actions=True, normalize_actions=normalized)(actions)
    clipped = ActionMap(space, clip_actions=True, normalize_actions=False)(received)
    pairs = zip(trees.leaves(unit.to_policy(sent)), trees.leaves(unit.to_policy(clipped)), strict=True)
    return all(np.allclose(*pair, atol=_SAME, equal_nan=True) for pair in pairs)
