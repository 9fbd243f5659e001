"""The command serve."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollax.cli.completion import complete_run, complete_setting
from rollax.cli.console import (
    SIGNALLED,
    ImportOption,
    TracebackOption,
    TrustOption,
    new_folder,
    passed,
    readable_errors,
)
from rollax.cli.parsing import parse_config, parse_json, parse_settings
from rollax.core.importing import ImportPath, import_object, named_by_caller
from rollax.errors import ConfigError

if TYPE_CHECKING:
    from rollax.serving.policy_backend import PolicyBackend

_FREQUENCY_S = 60.0


def serve(
    checkpoint: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN",
            help="A checkpoint, or a run folder for its newest one; without it, --run starts a run that learns.",
            autocompletion=complete_run,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen on; any other than loopback requires a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="The port; 0 for a free one.")] = 9900,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with the token that clients must send.")
    ] = None,
    certificate: Annotated[Path | None, typer.Option(metavar="FILE", help="TLS certificate chain (PEM).")] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's private key (PEM).")] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Let web pages of this origin use the server; may be repeated."),
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A further name of this server in URLs; may be repeated.")
    ] = None,
    explore: Annotated[bool, typer.Option("--explore", help="Explore, instead of acting greedily.")] = False,
    policy_mapping: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="Agent id to policy id, as a JSON object, or module:function; with several policies."
        ),
    ] = None,
    multi_agent: Annotated[
        bool | None,
        typer.Option("--multi-agent/--single-agent", help="Whether observations and actions are by agent id."),
    ] = None,
    max_episodes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Largest number of running episodes.")
    ] = None,
    idle_timeout: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="SECONDS", help="Drop an episode after this many seconds without a request."),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            parser=named_by_caller,
            metavar="ALGORITHM",
            help="Without a checkpoint: the algorithm that learns from the clients' episodes. With one: module:Class "
            "of the trainer, if it is one of your own.",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Defaults of the algorithm that learns, from another library: rllib. Settings override them.",
        ),
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="JSON", help="Settings of the run that learns, with the spaces in env_config.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="One setting, as in env_config.port=9900; may be repeated.",
            autocompletion=complete_setting,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The folder of the run that learns; if it has checkpoints, the run continues from the newest.",
        ),
    ] = None,
    checkpoint_frequency_s: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="Time between checkpoints of the run that learns; 60 by default."),
    ] = None,
    trust_code: TrustOption = False,
    imports: ImportOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Serve a trained policy over HTTP and WebSockets, or, with --run, a policy that learns from its clients."""
    with readable_errors(traceback, imports):
        from rollax import PolicyServer  # first: if its extra is not installed, the error names the extra

        address: dict[str, Any] = {
            "host": host,
            "port": port,
            "certificate": None if certificate is None else str(certificate),
            "key": None if key is None else str(key),
            "allowed_origins": allow_origin or (),
            "allowed_hosts": allow_host or (),
        }
        limits = passed(max_episodes=max_episodes, idle_timeout_s=idle_timeout)
        if checkpoint is None:
            _refuse_given(
                "The option is for a served checkpoint, but none is given.",
                **{"explore": explore or None, "trust-code": trust_code or None},
                **{"policy-mapping": policy_mapping, "multi-agent": multi_agent},
            )
            token = None if token_file is None else str(token_file)
            env_config = {**address, "token_file": token, "limits": limits}
            frequency_s = _FREQUENCY_S if checkpoint_frequency_s is None else checkpoint_frequency_s
            number = _serve_and_learn(run, preset, config, settings or (), env_config, out, frequency_s)
            raise typer.Exit(SIGNALLED + number)
        _refuse_given(
            "The option is for a run that learns, but a checkpoint is given.",
            preset=preset,
            **{"config": config, "set": settings, "out": out, "checkpoint-frequency-s": checkpoint_frequency_s},
        )
        from rollax.runs.run_folder import newest_checkpoint
        from rollax.serving.limits import Limits
        from rollax.serving.security import read_token

        token = None if token_file is None else read_token(token_file)
        found = newest_checkpoint(checkpoint)
        backend = _backend(found, policy_mapping, multi_agent, explore, run, trust_code)
        server = PolicyServer(backend, **address, token=token, limits=Limits(**limits))
        number = _serve(server, f"{found.name} is served at {server.address}")
    raise typer.Exit(SIGNALLED + number)


def _backend(
    checkpoint: Path, mapping: str | None, multi_agent: bool | None, explore: bool, run: str | None, trust_code: bool
) -> PolicyBackend:
    from rollax.algorithms.named_trainers import trainer_class_named
    from rollax.serving.policy_backend import PolicyBackend

    backend = PolicyBackend.from_checkpoint(
        checkpoint,
        policy_mapping=None if mapping is None else _mapping(mapping),
        multi_agent=multi_agent,
        explore=explore,
        trainer_class=None if run is None else trainer_class_named(run),
        trust_code=trust_code,
    )
    backend.warm_up()
    return backend


def _serve_and_learn(
    run: str | None,
    preset: str | None,
    config: str | None,
    settings: Sequence[str],
    env_config: Mapping[str, Any],
    out: Path | None,
    checkpoint_frequency_s: float,
) -> int:
    """Serves, and learns from the episodes of clients, until a signal arrives; returns the number of the signal."""
    if run is None:
        raise ConfigError("There is nothing to serve.", "rollax serve").expected(
            "a checkpoint, or an algorithm that learns: --run",
            "as in `rollax serve runs/one`, or `rollax serve --run=DQN --set env_config.spaces_of=CartPole-v1`",
        )
    from rollax.algorithms.named_trainers import trainer_class_named
    from rollax.config.presets import preset as preset_of
    from rollax.runs.experiment import merged
    from rollax.runs.run_lock import RunLock
    from rollax.serving.learning_run import addresses_of, learn_until_signal, make_learning_trainer

    given = merged({} if config is None else parse_config(config), parse_settings(settings))
    trainer_class = trainer_class_named(run)
    if preset is not None:
        given = merged(preset_of(preset, trainer_class.name), given)
    folder = new_folder(f"{run.rpartition(':')[2]}-server") if out is None else out
    with RunLock(folder, "--out") as lock, make_learning_trainer(trainer_class, given, env_config, folder) as trainer:
        goes_on = f", from iteration {trainer.iteration}" if trainer.recorded_in else ""

        def announce() -> None:
            print(f"{trainer.name} learns at {', '.join(addresses_of(trainer))} ({folder}{goes_on})", flush=True)

        return learn_until_signal(trainer, lock, checkpoint_frequency_s, announce)


_EXPECTED, _EXAMPLE = "an object of agent ids and policy ids", '{"agent0": "first", "agent1": "second"}'


def _mapping(text: str) -> Any:
    """The policy mapping of an option: a dict, or a function."""
    if not text.lstrip().startswith("{"):
        return import_object(ImportPath(text), "--policy-mapping")
    table = parse_json(text, "--policy-mapping", _EXPECTED, _EXAMPLE)
    if not all(isinstance(policy_id, str) for policy_id in table.values()):
        raise ConfigError(
            "The policy mapping is not a JSON object with policy ids as values.", "--policy-mapping", text
        ).expected(_EXPECTED, f"write --policy-mapping='{_EXAMPLE}', quoted for the shell")
    return table


def _serve(server: Any, line: str) -> int:
    """Serves until a signal arrives; returns the number of the signal."""
    from rollax.runs.interrupts import StopRequest

    stopped = threading.Event()
    with StopRequest(stopped.set) as request, server:
        print(line, flush=True)
        wait_for_signal(stopped)
    assert request.signal is not None
    return request.signal


def wait_for_signal(stopped: threading.Event) -> None:
    """Returns when a signal has set the event."""
    stopped.wait()


def _refuse_given(what: str, **options: Any) -> None:
    """Raises ConfigError for options that are set but have no effect here."""
    for name, value in options.items():
        if value is not None:
            raise ConfigError(what, f"--{name}", value).expected(
                "a checkpoint with --explore, --policy-mapping, --multi-agent and --trust-code, or --run with "
                "--preset, --config, --set, --out and --checkpoint-frequency-s",
                "leave one of them out; to continue a run that learns, pass --run=... --out=RUN_FOLDER",
            )
