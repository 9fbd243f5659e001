"""`PolicyServerEnv`: an environment whose episodes are played by the clients of a policy server."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium import Space

from rollax.config.json_form import space_from_json
from rollax.env.external.external_env import ExternalEnv, ExternalMultiAgentEnv
from rollax.env.registry import id_without_module
from rollax.errors import ConfigError, RollaxError
from rollax.rollout.worker import RolloutWorker
from rollax.runs.results import read_results
from rollax.serving.learning_curve import LearningCurve
from rollax.serving.limits import Limits
from rollax.serving.security import read_token
from rollax.serving.server import PolicyServer
from rollax.serving.training_backend import TrainingBackend

DEFAULT_PORT = 9900


class _Served:
    """Base of both environments: runs the server. `rollax docs external-environments` has the keys of `env_config`."""

    samples_in_background = True
    evaluates = False
    _server: PolicyServer | None = None
    _external_episodes: Any

    def _configure(self, env_config: Mapping[str, Any]) -> tuple[Space | None, Space | None]:
        self._context = env_config
        self._settings = {**_DEFAULTS, **env_config}
        unknown = sorted(set(env_config) - set(_DEFAULTS))
        if unknown:
            raise ConfigError.unknown("key", unknown[0], _DEFAULTS, f"env_config of {type(self).__name__}")
        return _spaces(self._settings)

    @property
    def server(self) -> PolicyServer:
        """The running server; a ConfigError if no worker samples this environment."""
        if self._server is None:
            raise ConfigError(
                "The server is not running.", type(self).__name__, fix="create a trainer or a worker with this env"
            )
        return self._server

    @property
    def address(self) -> str:
        """The URL of the server."""
        return self.server.address

    def set_addresses(self, addresses: list[str]) -> None:
        """Sets the addresses of all servers of the run, as `GET /v1` lists them."""
        self.server.service.addresses = addresses

    def sampled_by(self, worker: RolloutWorker) -> None:
        """Starts the server; requests wait until sampling starts."""
        if not worker.sampler.record:
            raise ConfigError(
                "A policy server cannot be evaluated: no client plays evaluation episodes.",
                f"env of evaluation, {type(self).__name__}",
                expected="an environment that can be stepped",
            ).fix("set evaluation_config={'env': ..., 'env_config': {}}, or leave evaluation_interval out")
        settings, index = self._settings, getattr(self._context, "worker_index", 0)
        backend = TrainingBackend(
            self._external_episodes,
            worker,
            multi_agent=isinstance(self, ExternalMultiAgentEnv),
            curve=_curve_of(settings["run_folder"]),
        )
        token_file, port = settings["token_file"], settings["port"]
        self._server = PolicyServer(
            backend,
            settings["host"],
            port + index if port else 0,
            token=None if token_file is None else read_token(Path(token_file), "env_config key 'token_file'"),
            certificate=settings["certificate"],
            key=settings["key"],
            allowed_origins=settings["allowed_origins"],
            allowed_hosts=settings["allowed_hosts"],
            limits=_limits(settings["limits"]),
        )
        self._server.service.addresses = self._addresses()
        self._server.start()

    def _addresses(self) -> list[str]:
        """The addresses of all workers, if `port` determines them; otherwise the address of this worker."""
        workers = getattr(self._context, "num_workers", 0)
        port, own = self._settings["port"], self.address
        if not port or not workers:
            return [own]
        return [f"{own.rpartition(':')[0]}:{port + index}" for index in range(1, workers + 1)]

    def run(self) -> None:
        """Waits until the server stops."""
        self.server.wait()

    def close(self) -> None:
        """Stops the server."""
        if self._server is not None:
            self._server.stop()


class PolicyServerEnv(_Served, ExternalEnv):
    """An environment whose episodes are played by clients of a policy server; the server also answers during learning.

    Args:
        env_config: the address, the spaces and the limits; `rollax docs external-environments` lists the keys.
    """

    def __init__(self, env_config: Mapping[str, Any]) -> None:
        observation_space, action_space = self._configure(env_config)
        if self._settings["agents"] is not None:
            what = "agents is given, but the environment has a single agent."
            fix = "leave it out, or use MultiAgentPolicyServerEnv"
            raise ConfigError(what, "env_config key 'agents'", self._settings["agents"], expected="None", fix=fix)
        if observation_space is None or action_space is None:
            raise ConfigError("The policy server has no spaces.", f"env_config of {type(self).__name__}").expected(
                "observation_space and action_space, or spaces_of",
                'set them, such as env_config={"spaces_of": "CartPole-v1"}',
            )
        ExternalEnv.__init__(self, observation_space, action_space)


class MultiAgentPolicyServerEnv(_Served, ExternalMultiAgentEnv):
    """A `PolicyServerEnv` with many agents; without spaces in `env_config` the policies define them."""

    def __init__(self, env_config: Mapping[str, Any]) -> None:
        spaces = self._configure(env_config)
        agents = self._settings["agents"]
        if isinstance(agents, str):
            raise ConfigError("agents is a single string.", "env_config key 'agents'", agents).expected(
                "a list of ids", f"write [{agents!r}]"
            )
        self.possible_agents = None if agents is None else list(agents)
        ExternalMultiAgentEnv.__init__(self, *spaces)


_DEFAULTS: dict[str, Any] = {
    "observation_space": None,
    "action_space": None,
    "spaces_of": None,
    "host": "127.0.0.1",
    "port": DEFAULT_PORT,
    "token_file": None,
    "certificate": None,
    "key": None,
    "allowed_origins": (),
    "allowed_hosts": (),
    "limits": {},
    "run_folder": None,
    "agents": None,
}


def _spaces(settings: Mapping[str, Any]) -> tuple[Space | None, Space | None]:
    if settings["spaces_of"] is not None:
        for name in ("observation_space", "action_space"):
            if settings[name] is not None:
                raise ConfigError(
                    "Both a space and spaces_of are given.", f"env_config key {name!r}", settings[name]
                ).expected("observation_space and action_space, or spaces_of", "leave one of them out")
        env = gym.make(id_without_module(settings["spaces_of"], "env_config key 'spaces_of'"))
        try:
            return env.observation_space, env.action_space
        finally:
            env.close()
    found = []
    for name in ("observation_space", "action_space"):
        given = settings[name]
        stored = isinstance(given, Mapping) and not isinstance(given, Space)  # gymnasium's Dict space is a mapping
        found.append(space_from_json(given, f"env_config key {name!r}") if stored else given)
    return found[0], found[1]


def _limits(given: Any) -> Limits:
    if isinstance(given, Limits):
        return given
    try:
        return Limits(**given)
    except TypeError as error:
        raise ConfigError("The limits are invalid.", where="env_config key 'limits'", got=str(error)) from None


def _curve_of(run_folder: str | Path | None) -> LearningCurve:
    curve = LearningCurve()
    if run_folder is not None:
        with suppress(RollaxError):  # a new run
            curve.restore(read_results(Path(run_folder))[0])
    return curve
