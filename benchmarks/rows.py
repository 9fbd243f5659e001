"""Every benchmark: its sides, the settings both sides share, and what rollax must reach."""

from __future__ import annotations

import json
from dataclasses import replace

from benchmarks.measure import Against, Bound, Row
from benchmarks.processes import Side

_FINISHED = r'"event": "finished"'
_RESULT_LINE = r"^iteration 1\b"


def _flags(**settings: object) -> tuple[str, ...]:
    """Returns command-line flags: `num_envs=8` is `--num-envs 8`."""
    return tuple(part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value)))


def _own(module: str, *arguments: str) -> tuple[str, ...]:
    return ("-m", f"benchmarks.sides.{module}", *arguments)


def _peer(module: str, *arguments: str) -> tuple[str, ...]:
    return ("-m", f"benchmarks.peer_scripts.{module}", *arguments)


def _sampling(env: str, num_envs: int, targets: tuple[Against, ...]) -> Row:
    """Sampling copies of `env` with the policy in the loop, against a bare loop over the same copies, SB3 and RLlib."""
    flags = _flags(env=env, num_envs=num_envs, fragment=max(128, 1024 // num_envs))
    return Row(
        name=f"sampling_{env.split('-')[0].lower()}_{num_envs}",
        work=f"sampling {env}, {num_envs} sub-envs, 64×64 tanh actor and critic, one process",
        unit="env steps/s",
        better="more",
        sides=(
            Side("rollax", _own("rollax_sampling", *flags)),
            Side("raw loop", _own("raw_loop", *flags)),
            Side("Stable-Baselines3", _peer("sb3_sampling", *flags), peer="sb3"),
            Side("RLlib", _peer("rllib_sampling", *flags), peer="rllib"),
        ),
        targets=targets,
        notes="The raw loop steps `gym.make` copies in turn with actions drawn beforehand. rollax's `sample()` and "
        "SB3's `collect_rollouts` (`DummyVecEnv`) compute values and advantages too; RLlib's `SingleAgentEnvRunner` "
        "computes neither while it samples.",
    )


def _recurrent_sampling() -> Row:
    flags = _flags(env="CartPole-v1", num_envs=64, fragment=128)

    def side(name: str, **model: object) -> Side:
        return Side(name, _own("rollax_sampling", *flags, *_flags(model=json.dumps(model))))

    return Row(
        name="sampling_recurrent_64",
        work="sampling CartPole-v1 with a memory, 64 sub-envs, one process",
        unit="env steps/s",
        better="more",
        sides=(
            side("LSTM", use_lstm=True),
            side("feed-forward"),
            side("LSTM, shared layers", use_lstm=True, vf_share_layers=True),
            side("GRU", use_gru=True),
        ),
        targets=(Against("feed-forward", 0.6),),
        notes="All sides have 64×64 tanh layers. `use_lstm: True` puts an LSTM of 64 between them and the heads, one "
        "for the actor and one for the critic: a forward pass of about 9 times the multiplications. Shared layers have "
        "one.",
    )


def _recurrent_iteration() -> Row:
    config = {"num_envs_per_worker": 64, "train_batch_size": 8192, "sgd_minibatch_size": 512, "num_sgd_iter": 10}

    def side(name: str, **model: object) -> Side:
        model = {"fcnet_hiddens": [64, 64], **model}
        settings = _flags(env="CartPole-v1", config=json.dumps({**config, "model": model}))
        return Side(name, _own("rollax_training", "duration", *settings))

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


def _native_sampling() -> Row:
    flags = _flags(env="CartPole-v1", num_envs=64, fragment=128)
    return Row(
        name="sampling_cartpole_native_64",
        work="sampling Gymnasium's native vector CartPole, 64 copies, 64×64 tanh actor and critic",
        unit="env steps/s",
        better="more",
        sides=(
            Side("rollax", _own("rollax_sampling", "--native", *flags)),
            Side("raw vector env", _own("raw_vector", *flags)),
        ),
        targets=(Against("raw vector env", 0.30),),
        notes='Both sides step `gym.make_vec("CartPole-v1", 64, vectorization_mode="vector_entry_point")`. It spends a '
        "row on every reset, which the raw side counts and rollax, which trains on none, does not.",
    )


def _ppo_run(steps: int) -> Row:
    flags = _flags(env="CartPole-v1", steps=steps)
    return Row(
        name="ppo_100k",
        work=f"PPO, {steps // 1000}k steps of CartPole-v1 at RL Zoo's settings, whole process with compilation",
        unit="s",
        better="less",
        sides=(
            Side("rollax", _own("rollax_ppo_run", *flags), until=_FINISHED),
            Side("Stable-Baselines3", _peer("sb3_ppo_run", "--library", "sb3", *flags), peer="sb3", until=_FINISHED),
            Side("SBX", _peer("sb3_ppo_run", "--library", "sbx", *flags), peer="sb3", until=_FINISHED),
            Side("rollax, warm cache", _own("rollax_ppo_run", *flags), until=_FINISHED, cache="warm"),
            Side("SBX, warm cache", _peer("sb3_ppo_run", "--library", "sbx", *flags), "sb3", _FINISHED, "warm"),
        ),
        targets=(Against("Stable-Baselines3", 4.0), Against("SBX", 2.2)),
        rounds=3,
        notes="8 envs × 32 steps, batch 256, 20 epochs, γ 0.98, λ 0.8, learning rate 1e-3 → 0, clip 0.2 → 0, no "
        "entropy bonus. Every round is a new process with an empty compilation cache, unless the table says otherwise.",
    )


def _ppo_iteration(width: int) -> Row:
    config = {
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
    own = _own("rollax_training", "duration", *_flags(env="CartPole-v1", config=json.dumps(config)))
    flags = _flags(env="CartPole-v1", num_envs=8, train_batch=4000, minibatch=128, epochs=30, width=width)
    return Row(
        name=f"ppo_iteration_{width}",
        work="a PPO iteration after the first: CartPole-v1, train batch 4000, minibatch 128, 30 epochs, "
        f"{width}×{width} tanh",
        unit="s",
        better="less",
        sides=(Side("rollax", own), Side("RLlib", _peer("rllib_ppo_iteration", *flags), peer="rllib")),
        targets=(Against("RLlib", 10.0),),
        rounds=5,
        notes="RLlib's default loss on both sides, 8 sub-envs, separate actor and critic, sampling and learning in one "
        "process; RLlib on its new API stack.",
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


def _multi_agent() -> Row:
    flags = _flags(num_agents=100, fragment=200)
    return Row(
        name="sampling_100_agents",
        work="sampling 100 agents of one `MultiAgentEnv` that costs nothing to step, one shared 64×64 tanh policy",
        unit="agent steps/s",
        better="more",
        sides=(
            Side("rollax", _own("rollax_multi_agent", *flags)),
            Side("RLlib", _peer("rllib_multi_agent", *flags), peer="rllib"),
        ),
        targets=(Against("RLlib", 15.0), Bound("rollax", "at least", 150_000)),
        notes="Both sides get the same prepared dicts. RLlib's `MultiAgentEnvRunner` computes no values or advantages "
        "while it samples.",
    )


def _external(*, threads: bool) -> Row:
    flags = _flags(episodes=256, fragment=8192) + (("--threads",) if threads else ())
    return Row(
        name="sampling_external_threads" if threads else "sampling_external",
        work="sampling an `ExternalEnv` of 256 concurrent episodes that cost nothing, "
        + ("each in a thread of its own" if threads else "one thread with `get_actions`")
        + ", 64×64 tanh actor and critic",
        unit="actions/s",
        better="more",
        sides=(Side("rollax", _own("rollax_external", *flags)),),
        targets=(Bound("rollax", "at least", 8_000 if threads else 40_000),),
        notes="Each episode logs a reward of 1 after every action and ends after 200. The side notes how many actions "
        "came out of one forward pass.",
    )


def _multi_agent_cartpole() -> Row:
    flags = _flags(num_agents=4, num_envs=16, fragment=128)
    return Row(
        name="sampling_multi_agent_cartpole",
        work="sampling 16 copies of a `MultiAgentEnv` of 4 agents, each with a `CartPole-v1` of its own, 2 policies "
        "(64×64 tanh)",
        unit="agent steps/s",
        better="more",
        sides=(
            Side("rollax", _own("rollax_multi_agent_cartpole", *flags)),
            Side("raw loop", _own("raw_multi_agent_cartpole", *flags)),
        ),
        targets=(Against("raw loop", 0.4),),
        notes="The raw loop steps the same copies in turn with actions drawn beforehand. An agent leaves when its pole "
        "falls; the episode ends with the last of them.",
    )


def _tic_tac_toe() -> Row:
    flags = _flags(num_envs=64, fragment=128)
    return Row(
        name="sampling_tic_tac_toe",
        work="sampling PettingZoo's AEC tic-tac-toe, 64 copies, one masked policy (64×64 tanh) on both sides",
        unit="agent steps/s",
        better="more",
        sides=(
            Side("rollax", _own("rollax_tic_tac_toe", *flags)),
            Side("raw loop", _own("raw_tic_tac_toe", *flags)),
        ),
        targets=(Against("raw loop", 0.5),),
        notes="The raw loop calls `last` and `step` on the same copies in turn and takes any free square.",
    )


def _remote(*, lockstep: bool) -> Row:
    wait_ms, at_least = (1e9, 4.0) if lockstep else (0, 5.0)
    return Row(
        name="sampling_remote_lockstep" if lockstep else "sampling_remote",
        work="sampling 8 remote sub-envs that sleep 10 ms per step, "
        + ("in lockstep" if lockstep else "at 0 ms wait")
        + ", against one in the process; 64×64 tanh actor and critic on both sides",
        unit="env steps/s",
        better="more",
        sides=(
            Side("rollax, remote", _own("rollax_remote", *_flags(num_envs=8, sleep_ms=10, wait_ms=wait_ms))),
            Side("one in the process", _own("rollax_remote", *_flags(num_envs=1, sleep_ms=10))),
        ),
        targets=(Against("one in the process", at_least),),
        rounds=5,
        notes="Each remote sub-env is a Ray actor. One env cannot do more than 100 steps/s, eight no more than 800.",
    )


def _memory(iterations: int) -> Row:
    config = {"num_envs_per_worker": 8, "rollout_fragment_length": 128, "train_batch_size": 1024, "num_sgd_iter": 4}
    flags = _flags(env="CartPole-v1", config=json.dumps(config), warm_up=50, iterations=iterations)
    return Row(
        name="memory",
        work=f"growth of resident memory over {iterations} PPO iterations after 50 of warm-up",
        unit="%",
        better="less",
        sides=(Side("rollax", _own("rollax_training", "memory", *flags)),),
        targets=(Bound("rollax", "at most", 1.0),),
        rounds=1,
    )


def _pong_sampling() -> Row:
    flags = _flags(env="ALE/Pong-v5", num_envs=16, fragment=64)
    return Row(
        name="pong_sampling",
        work="sampling ALE/Pong-v5 (84×84×4, ale-py's native vector env), 16 copies, PPO's convolutional policy",
        unit="env steps/s",
        better="more",
        sides=(
            Side("rollax", _own("rollax_sampling", "--native", *flags)),
            Side("raw vector env", _own("raw_vector", *flags)),
        ),
        targets=(Against("raw vector env"),),
        rounds=5,
        notes="An env step is four frames of the game.",
    )


def _atari_vector() -> Row:
    flags = _flags(env="ALE/Pong-v5", num_envs=16, fragment=32)
    return Row(
        name="atari_vector",
        work="stepping ALE/Pong-v5 (84×84×4), 16 copies, through ale-py's native vector env and one by one",
        unit="env steps/s",
        better="more",
        sides=(
            Side("native vector env", _own("atari_raw", *flags)),
            Side("one by one", _own("atari_raw", "--one-by-one", *flags)),
        ),
        targets=(Against("one by one", 1.7),),
        rounds=5,
        notes="Both sides are rollax's `BaseEnv` of the id, by default and with `native_vector=False` (Gymnasium's "
        "`AtariPreprocessing` and `FrameStackObservation`), with the same actions and no policy. Both give the same "
        "observations, bit for bit. An env step is four frames of the game; the native env steps them in threads.",
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
    training = _flags(env="ALE/Pong-v5", config=json.dumps(config), native_envs=16)
    return Row(
        name="pong_training",
        work="PPO on ALE/Pong-v5 (84×84×4, ale-py's native vector env), 16 copies: sampling and learning",
        unit="env steps/s",
        better="more",
        sides=(
            Side("rollax", _own("rollax_training", "rate", *training)),
            Side("raw vector env", _own("raw_vector", *_flags(env="ALE/Pong-v5", num_envs=16, fragment=64))),
        ),
        targets=(Against("raw vector env"),),
        rounds=3,
        notes="Train batch 2048, minibatch 256, 4 epochs, actor and critic share their convolutions, on the CPU. An "
        "env step is four frames of the game.",
    )


_AHEAD = (Against("raw loop"), Against("Stable-Baselines3", 1.0), Against("RLlib", 1.0))


def make_rows(*, quick: bool = False) -> dict[str, Row]:
    """Returns every benchmark by its name; quick ones do the same with less work, to see that they run."""
    rows = (
        _sampling(
            "CartPole-v1", 64, (Against("raw loop", 0.5), Against("Stable-Baselines3", 1.5), Against("RLlib", 6.0))
        ),
        _sampling("CartPole-v1", 8, _AHEAD),
        _sampling("CartPole-v1", 1, _AHEAD),
        _sampling("Pendulum-v1", 64, _AHEAD),
        _native_sampling(),
        _recurrent_sampling(),
        _recurrent_iteration(),
        _ppo_run(5_000 if quick else 100_000),
        _ppo_iteration(64),
        _ppo_iteration(256),
        _first_line(),
        _multi_agent(),
        _remote(lockstep=False),
        _remote(lockstep=True),
        _external(threads=False),
        _external(threads=True),
        _multi_agent_cartpole(),
        _tic_tac_toe(),
        _memory(20 if quick else 300),
        _pong_sampling(),
        _atari_vector(),
        _pong_training(),
    )
    if quick:
        rows = tuple(replace(row, rounds=min(row.rounds, 2), seconds=0.5) for row in rows)
    return {row.name: row for row in rows}
