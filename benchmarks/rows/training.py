"""Sampling and learning in one process."""

from __future__ import annotations

from typing import Any, Literal

from benchmarks.measure import Against, Bound, Row
from benchmarks.processes import Side
from benchmarks.rows.commands import own, peer

_FINISHED = r'"event": "finished"'
_RESULT_LINE = r"^iteration 1\b"


def training_rows(*, quick: bool) -> tuple[Row, ...]:
    """Returns the benchmarks of iterations, whole runs, and their memory."""
    return (
        _recurrent_iteration(),
        _ppo_run(5_000 if quick else 100_000),
        _ppo_iteration(64),
        _ppo_iteration(256),
        _torch_ppo_iteration(64),
        _first_line(),
        _memory(20 if quick else 300),
        _pong_training(),
    )


def _recurrent_iteration() -> Row:
    config = {"num_envs_per_worker": 64, "train_batch_size": 8192, "sgd_minibatch_size": 512, "num_sgd_iter": 10}

    def side(name: str, **model: object) -> Side:
        full = {**config, "model": {"fcnet_hiddens": [64, 64], **model}}
        return own(name, "rollax_training.iterations", {"measure": "duration", "env": "CartPole-v1", "config": full})

    return Row(
        name="ppo_iteration_recurrent",
        work="a PPO iteration after the first, with a memory: CartPole-v1, train batch 8192, minibatch 512, 10 epochs",
        unit="s",
        better="less",
        sides=(
            side("LSTM", use_lstm=True),
            side("feed-forward"),
            side("LSTM, shared layers", use_lstm=True, vf_share_layers=True),
        ),
        targets=(Against("feed-forward"),),
        rounds=5,
        notes="Sequences of at most 20 rows, padded; sampling and learning in one process.",
    )


def _ppo_run(steps: int) -> Row:
    settings = {"env": "CartPole-v1", "steps": steps}

    def side(name: str, library: str, cache: Literal["cold", "warm"] = "cold") -> Side:
        if library == "rollax":
            return own(name, "rollax_training.ppo_run", settings, until=_FINISHED, cache=cache)
        return peer(name, "sb3.ppo_run", {**settings, "library": library}, until=_FINISHED, cache=cache)

    return Row(
        name="ppo_100k",
        work=f"PPO, {steps // 1000}k steps of CartPole-v1 at RL Zoo's settings, whole process with compilation",
        unit="s",
        better="less",
        sides=(
            side("rollax", "rollax"),
            side("Stable-Baselines3", "sb3"),
            side("SBX", "sbx"),
            side("rollax, warm cache", "rollax", "warm"),
            side("SBX, warm cache", "sbx", "warm"),
        ),
        targets=(Against("Stable-Baselines3", 4.0), Against("SBX", 2.2)),
        rounds=3,
        notes="8 envs × 32 steps, batch 256, 20 epochs, γ 0.98, λ 0.8, learning rate 1e-3 → 0, clip 0.2 → 0, no "
        "entropy bonus. Every round is a new process with an empty compilation cache, unless the table says otherwise.",
    )


def _rllib_settings(width: int) -> dict[str, Any]:
    """PPO at the defaults of RLlib."""
    return {
        "num_envs_per_worker": 8,
        "rollout_fragment_length": 500,
        "train_batch_size": 4000,
        "sgd_minibatch_size": 128,
        "num_sgd_iter": 30,
        "lr": 5e-5,
        "lambda": 1.0,
        "clip_param": 0.3,
        "kl_coeff": 0.2,
        "vf_loss_coeff": 1.0,
        "vf_clip_param": 10.0,
        "grad_clip": None,
        "model": {"fcnet_hiddens": [width, width], "fcnet_activation": "tanh"},
    }


def _peer_settings(width: int) -> dict[str, Any]:
    """The same for the other libraries."""
    sizes = {"num_envs": 8, "train_batch": 4000, "minibatch": 128, "epochs": 30}
    return {"env": "CartPole-v1", **sizes, "width": width}


def _ppo_iteration(width: int) -> Row:
    ours = {"measure": "duration", "env": "CartPole-v1", "config": _rllib_settings(width)}
    return Row(
        name=f"ppo_iteration_{width}",
        work="a PPO iteration after the first: CartPole-v1, train batch 4000, minibatch 128, 30 epochs, "
        f"{width}×{width} tanh",
        unit="s",
        better="less",
        sides=(
            own("rollax", "rollax_training.iterations", ours),
            peer("RLlib", "rllib.ppo_iteration", _peer_settings(width)),
        ),
        targets=(Against("RLlib", 10.0),),
        rounds=5,
        notes="RLlib's default loss on both sides, 8 sub-envs, separate actor and critic, sampling and learning in one "
        "process; RLlib on its new API stack.",
    )


def _torch_ppo_iteration(width: int) -> Row:
    ours = {"env": "CartPole-v1", "config": _rllib_settings(width)}
    return Row(
        name=f"torch_ppo_iteration_{width}",
        work="a PPO iteration after the first, of a policy in PyTorch: CartPole-v1, train batch 4000, minibatch 128, "
        f"30 epochs, {width}×{width} tanh",
        unit="s",
        better="less",
        sides=(
            own("rollax", "rollax_torch_ppo.iterations", ours),
            peer("RLlib", "rllib.ppo_iteration", _peer_settings(width)),
            peer("Stable-Baselines3", "sb3.ppo_iteration", _peer_settings(width)),
        ),
        targets=(Against("RLlib", 1.5), Against("Stable-Baselines3", 1.0)),
        rounds=5,
        notes="As the row in JAX. PyTorch with its default number of threads on all sides. Stable-Baselines3 has no KL "
        "penalty and no bound on value errors.",
    )


def _first_line() -> Row:
    command = ("-m", "rollax", "train", "--run=PPO", "--env=CartPole-v1", "--out={folder}/run")
    return Row(
        name="first_line",
        work="time to the first result line of `rollax train --run=PPO --env=CartPole-v1`, a new process",
        unit="s",
        better="less",
        sides=(
            Side("cold", command, until=_RESULT_LINE),
            Side("warm cache", command, until=_RESULT_LINE, cache="warm"),
        ),
        targets=(Bound("cold", "at most", 10.0), Bound("warm cache", "at most", 10.0)),
        rounds=3,
        notes="Default settings. The time begins with the start of the process. Cold finds an empty compilation cache; "
        "warm one that an earlier run has filled.",
    )


def _memory(iterations: int) -> Row:
    config = {"num_envs_per_worker": 8, "rollout_fragment_length": 128, "train_batch_size": 1024, "num_sgd_iter": 4}
    settings = {"measure": "memory", "env": "CartPole-v1", "config": config, "warm_up": 50, "count": iterations}
    return Row(
        name="memory",
        work=f"growth of resident memory over {iterations} PPO iterations after 50 of warm-up",
        unit="%",
        better="less",
        sides=(own("rollax", "rollax_training.iterations", settings),),
        targets=(Bound("rollax", "at most", 1.0),),
        rounds=1,
    )


def _pong_training() -> Row:
    config = {
        "rollout_fragment_length": 128,
        "train_batch_size": 2048,
        "sgd_minibatch_size": 256,
        "num_sgd_iter": 4,
        "lr": 2.5e-4,
        "clip_param": 0.1,
        "entropy_coeff": 0.01,
        "model": {"vf_share_layers": True},
    }
    training = {"measure": "rate", "env": "ALE/Pong-v5", "config": config, "native_envs": 16}
    return Row(
        name="pong_training",
        work="PPO on ALE/Pong-v5 (84×84×4, ale-py's native vector env), 16 copies: sampling and learning",
        unit="env steps/s",
        better="more",
        sides=(
            own("rollax", "rollax_training.iterations", training),
            own("raw vector env", "raw.vector", {"env": "ALE/Pong-v5", "num_envs": 16, "fragment": 64}),
        ),
        targets=(Against("raw vector env"),),
        rounds=3,
        notes="Train batch 2048, minibatch 256, 4 epochs, actor and critic share their convolutions, on the CPU. An "
        "env step is four frames of the game.",
    )
