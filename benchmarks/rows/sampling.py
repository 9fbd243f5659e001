"""Sampling alone, in one process."""

from __future__ import annotations

from benchmarks.measure import Against, Bound, Row
from benchmarks.processes import Side
from benchmarks.rows.commands import own, peer

_AHEAD = (Against("raw loop"), Against("Stable-Baselines3", 1.0), Against("RLlib", 1.0))


def sampling_rows() -> tuple[Row, ...]:
    """Returns the benchmarks of sampling many kinds of environments with a policy in the loop."""
    return (
        _sampling(
            "CartPole-v1", 64, (Against("raw loop", 0.5), Against("Stable-Baselines3", 1.5), Against("RLlib", 6.0))
        ),
        _sampling("CartPole-v1", 8, _AHEAD),
        _sampling("CartPole-v1", 1, _AHEAD),
        _sampling("Pendulum-v1", 64, _AHEAD),
        _native_sampling(),
        _recurrent_sampling(),
        _multi_agent(),
        _remote(lockstep=False),
        _remote(lockstep=True),
        _external(threads=False),
        _external(threads=True),
        _multi_agent_cartpole(),
        _tic_tac_toe(),
        _pong_sampling(),
        _atari_vector(),
    )


def _sampling(env: str, num_envs: int, targets: tuple[Against, ...]) -> Row:
    """Returns sampling of copies of `env` with a policy, against a raw loop over the same copies, SB3 and RLlib."""
    settings = {"env": env, "num_envs": num_envs, "fragment": max(128, 1024 // num_envs)}
    return Row(
        name=f"sampling_{env.split('-')[0].lower()}_{num_envs}",
        work=f"sampling {env}, {num_envs} sub-envs, 64×64 tanh actor and critic, one process",
        unit="env steps/s",
        better="more",
        sides=(
            own("rollax", "rollax_sampling.copies", settings),
            own("raw loop", "raw.loop", settings),
            peer("Stable-Baselines3", "sb3.sampling", settings),
            peer("RLlib", "rllib.sampling", settings),
        ),
        targets=targets,
        notes="The raw loop steps `gym.make` copies in turn with actions drawn beforehand. rollax's `sample()` and "
        "SB3's `collect_rollouts` (`DummyVecEnv`) compute values and advantages too; RLlib's `SingleAgentEnvRunner` "
        "computes neither while it samples.",
    )


def _recurrent_sampling() -> Row:
    settings = {"env": "CartPole-v1", "num_envs": 64, "fragment": 128}

    def side(name: str, **model: object) -> Side:
        return own(name, "rollax_sampling.copies", {**settings, "model": model})

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


def _native_sampling() -> Row:
    settings = {"env": "CartPole-v1", "num_envs": 64, "fragment": 128}
    return Row(
        name="sampling_cartpole_native_64",
        work="sampling Gymnasium's native vector CartPole, 64 copies, 64×64 tanh actor and critic",
        unit="env steps/s",
        better="more",
        sides=(
            own("rollax", "rollax_sampling.copies", {**settings, "native": True}),
            own("raw vector env", "raw.vector", settings),
        ),
        targets=(Against("raw vector env", 0.30),),
        notes='Both sides step `gym.make_vec("CartPole-v1", 64, vectorization_mode="vector_entry_point")`. It uses a '
        "step for every reset; the raw side counts these steps, rollax does not, because it does not train on them.",
    )


def _multi_agent() -> Row:
    settings = {"num_agents": 100, "fragment": 200}
    return Row(
        name="sampling_100_agents",
        work="sampling 100 agents of one `MultiAgentEnv` that costs nothing to step, one shared 64×64 tanh policy",
        unit="agent steps/s",
        better="more",
        sides=(
            own("rollax", "rollax_sampling.free_agents", settings),
            peer("RLlib", "rllib.free_agents", settings),
        ),
        targets=(Against("RLlib", 15.0), Bound("rollax", "at least", 150_000)),
        notes="Both sides get the same prepared dicts. RLlib's `MultiAgentEnvRunner` computes no values or advantages "
        "while it samples.",
    )


def _external(*, threads: bool) -> Row:
    settings = {"episodes": 256, "fragment": 8192, "threads": threads}
    return Row(
        name="sampling_external_threads" if threads else "sampling_external",
        work="sampling an `ExternalEnv` of 256 concurrent episodes that cost nothing, "
        + ("each in a thread of its own" if threads else "one thread with `get_actions`")
        + ", 64×64 tanh actor and critic",
        unit="actions/s",
        better="more",
        sides=(own("rollax", "rollax_sampling.external", settings),),
        targets=(Bound("rollax", "at least", 8_000 if threads else 40_000),),
        notes="Each episode logs a reward of 1 after every action and ends after 200. The side notes how many actions "
        "came out of one forward pass.",
    )


def _multi_agent_cartpole() -> Row:
    settings = {"num_agents": 4, "num_envs": 16, "fragment": 128}
    return Row(
        name="sampling_multi_agent_cartpole",
        work="sampling 16 copies of a `MultiAgentEnv` of 4 agents, each with a `CartPole-v1` of its own, 2 policies "
        "(64×64 tanh)",
        unit="agent steps/s",
        better="more",
        sides=(
            own("rollax", "rollax_sampling.many_cartpoles", settings),
            own("raw loop", "raw.many_cartpoles", settings),
        ),
        targets=(Against("raw loop", 0.4),),
        notes="The raw loop steps the same copies in turn with actions drawn beforehand. An agent leaves when its pole "
        "falls; the episode ends with the last of them.",
    )


def _tic_tac_toe() -> Row:
    settings = {"num_envs": 64, "fragment": 128}
    return Row(
        name="sampling_tic_tac_toe",
        work="sampling PettingZoo's AEC tic-tac-toe, 64 copies, one masked policy (64×64 tanh) on both sides",
        unit="agent steps/s",
        better="more",
        sides=(
            own("rollax", "rollax_sampling.tic_tac_toe", settings),
            own("raw loop", "raw.tic_tac_toe", settings),
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
            own("rollax, remote", "rollax_sampling.sleeping", {"num_envs": 8, "sleep_ms": 10, "wait_ms": wait_ms}),
            own("one in the process", "rollax_sampling.sleeping", {"num_envs": 1, "sleep_ms": 10}),
        ),
        targets=(Against("one in the process", at_least),),
        rounds=5,
        notes="Each remote sub-env is a Ray actor. One env cannot do more than 100 steps/s, eight no more than 800.",
    )


def _pong_sampling() -> Row:
    settings = {"env": "ALE/Pong-v5", "num_envs": 16, "fragment": 64}
    return Row(
        name="pong_sampling",
        work="sampling ALE/Pong-v5 (84×84×4, ale-py's native vector env), 16 copies, PPO's convolutional policy",
        unit="env steps/s",
        better="more",
        sides=(
            own("rollax", "rollax_sampling.copies", {**settings, "native": True}),
            own("raw vector env", "raw.vector", settings),
        ),
        targets=(Against("raw vector env"),),
        rounds=5,
        notes="An env step is four frames of the game.",
    )


def _atari_vector() -> Row:
    settings = {"env": "ALE/Pong-v5", "num_envs": 16, "fragment": 32}
    return Row(
        name="atari_vector",
        work="stepping ALE/Pong-v5 (84×84×4), 16 copies, through ale-py's native vector env and one by one",
        unit="env steps/s",
        better="more",
        sides=(
            own("native vector env", "raw.atari", {**settings, "native": True}),
            own("one by one", "raw.atari", {**settings, "native": False}),
        ),
        targets=(Against("one by one", 1.7),),
        rounds=5,
        notes="Both sides are rollax's `BaseEnv` of the id, by default and with `native_vector=False` (Gymnasium's "
        "`AtariPreprocessing` and `FrameStackObservation`), with the same actions and no policy. Both give the same "
        "observations, bit for bit. An env step is four frames of the game; the native env steps them in threads.",
    )
