"""The runs whose numbers a refactoring must not change: all algorithms, with their kinds of spaces and of memory."""

from dataclasses import dataclass, field
from typing import Any

from gymnasium import spaces

from examples.parametric_actions import ParametricCartPole
from tests.algorithms.envs import Echo, Film, MaskedCartPole, TwoAgents
from tests.algorithms.group_envs import Lift, TwoStep, paired
from tests.env.goal_worlds import Reach

ON_POLICY = ("PG", "A2C", "A3C", "PPO", "APPO", "IMPALA")
CONTINUOUS_REPLAY = ("DDPG", "TD3", "SAC", "APEX_DDPG")
DISCRETE_REPLAY = ("DQN", "Rainbow", "SAC", "APEX")
GROUPED = ("QMIX", "VDN")
SYNCHRONOUS = ("PG", "A2C", "PPO", "PQN")

NESTED = spaces.Dict(
    {
        "position": spaces.Box(-1.0, 1.0, (2,)),
        "parts": spaces.Tuple([spaces.Discrete(3), spaces.MultiDiscrete([3, 2]), spaces.MultiBinary(2)]),
    }
)
BOX = spaces.Box(-2.0, 3.0, (2,))
TWO_POLICIES = {"policies": {"left": None, "right": None}, "policy_mapping_fn": lambda agent_id: agent_id}
MEMORY = {
    "use_lstm": True,
    "lstm_cell_size": 4,
    "fcnet_hiddens": (8,),
    "max_seq_len": 4,
    "lstm_use_prev_action": True,
    "lstm_use_prev_reward": True,
}
SMALL_ON_POLICY: dict[str, Any] = {
    "num_envs_per_worker": 3,
    "rollout_fragment_length": 20,
    "train_batch_size": 60,
    "timesteps_per_iteration": 0,
    "model": {"fcnet_hiddens": (8,)},
}
MINIBATCHES: dict[str, Any] = {"sgd_minibatch_size": 20, "num_sgd_iter": 2}
SMALL_REPLAY: dict[str, Any] = {
    "num_envs_per_worker": 2,
    "rollout_fragment_length": 4,
    "train_batch_size": 16,
    "learning_starts": 40,
    "timesteps_per_iteration": 80,
    "training_intensity": 2.0,
    "buffer_size": 300,
    "model": {"fcnet_hiddens": (8,)},
}


@dataclass(frozen=True)
class Case:
    """One run.

    Args:
        algorithm: its name in the registry.
        config: its config, without the seed.
        iterations: number of calls of `train()`.
    """

    algorithm: str
    config: dict[str, Any] = field(default_factory=dict)
    iterations: int = 3


class TwoKnownAgents(TwoAgents):
    """Declares its agents, as a centralized critic requires."""

    possible_agents = ("left", "right")


def make_cases(*, workers: bool = False) -> dict[str, Case]:
    """Name -> case; with `workers` also cases with two Ray workers."""
    cases: dict[str, Case] = {}

    def add(name: str, algorithm: str, *changes: dict[str, Any], iterations: int = 3) -> None:
        config: dict[str, Any] = dict(MINIBATCHES) if algorithm in ("PPO", "PQN") else {}
        for change in changes:
            config |= change
        if algorithm == "A3C":  # it computes a gradient from each fragment
            config.pop("train_batch_size", None)
        cases[f"{algorithm} {name}"] = Case(algorithm, config, iterations)

    for algorithm in (*ON_POLICY, "PQN"):
        add("cartpole", algorithm, SMALL_ON_POLICY, {"env": "CartPole-v1", "observation_filter": "MeanStdFilter"})
        add("memory", algorithm, SMALL_ON_POLICY, {"env": "CartPole-v1", "model": MEMORY})
        add("masked", algorithm, SMALL_ON_POLICY, {"env": MaskedCartPole})
        add("parametric, memory", algorithm, SMALL_ON_POLICY, {"env": ParametricCartPole, "model": MEMORY})
        add("two policies", algorithm, SMALL_ON_POLICY, {"env": TwoAgents, "multiagent": TWO_POLICIES})
    for algorithm in ON_POLICY:
        add("pendulum", algorithm, SMALL_ON_POLICY, {"env": "Pendulum-v1", "clip_rewards": 5.0})
    nested = {"env": Echo, "env_config": {"space": NESTED}}
    add("nested spaces", "PPO", SMALL_ON_POLICY, nested)
    add("complete episodes", "PPO", SMALL_ON_POLICY, {"env": "CartPole-v1", "batch_mode": "complete_episodes"})
    minibatches = {"sgd_minibatch_size": 16, "num_sgd_iter": 3, "grad_clip": 0.5}
    add("minibatches", "PPO", SMALL_ON_POLICY, minibatches, {"env": "CartPole-v1"})
    add("memory, minibatches", "PPO", SMALL_ON_POLICY, minibatches, {"env": "CartPole-v1", "model": MEMORY})
    add("one policy, two agents", "PPO", SMALL_ON_POLICY, {"env": TwoAgents})
    add("images", "PPO", SMALL_ON_POLICY, {"env": Film, "model": {"conv_filters": ((4, 3, 2),)}}, iterations=2)
    add("normalized rewards", "PPO", SMALL_ON_POLICY, {"env": "Pendulum-v1", "normalize_rewards": True})
    add("microbatches", "A2C", SMALL_ON_POLICY, {"env": "CartPole-v1", "microbatch_size": 20})
    add("without V-trace", "APPO", SMALL_ON_POLICY, {"env": "CartPole-v1", "vtrace": False, "use_kl_loss": True})
    replayed = {"replay_proportion": 1.0, "replay_buffer_num_slots": 4}
    add("replayed", "IMPALA", SMALL_ON_POLICY, replayed, {"env": "CartPole-v1"})
    central = {"env": TwoKnownAgents, "multiagent": TWO_POLICIES, "centralized_critic": True}
    for algorithm in ("A2C", "PPO"):
        add("centralized critic", algorithm, SMALL_ON_POLICY, central)

    for algorithm in CONTINUOUS_REPLAY:
        add("pendulum", algorithm, SMALL_REPLAY, {"env": "Pendulum-v1"})
    for algorithm in DISCRETE_REPLAY:
        add("cartpole", algorithm, SMALL_REPLAY, {"env": "CartPole-v1"})
        add("masked", algorithm, SMALL_REPLAY, {"env": MaskedCartPole})
        add("parametric", algorithm, SMALL_REPLAY, {"env": ParametricCartPole})
    goals = {"env": Reach, "env_config": {"space": BOX}, "hindsight_goals": 4}
    add("hindsight goals", "SAC", SMALL_REPLAY, goals)
    add("two policies", "DQN", SMALL_REPLAY, {"env": TwoAgents, "multiagent": TWO_POLICIES})
    add(
        "filter, n steps",
        "DQN",
        SMALL_REPLAY,
        {"env": "CartPole-v1", "observation_filter": "MeanStdFilter", "n_step": 3},
    )
    add(
        "uniform, soft",
        "DQN",
        SMALL_REPLAY,
        {"env": "CartPole-v1", "prioritized_replay": False, "exploration": "SoftQ"},
    )
    add("parameter noise", "DQN", SMALL_REPLAY, {"env": "CartPole-v1", "exploration": "ParameterNoise"})
    add("images", "DQN", SMALL_REPLAY, {"env": Film, "model": {"conv_filters": ((4, 3, 2),)}, "n_step": 2})
    add("parameter noise", "DDPG", SMALL_REPLAY, {"env": "Pendulum-v1", "exploration": "ParameterNoise"})
    add("n steps, prioritized", "SAC", SMALL_REPLAY, {"env": "Pendulum-v1", "n_step": 3, "prioritized_replay": True})

    sequences = {"model": MEMORY, "burn_in": 2, "overlap": 1, "prioritized_replay": True}
    add("memory", "DQN", SMALL_REPLAY, sequences, {"env": "CartPole-v1"})
    add("memory", "SAC", SMALL_REPLAY, sequences, {"env": "Pendulum-v1"})
    add("memory", "TD3", SMALL_REPLAY, sequences, {"env": "Pendulum-v1"})

    lift = {**SMALL_REPLAY, "env": lambda context: paired(Lift(context)), "train_batch_size": 8}
    two_step = {**SMALL_REPLAY, "env": lambda context: paired(TwoStep(context)), "train_batch_size": 8}
    for algorithm in GROUPED:
        add("lift, memory", algorithm, lift, {"model": {"use_gru": True, "lstm_cell_size": 8, "max_seq_len": 8}})
        add("two-step game", algorithm, two_step)
    add("two-step game, independent", "QMIX", two_step, {"mixer": None})

    if workers:
        for algorithm in SYNCHRONOUS:
            add("two workers", algorithm, SMALL_ON_POLICY, {"env": "CartPole-v1", "num_workers": 2})
    return cases
