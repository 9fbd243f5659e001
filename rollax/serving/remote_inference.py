"""The verbs of a client whose server chooses the actions."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from rollax.core.numbers import numeric_array
from rollax.errors import InvalidRequestError, RequestError, text_of
from rollax.serving.client_calls import Calls
from rollax.serving.protocol import PROTOCOL_VERSION

_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
_LONGEST_TEXT = 1000

Convert = Callable[[Any], Any]
PolicyMapping = Callable[[str], str]


class RemoteInference:
    """Sends each verb to the server; the mapping of agents to policies determines the types of actions."""

    def __init__(self, calls: Calls, policy_mapping_fn: PolicyMapping | None = None) -> None:
        self.version = -1
        self._calls, self._mapping = calls, policy_mapping_fn
        self._convert: Convert | None = None

    def start_episode(self, episode_id: str | None, training_enabled: bool) -> str:
        self._converter()
        # The client makes the id, so that a repeated request does not start a second episode.
        episode_id = uuid.uuid4().hex if episode_id is None else episode_id
        body = {"episode_id": episode_id, "training_enabled": bool(training_enabled)}
        with reading_answer(self._calls.address.text, "start_episode"):
            return _text(self._calls.call("start_episode", body)["episode_id"])

    def get_actions(self, observations: Mapping[str, Any]) -> dict[str, Any]:
        if not observations:
            return {}
        convert = self._converter()
        if len(observations) == 1:
            [(episode_id, obs)] = observations.items()
            verb, answer = "get_action", self._calls.call("get_action", {"episode_id": episode_id, "obs": obs})
            actions: Any = {episode_id: answer.get("action")}
        else:
            verb, answer = "get_actions", self._calls.call("get_actions", {"observations": observations})
            actions = answer.get("actions")
        chosen: dict[str, Any]
        with reading_answer(self._calls.address.text, verb):
            self.version, chosen = int(answer["version"]), dict(actions)
        return {episode_id: convert(action) for episode_id, action in chosen.items()}

    def log_action(self, episode_id: str, obs: Any, action: Any) -> None:
        self._calls.call("log_action", {"episode_id": episode_id, "obs": obs, "action": action})

    def log_returns(self, episode_id: str, reward: Any, info: Mapping[str, Any] | None) -> None:
        body = {"episode_id": episode_id, "reward": reward}
        if info is not None:
            body["info"] = plain_info(info, f"info of {episode_id!r}")
        self._calls.call("log_returns", body)

    def end_agents(self, episode_id: str, observations: Mapping[str, Any], truncated: bool) -> None:
        body = {"episode_id": episode_id, "observations": observations, "truncated": bool(truncated)}
        self._calls.call("end_agents", body)

    def end_episode(self, episode_id: str, obs: Any, truncated: bool) -> None:
        self._calls.call("end_episode", {"episode_id": episode_id, "obs": obs, "truncated": bool(truncated)})

    def close(self) -> None:
        """Does nothing: the client closes the connections."""

    def _converter(self) -> Convert:
        if self._convert is None:
            hello = checked_hello(self._calls)
            with reading_answer(self._calls.address.text, "hello"):
                self._convert = converter(hello, self._mapping)
        return self._convert


def checked_hello(calls: Calls) -> dict[str, Any]:
    """Returns the response to `hello`, and adopts its limit on request sizes; RequestError for another protocol."""
    hello = calls.call("hello", {})
    if hello.get("protocol") != PROTOCOL_VERSION:
        what = "The policy server has a different version of the protocol."
        raise RequestError(
            what, calls.address.text, f"protocol {hello.get('protocol')} of {hello.get('server')}", status=501
        ).expected(f"protocol {PROTOCOL_VERSION}", "install the same version of rollax on both sides")
    with reading_answer(calls.address.text, "hello"):
        limit = hello["limits"]["max_body_bytes"]
        calls.max_bytes = None if limit is None else float(limit)
        if not hello["policies"]:
            raise ValueError("no policies")
    return hello


@contextmanager
def reading_answer(address: str, verb: str) -> Iterator[None]:
    """Turns errors of a malformed answer into RequestError."""
    try:
        yield
    except _MALFORMED as error:
        what = "The answer of the policy server is malformed."
        expected = "the fields that /openapi.json of a policy server describes"
        raise RequestError(
            what, f"{address}, {verb}", f"{type(error).__name__}: {text_of(error)}"[:_LONGEST_TEXT], status=502
        ).expected(expected, "check that a policy server of this version of rollax runs at this address") from error


def converter(hello: Mapping[str, Any], mapping: PolicyMapping | None = None) -> Convert:
    """Returns a converter of decoded values to actions: integers, dicts, tuples, and arrays of their space's dtype."""
    spaces = {policy_id: policy["action_space"] for policy_id, policy in hello["policies"].items()}
    first, *others = spaces.values()
    if not hello["multi_agent"]:
        return _checked(of_space(first))
    agents = _checked(dict)
    if all(space == first for space in others):
        one = _checked(of_space(first))
        return lambda by_agent: {agent: one(action) for agent, action in agents(by_agent).items()}
    converts = {policy_id: _checked(of_space(space)) for policy_id, space in spaces.items()}

    def convert(agent: str) -> Convert:
        if mapping is None:
            return converts.get(agent, _checked(_of_any))
        policy_id = mapping(agent)
        if policy_id not in converts:
            raise without_policy(agent, policy_id, list(converts))
        return converts[policy_id]

    return lambda by_agent: {agent: convert(agent)(action) for agent, action in agents(by_agent).items()}


def _checked(convert: Convert) -> Convert:
    """The converter, with RequestError for values that it cannot convert."""

    def checked(value: Any) -> Any:
        with reading_answer("the policy server", "actions"):
            return convert(value)

    return checked


def without_policy(agent_id: str, policy_id: Any, policies: list[str]) -> RequestError:
    """The error of an agent that is mapped to an unknown policy."""
    return InvalidRequestError(
        "The agent has no policy.", "policy_mapping_fn of PolicyClient", f"{policy_id!r} for agent {agent_id!r}"
    ).expected(f"one of {policies}", "pass the policy_mapping_fn of the server")


def plain_info(info: Any, where: str) -> dict[str, Any]:
    """The info in JSON's types: arrays as lists, NaN and infinity as None. InvalidRequestError if it cannot be sent."""
    if not isinstance(info, Mapping):
        raise InvalidRequestError("The info is not a dict.", where, info, expected="a dict")
    try:
        return msgspec.json.decode(msgspec.json.encode(info, enc_hook=_plain))
    except (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError) as error:
        raise InvalidRequestError("The info cannot be sent to a policy server.", where, text_of(error)).expected(
            "numbers, strings, arrays, lists, and dicts with strings as keys", "convert the value to one of these"
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):  # an array, or a NumPy number
        return value.tolist()
    raise NotImplementedError(f"{type(value).__name__} is not a number, string, list, dict or array")


def with_lists(episode: Any) -> Any:
    """An episode (a struct or a dict) as dicts whose columns are lists of rows."""
    episode = _fields(episode)
    if not isinstance(episode, Mapping) or not isinstance(agents := episode.get("agents"), Mapping):
        return episode
    plain = {
        agent_id: {name: list(column) if getattr(column, "ndim", 0) else column for name, column in columns.items()}
        if isinstance(columns, Mapping)
        else columns
        for agent_id, columns in zip(agents, map(_fields, agents.values()), strict=True)
    }
    return {**episode, "agents": plain}


def _fields(value: Any) -> Any:
    return msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else value


def of_space(space: Mapping[str, Any]) -> Convert:
    """Returns a function that converts decoded values to values of a space, which is described in JSON."""
    kind = space["type"]
    if kind == "Discrete":
        return int
    if kind == "Dict":
        parts = {key: of_space(part) for key, part in space["spaces"]}
        # Keys of JSON objects are strings; keys of a space can have other types.
        return lambda value: {key: convert(value[str(key)]) for key, convert in parts.items()}
    if kind == "Tuple":
        elements = [of_space(part) for part in space["spaces"]]
        return lambda value: tuple(convert(part) for convert, part in zip(elements, value, strict=True))
    dtype = _number_dtype(space.get("dtype", "int8"))
    return lambda value: _array(value, dtype)


def _number_dtype(name: Any) -> np.dtype:
    """The numeric dtype with this name; ValueError for other dtypes, such as strings of any size."""
    dtype = np.dtype(name) if isinstance(name, str) else np.dtype(object)
    if dtype.kind not in "biuf":
        raise ValueError(f"dtype {name!r}")
    return dtype


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} in place of a string")
    return value


def _array(value: Any, dtype: np.dtype | None) -> np.ndarray:
    if isinstance(value, dict):
        value = np.frombuffer(value["data"], _number_dtype(value["dtype"])).reshape(value["shape"])
    return np.array(value, dtype)  # a writable copy


def _of_any(value: Any) -> Any:
    """An action of an agent with an unknown space."""
    if isinstance(value, dict) and value.keys() == {"dtype", "shape", "data"}:
        return _array(value, None)
    if isinstance(value, dict):
        return {key: _of_any(part) for key, part in value.items()}
    if isinstance(value, list) and not any(isinstance(part, dict | list) for part in value):
        return numeric_array(value)
    return [_of_any(part) for part in value] if isinstance(value, list) else value
