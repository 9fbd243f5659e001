"""`League`: a learner plays against its frozen past selves, which are rated."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import numpy as np

from rollax.core.numbers import is_finite, is_whole
from rollax.core.stored_values import read_count, read_dict, read_list, read_number, wrong_value
from rollax.env.base_env import BaseEnv, in_order
from rollax.errors import ConfigError, corrected
from rollax.rollout.callbacks import Callbacks
from rollax.rollout.episode import Episode
from rollax.rollout.seeds import episode_number
from rollax.rollout.worker import RolloutWorker
from rollax.selfplay.ratings import Rule, chances, rated

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer

LEARNER = "learner"
"""The id of the policy that learns."""
_SEATS = "seats"
"""The key of `Episode.user_data` for agent id -> policy id."""
_RECENT = 100
"""How many of the latest games against an opponent count for the learner's win rate."""


@dataclass
class Opponent:
    """A frozen past self of the learner.

    Args:
        rating: the Elo rating of the opponent.
        since: the iteration whose weights the opponent has.
        scores: the learner's scores in the latest games against the opponent: 1, 1/2 or 0.
    """

    rating: float
    since: int
    scores: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))

    @property
    def win_rate(self) -> float:
        """The learner's mean score; one win and one loss are added, so that a few games do not decide."""
        return (sum(self.scores) + 1) / (len(self.scores) + 2)

    def state(self) -> list[Any]:
        return [self.rating, self.since, list(self.scores)]

    @classmethod
    def of_state(cls, opponents: Mapping[str, Any], policy_id: str) -> Opponent:
        """Returns the opponent of this id in a stored state; CheckpointError for a wrong value."""
        where = f"league: {policy_id}"
        names, values = ("rating", "since", "scores"), read_list(opponents, policy_id, "league")
        if len(values) != len(names):
            raise wrong_value(where, values, f"a list of {', '.join(names)}")
        stored: dict[str, Any] = dict(zip(names, values, strict=True))
        rating, since = read_number(stored, "rating", where, least=-math.inf), read_count(stored, "since", where)
        return cls(rating, since, deque(_read_scores(stored, where, "scores"), maxlen=_RECENT))


class League(Callbacks):
    """Callbacks by which a learner plays against frozen past selves: `PPOTrainer(config={**League.config(), ...})`.

    A subclass changes the attributes below. After each iteration the games are rated, and the learner's weights may be
    frozen as a new opponent. In an episode, the learner has one seat, which changes from episode to episode, and one
    opponent has all others. In the first iteration and in a share of episodes (`self_share`) the learner has all seats.

    The opponents are policies that exist from the start. A new opponent gets the learner's weights. If there are
    already `size` opponents, it replaces the opponent that the learner beats most, and running episodes are dropped.

    Attributes:
        rating: the learner's Elo rating.
        opponents: policy id -> opponent, from the oldest to the latest.
    """

    size: ClassVar[int] = 8
    """The most opponents."""
    draw: ClassVar[Rule] = "prioritized"
    """How opponents are drawn: "prioritized" by how hard they are, "uniform", or "latest"."""
    self_share: ClassVar[float] = 0.2
    """The share of episodes in which the learner plays all seats; they are not rated."""
    snapshot_score: ClassVar[float | None] = 0.7
    """The mean score of the last `games` at which the learner is frozen as a new opponent; None for no such rule."""
    snapshot_interval: ClassVar[int | None] = None
    """The iterations after a snapshot after which the learner is frozen whatever its score; None for no such rule."""
    games: ClassVar[int] = 200
    """The number of games since the last snapshot over which `snapshot_score` is measured."""
    k_factor: ClassVar[float] = 8.0
    """The most points by which a game changes a rating."""
    first_rating: ClassVar[float] = 1000.0

    def __init__(self) -> None:
        self.rating = self.first_rating
        self.opponents: dict[str, Opponent] = {}
        self.snapshots = 0
        self._recent: deque[float] = deque(maxlen=self.games)
        self._chances: Mapping[str, float] = {}  # in each process that samples
        self._seed = int(np.random.default_rng().integers(2**32))  # without a seed in the config

    @classmethod
    def config(cls) -> dict[str, Any]:
        """The config keys of a league: `multiagent` and `callbacks`.

        Raises:
            ConfigError: an attribute of the class is unknown or has a wrong value.
        """
        cls._check_names()
        cls._check()
        multiagent = {
            "policies": [LEARNER, *cls.slots()],
            "policy_mapping_fn": policy_of_seat,
            "policies_to_train": [LEARNER],
        }
        return {"multiagent": multiagent, "callbacks": cls}

    @classmethod
    def slots(cls) -> list[str]:
        """The policy ids of the opponents."""
        return [f"past_{number}" for number in range(cls.size)]

    def on_episode_start(self, *, worker: RolloutWorker, base_env: BaseEnv, episode: Episode) -> None:
        known = base_env.possible_agents or ()
        if len(known) < 2:  # refused in the first iteration, too, in which no opponent plays
            raise ConfigError(
                "A league requires an environment of several agents that are known.",
                "config key 'callbacks', League",
                f"possible_agents={base_env.possible_agents}",
            ).expected("at least two agents", "set possible_agents of the environment, or use no League")
        seed = self._seed if worker.config.seed is None else worker.config.seed
        number = episode_number(episode.episode_id)
        rng = np.random.default_rng((seed, number))
        if not self._chances or rng.random() < self.self_share:
            return
        agents = list(in_order(known))
        opponent = str(rng.choice([*self._chances], p=[*self._chances.values()]))
        seat = agents[number % len(agents)]
        episode.user_data[_SEATS] = {agent: LEARNER if agent == seat else opponent for agent in agents}

    def on_train_result(self, *, trainer: Trainer, result: dict[str, Any]) -> None:
        for episode in trainer.episodes:
            self.rate(episode.policy_rewards)
        if self._is_due(trainer.iteration):
            self.freeze(trainer)
        result["league"] = self.report()
        self._spread(trainer)

    def on_save(self, *, trainer: Trainer, state: dict[str, Any]) -> None:
        opponents = {policy_id: one.state() for policy_id, one in self.opponents.items()}
        state["league"] = {
            "rating": self.rating,
            "snapshots": self.snapshots,
            "recent": list(self._recent),
            "order": list(opponents),
            "opponents": opponents,
        }

    def on_restore(self, *, trainer: Trainer, state: Mapping[str, Any]) -> None:
        if "league" not in state:
            return
        stored = read_dict(state, "league", "callbacks")
        rating = read_number(stored, "rating", "league", least=-math.inf)
        snapshots, recent = read_count(stored, "snapshots", "league"), _read_scores(stored, "league", "recent")
        opponents = read_dict(stored, "opponents", "league")
        read = {policy_id: Opponent.of_state(opponents, policy_id) for policy_id in opponents}
        order = read_list(stored, "order", "league")
        if sorted(map(str, order)) != sorted(read):
            raise wrong_value("league: order", order, f"the names of the opponents, {sorted(read)}")
        self.opponents = {policy_id: read[policy_id] for policy_id in order if policy_id in trainer.worker.policies}
        self.rating, self.snapshots, self._recent = rating, snapshots, deque(recent, maxlen=self.games)
        self._spread(trainer)

    def rate(self, policy_rewards: Mapping[str, list[float]]) -> None:
        """Rates one game by the mean returns of its policies; skips a game without exactly one opponent."""
        others = [policy_id for policy_id in policy_rewards if policy_id in self.opponents]
        if LEARNER not in policy_rewards or len(others) != 1:
            return
        opponent = self.opponents[others[0]]
        mine, theirs = (float(np.mean(policy_rewards[policy_id])) for policy_id in (LEARNER, others[0]))
        score = 0.5 if mine == theirs else float(mine > theirs)
        self.rating, opponent.rating = rated(self.rating, opponent.rating, score, self.k_factor)
        opponent.scores.append(score)
        self._recent.append(score)

    def freeze(self, trainer: Trainer) -> None:
        """Makes the learner, as it is, an opponent; does nothing if all opponents were removed from the trainer."""
        slots = [policy_id for policy_id in self.slots() if policy_id in trainer.worker.policies]
        if not slots:
            return
        free = [policy_id for policy_id in slots if policy_id not in self.opponents]
        # Of equal win rates, `max` returns the first, which is of the oldest opponent.
        slot = free[0] if free else max(self.opponents, key=lambda policy_id: self.opponents[policy_id].win_rate)
        trainer.worker.set_filters({slot: trainer.worker.get_filters()[LEARNER]})
        trainer.set_weights({slot: trainer.get_weights(LEARNER)[LEARNER]})
        if self.opponents.pop(slot, None) is not None:
            trainer.workers.restart_episodes()  # no opponent changes within an episode
        self.opponents[slot] = Opponent(self.rating, trainer.iteration)
        self.snapshots += 1
        self._recent.clear()

    def report(self) -> dict[str, Any]:
        """The entry `league` of results."""
        opponents = {
            policy_id: {"rating": one.rating, "win_rate": one.win_rate, "since": one.since}
            for policy_id, one in self.opponents.items()
        }
        score = float(np.mean(self._recent)) if self._recent else None
        return {"rating": self.rating, "score": score, "snapshots": self.snapshots, "opponents": opponents}

    @classmethod
    def _check_names(cls) -> None:
        """Refuses public values of a subclass that are no settings; methods and properties may have any name."""
        settings = League.__annotations__
        for owner in (one for one in cls.__mro__ if issubclass(one, League) and one is not League):
            for name, value in vars(owner).items():
                if name.startswith("_") or name in settings or callable(value) or hasattr(value, "__get__"):
                    continue
                near = corrected(name, settings)
                raise ConfigError("Unknown setting of the league.", f"class {owner.__name__}", name).expected(
                    f"one of {', '.join(settings)}",
                    f"rename it to {near or 'one of these'}; names of your own values must begin with _",
                )

    @classmethod
    def _check(cls) -> None:
        shares = "a number from 0 to 1"
        score, interval = cls.snapshot_score, cls.snapshot_interval
        for name, valid, expected in (
            ("size", is_whole(cls.size) and cls.size >= 1, "a whole number of at least 1"),
            ("draw", cls.draw in get_args(Rule), f"one of {list(get_args(Rule))}"),
            ("self_share", is_finite(cls.self_share) and 0 <= cls.self_share <= 1, shares),
            ("snapshot_score", score is None or (is_finite(score) and 0 <= score <= 1), f"None, or {shares}"),
            (
                "snapshot_interval",
                interval is None or (is_whole(interval) and interval >= 1),
                "None, or a whole number of at least 1",
            ),
            ("games", is_whole(cls.games) and cls.games >= 1, "a whole number of at least 1"),
            ("k_factor", is_finite(cls.k_factor) and cls.k_factor > 0, "a finite number above 0"),
            ("first_rating", is_finite(cls.first_rating), "a finite number"),
        ):
            if not valid:
                raise ConfigError(
                    "A setting of the league is wrong.", f"{cls.__name__}.{name}", getattr(cls, name)
                ).expected(expected, f"set it in the class: {name} = {getattr(League, name)!r}")

    def _is_due(self, iteration: int) -> bool:
        if not self.opponents:
            return True
        last = max(one.since for one in self.opponents.values())
        if self.snapshot_interval is not None and iteration - last >= self.snapshot_interval:
            return True
        enough = len(self._recent) == self.games
        return self.snapshot_score is not None and enough and float(np.mean(self._recent)) >= self.snapshot_score

    def _spread(self, trainer: Trainer) -> None:
        """Gives the chances of the opponents to all processes that sample."""
        drawn = chances({policy_id: one.win_rate for policy_id, one in self.opponents.items()}, self.draw)
        trainer.workers.foreach_worker(partial(_set_chances, drawn))


def policy_of_seat(agent_id: Hashable, episode: Episode) -> str:
    """The policy that a league has chosen for an agent; the learner in an episode without chosen seats."""
    return episode.user_data.get(_SEATS, {}).get(agent_id, LEARNER)


def _read_scores(state: Mapping[str, Any], where: str, key: str) -> list[float]:
    scores = read_list(state, key, where)
    if not all(is_finite(score) and score in (0, 0.5, 1) for score in scores):
        raise wrong_value(f"{where}: {key}", scores, "scores of games: 0, 1/2 or 1")
    return scores


def _set_chances(drawn: Mapping[str, float], worker: RolloutWorker) -> None:
    parts = getattr(worker.callbacks, "parts", {"on_train_result": [worker.callbacks]})
    for league in parts["on_train_result"]:
        if isinstance(league, League):
            league._chances = drawn
