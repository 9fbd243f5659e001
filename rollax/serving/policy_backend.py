"""`PolicyBackend`: answers requests for actions with the policies of a checkpoint."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from gymnasium import Space

from rollax.algorithms import checkpoint
from rollax.algorithms.load_policy import load_policies
from rollax.algorithms.trainer import Trainer
from rollax.config.json_form import decode_config
from rollax.core.importing import StoredCode
from rollax.core.stored_values import wrong_value
from rollax.errors import ConfigError, InvalidRequestError, RequestError
from rollax.rollout.policy_mapping import policy_mapping as checked_mapping
from rollax.rollout.policy_runner import PolicyRunner
from rollax.serving.acting import Actor, AgentMemory, columns_of
from rollax.serving.backend import Backend, OnActions, hello_of
from rollax.serving.learning_curve import LearningCurve
from rollax.serving.protocol import Actions, Episode, Hello, Submitted
from rollax.serving.request_batching import Part, RequestBatcher
from rollax.serving.weights import policy_to_bytes

log = logging.getLogger("rollax.serving")
_MOST_AGENTS = 4_096

PolicyMapping = Callable[..., str]
"""(agent id) or (agent id, episode) -> policy id."""


class PolicyBackend(Backend):
    """Answers with trained policies, which do not learn; submitted episodes only count in the statistics.

    Rewards count in the statistics, and are inputs of policies that read the last reward. Requests that arrive together
    share forward passes; see `RequestBatcher`.

    Args:
        mapping: (agent id, episode id) -> policy id; None for a single policy.
        multi_agent: whether observations, actions and rewards are dicts by agent id.
        explore: False for greedy actions.
        version: the version of the weights.
    """

    def __init__(
        self,
        runners: Mapping[str, PolicyRunner],
        mapping: PolicyMapping | None = None,
        *,
        multi_agent: bool = False,
        explore: bool = False,
        version: int = 0,
    ) -> None:
        for name, value in (("explore", explore), ("multi_agent", multi_agent)):
            if not isinstance(value, bool):
                raise ConfigError(f"The value of {name} is invalid.", f"{name} of PolicyBackend", value).expected(
                    "True or False", f"pass one of them, or leave {name} out"
                )
        if len(runners) > 1 and (mapping is None or not multi_agent):
            what = "The server has several policies, but no mapping from agents to policies."
            expected = "several agents, and a mapping from agent ids to policy ids"
            fix = "pass policy_mapping (--policy-mapping), and leave multi_agent (--single-agent) out"
            raise ConfigError(what, "multi_agent, policy_mapping", sorted(runners), expected=expected, fix=fix)
        self.actors = {policy_id: Actor(runner, explore) for policy_id, runner in runners.items()}
        self._mapping, self._several, self._version = mapping, multi_agent, version
        self._only = next(iter(self.actors.values()))
        self._batcher = RequestBatcher(remembers=any(actor.remembers for actor in self.actors.values()))
        self._episodes: dict[str, _Episode] = {}
        self._curve, self._submitted = LearningCurve(), 0

    @classmethod
    def from_checkpoint(
        cls,
        path: str | Path,
        *,
        policy_mapping: PolicyMapping | Mapping[str, str] | None = None,
        multi_agent: bool | None = None,
        explore: bool = False,
        trainer_class: type[Trainer] | None = None,
        custom_model: type | None = None,
        trust_code: bool = False,
    ) -> PolicyBackend:
        """Returns a backend with the policies of a checkpoint.

        Args:
            policy_mapping: agent id -> policy id, as a dict or a function; None: the mapping in the checkpoint.
            multi_agent: whether the environment has several agents; None: True if there is a `policy_mapping`, or the
                checkpoint has `multiagent` policies.
            explore: False for greedy actions.
            trainer_class, custom_model, trust_code: as for `load_policies`.
        Raises:
            CheckpointError: the checkpoint is damaged or requires code that is neither given nor trusted.
            ConfigError: an argument is wrong, such as a `policy_mapping` with unknown policies.
        """
        stored = checkpoint.read(checkpoint.checkpoint_at(path, "PolicyBackend.from_checkpoint"))
        with checkpoint.errors_as_damaged(path):
            mapping, several = policy_mapping_of(stored, path, policy_mapping, trust_code=trust_code)
        runners = load_policies(
            path, trainer_class=trainer_class, custom_model=custom_model, trust_code=trust_code, stored=stored
        )
        multi_agent = several if multi_agent is None else multi_agent
        version = stored["state"]["iteration"]
        return cls(runners, mapping, multi_agent=multi_agent, explore=explore, version=version)

    def warm_up(self, rows: int = 64) -> None:
        """Compiles the forward passes of up to `rows` rows, so that no request waits for a compilation."""
        for actor in self.actors.values():
            actor.warm_up(rows)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._batcher.attach(loop)

    def close(self) -> None:
        self._batcher.close()

    def hello(self) -> Hello:
        policies = {policy_id: actor.policy for policy_id, actor in self.actors.items()}
        return hello_of(policies, learns=False, multi_agent=self._several, version=self._version)

    @property
    def version(self) -> int:
        return self._version

    def spaces_of(self, episode_id: str | None, agent_id: str | None) -> tuple[Space, Space]:
        policy = self._actor(episode_id, agent_id).policy
        return policy.observation_space, policy.action_space

    def start_episode(self, episode_id: str, training_enabled: bool) -> None:
        self._episodes[episode_id] = _Episode()

    def request_actions(self, observations: Mapping[str, Any], on_done: OnActions) -> None:
        episodes = self._episodes
        for episode_id in observations:
            episodes[episode_id].length += 1
        if self._several:
            parts = self._parts_of_agents(observations)
        else:
            columns = getattr(observations, "columns", None)
            if columns is None:
                columns = columns_of(list(observations.values()))
            remembers = self._only.remembers
            memories = [self._memory(episode_id, "") for episode_id in observations] if remembers else []
            parts = [Part(self._only, columns, len(observations), memories, [None] * len(memories))]

        def on_passed(error: Exception | None) -> None:
            on_done(Actions(self._actions_of(observations, parts), self._version) if error is None else error)

        self._batcher.add(parts, on_passed)

    def _parts_of_agents(self, observations: Mapping[str, Any]) -> list[Part]:
        by_actor: dict[Actor, tuple[list[AgentMemory], list[Any], list[tuple[str, str]]]] = {}
        for episode_id, obs in observations.items():
            for agent, value in obs.items():
                memory = self._memory(episode_id, agent)
                memories, values, agents = by_actor.setdefault(memory.actor, ([], [], []))
                memories.append(memory)
                values.append(value)
                agents.append((episode_id, agent))
        return [
            Part(actor, columns_of(values), len(values), memories, [None] * len(values), agents)
            for actor, (memories, values, agents) in by_actor.items()
        ]

    def log_action(self, episode_id: str, obs: Any, action: Any) -> None:
        self._episodes[episode_id].length += 1
        for agent in obs if self._several else ("",):
            memory = self._memory(episode_id, agent)
            if memory.actor.remembers:
                value, taken = (obs[agent], action[agent]) if self._several else (obs, action)
                self._batcher.add([Part(memory.actor, columns_of([value]), 1, [memory], [taken])], _on_logged)

    def log_returns(self, episode_id: str, reward: Any, info: Mapping[str, Any] | None) -> None:
        episode = self._episodes[episode_id]
        for agent, amount in reward.items() if self._several else (("", reward),):
            episode.reward += amount
            self._memory(episode_id, agent).reward += amount

    def end_agents(self, episode_id: str, observations: Mapping[str, Any], truncated: bool) -> None:
        episode = self._episodes[episode_id]
        for agent in observations:
            episode.agents.pop(agent, None)
            episode.actors.pop(agent, None)

    def end_episode(self, episode_id: str, obs: Any, truncated: bool) -> None:
        episode = self._episodes.pop(episode_id)
        self._curve.add(episode.reward, episode.length)

    def drop_episode(self, episode_id: str) -> None:
        self._episodes.pop(episode_id, None)

    def submit(self, episodes: list[Episode]) -> Submitted:
        for episode in episodes:
            rewards = [sum(trajectory.rewards) for trajectory in episode.agents.values()]
            lengths = [len(trajectory.rewards) for trajectory in episode.agents.values()]
            self._curve.add(float(sum(rewards)), max(lengths))
        self._submitted += len(episodes)
        return Submitted(accepted=0, too_old=0, version=self._version)

    def weights(self, policy_id: str) -> bytes:
        return policy_to_bytes(self.actors[policy_id].runner, self._version)

    def onnx(self, policy_id: str) -> bytes:
        from rollax.serving.export.onnx_model import policy_to_onnx  # requires an extra

        return policy_to_onnx(self.actors[policy_id].runner)

    def statistics(self) -> dict[str, Any]:
        return {
            "episodes_total": self._curve.episodes,
            "episodes_submitted": self._submitted,
            "actions_total": self._batcher.actions,
            "batches_total": self._batcher.batches,
            "episode_reward_mean": self._curve.reward,
            "episode_len_mean": self._curve.length,
        }

    def _actor(self, episode_id: str | None, agent_id: str | None) -> Actor:
        """The actor of an agent; a mapping is called once for each agent of an episode."""
        if self._mapping is None or agent_id is None:
            return self._only
        episode = self._episodes.get(episode_id or "")
        if episode is None:  # an episode that was played elsewhere
            return self.actors[self._mapping(agent_id, episode_id or "")]
        if agent_id not in episode.actors:
            if len(episode.actors) >= _MOST_AGENTS:
                raise RequestError(
                    "The episode has too many agents.", f"episode {episode_id!r}", len(episode.actors) + 1, status=413
                ).expected(f"at most {_MOST_AGENTS} different ids", "reuse the ids of agents, or end agents")
            episode.actors[agent_id] = self.actors[self._mapping(agent_id, episode_id)]
        return episode.actors[agent_id]

    def _memory(self, episode_id: str, agent_id: str) -> AgentMemory:
        agents = self._episodes[episode_id].agents
        memory = agents.get(agent_id)
        if memory is None:
            memory = agents[agent_id] = AgentMemory(self._actor(episode_id, agent_id if self._several else None))
        return memory

    def _actions_of(self, observations: Mapping[str, Any], parts: list[Part]) -> dict[str, Any]:
        if not self._several:
            return dict(zip(observations, parts[0].actions, strict=True))
        actions = {episode_id: dict.fromkeys(obs) for episode_id, obs in observations.items()}
        for part in parts:
            for (episode_id, agent), action in zip(part.agents, part.actions, strict=True):
                actions[episode_id][agent] = action
        return actions


@dataclass(slots=True)
class _Episode:
    """A running episode: the memories and the actors of its agents, and its reward and length so far."""

    agents: dict[str, AgentMemory] = field(default_factory=dict)
    actors: dict[str, Actor] = field(default_factory=dict)
    reward: float = 0.0
    length: int = 0


def _on_logged(error: Exception | None) -> None:
    if error is not None:  # the client already has its answer
        log.error("The memory of an agent does not contain a logged action: the forward pass failed.", exc_info=error)


@dataclass(frozen=True, slots=True)
class ServedEpisode:
    """The episode that a server passes to a policy mapping of two arguments; no callback has put data into it."""

    episode_id: str
    user_data: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Read-only: data that a mapping writes would be lost at its next call, for another agent of the episode."""


def policy_mapping_of(
    stored: Mapping[str, Any],
    path: str | Path,
    given: PolicyMapping | Mapping[str, str] | None,
    *,
    trust_code: bool,
) -> tuple[PolicyMapping | None, bool]:
    """`(mapping, whether there are several agents)`; the mapping is (agent id, episode id) -> policy id.

    `given` replaces the checkpoint's mapping. The mapping is None for a single policy if nothing is given; any mapping
    means several agents.

    Raises:
        CheckpointError: several policies, no `given` mapping, and the checkpoint's mapping is code that is not trusted.
        ConfigError: several policies without a mapping, a dict with unknown policies, or a function of other arguments.
    """
    policy_ids = sorted(stored["policies"])
    config = decode_config(stored["config"], trust="everything" if trust_code else "nothing")
    multiagent = config.get("multiagent") or {}
    if not isinstance(multiagent, Mapping):
        raise wrong_value(f"{path}: config key 'multiagent'", multiagent, "a dict")
    several = bool(multiagent.get("policies"))
    if given is None and len(policy_ids) == 1:
        return None, several
    function: Any = given if given is not None else multiagent.get("policy_mapping_fn")
    if isinstance(function, StoredCode):
        fix = "pass policy_mapping (--policy-mapping), a dict from agent ids to policy ids"
        raise checkpoint.untrusted(path, function, fix)
    if isinstance(function, Mapping):
        # Agent ids of clients are strings.
        return _table({str(agent_id): policy_id for agent_id, policy_id in function.items()}, policy_ids), True
    checked = checked_mapping(function, policy_ids)
    assert checked is not None  # None only without a function and with one policy
    return (lambda agent_id, episode_id: checked(agent_id, ServedEpisode(episode_id))), True


def _table(table: dict[str, str], policy_ids: list[str]) -> PolicyMapping:
    unknown = sorted(set(table.values()) - set(policy_ids))
    if unknown:
        raise ConfigError("The policy mapping contains unknown policies.", "policy_mapping", unknown).expected(
            f"some of {policy_ids}", "correct the policy ids in policy_mapping"
        )

    def policy_of(agent_id: str, episode_id: str) -> str:
        if agent_id not in table:
            raise InvalidRequestError("The agent has no policy.", "agent id", agent_id).expected(
                f"one of {sorted(table)}", "correct the id, or start the server with a policy mapping that contains it"
            )
        return table[agent_id]

    return policy_of
