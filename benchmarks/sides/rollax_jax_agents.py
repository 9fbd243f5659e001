"""rollax's `RolloutWorker.sample`: a game of two agents in JAX or in NumPy, one 64x64 tanh policy or two."""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from benchmarks.protocol import serve_rates, versions
from rollax import JaxEnv, MultiAgentEnv, MultiAgentJaxEnv, Outcome, RolloutWorker, TimeLimit
from rollax.algorithms.ppo import PPO, PPOConfig
from rollax.models.config import ModelConfig
from rollax.rollout.row_sampler import RowSampler

_AGENTS = ("ann", "bob")
_PLACES, _STEPS = 10, 30
_OBSERVATIONS, _ACTIONS = spaces.Box(1 - _PLACES, _PLACES - 1, (1,), np.float32), spaces.Discrete(3)


class JaxMeeting(MultiAgentJaxEnv):
    """Two walkers on a line, until they meet."""

    agents = _AGENTS
    observation_space, action_space = _OBSERVATIONS, _ACTIONS

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        places = jax.random.choice(key, _PLACES, (2,), replace=False)
        return places, self._observe(places)

    def step(self, state: Any, action: Any, key: jax.Array) -> Outcome:
        moves = jnp.stack([action[agent] for agent in _AGENTS]) - 1
        places = jnp.clip(state + moves, 0, _PLACES - 1)
        met = places[0] == places[1]
        return Outcome(places, self._observe(places), dict.fromkeys(_AGENTS, jnp.where(met, 1.0, -0.1)), met)

    def _observe(self, places: jax.Array) -> dict[str, jax.Array]:
        distance = (places[1] - places[0])[None]
        return {"ann": distance, "bob": -distance}


class Meeting(MultiAgentEnv):
    """The same game in NumPy."""

    possible_agents = _AGENTS
    observation_space, action_space = _OBSERVATIONS, _ACTIONS

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._places, self._t = self._rng.choice(_PLACES, 2, replace=False).tolist(), 0
        return self._observe(), {}

    def step(self, action_dict: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        moved = (place + int(action_dict[agent]) - 1 for place, agent in zip(self._places, _AGENTS, strict=True))
        self._places = [min(max(place, 0), _PLACES - 1) for place in moved]
        self._t += 1
        met = self._places[0] == self._places[1]
        rewards = dict.fromkeys(_AGENTS, 1.0 if met else -0.1)
        return self._observe(), rewards, {"__all__": met}, {"__all__": self._t >= _STEPS}, {}

    def _observe(self) -> dict[str, np.ndarray]:
        distance = self._places[1] - self._places[0]
        return {"ann": np.array([distance], np.float32), "bob": np.array([-distance], np.float32)}


def main() -> None:
    """Serves rounds of sampling."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--fragment", type=int, required=True)
    parser.add_argument("--num-policies", type=int, required=True, choices=(1, 2))
    parser.add_argument("--numpy", action="store_true", help="copies of the game in NumPy")
    parser.add_argument("--stepwise", action="store_true", help="the game in JAX, stepped from the host")
    args = parser.parse_args()

    def create(_context: Any) -> JaxEnv | MultiAgentEnv:
        return Meeting() if args.numpy else TimeLimit(JaxMeeting(), _STEPS)

    config = PPOConfig(
        num_envs_per_worker=args.num_envs,
        rollout_fragment_length=args.fragment,
        model=ModelConfig(fcnet_hiddens=(64, 64), fcnet_activation="tanh"),
        sampler=RowSampler if args.stepwise else None,
        seed=0,
    )
    names = _AGENTS[: args.num_policies]
    policies = {name: (PPO, _OBSERVATIONS, _ACTIONS, {}) for name in names}
    mapping = dict.fromkeys(_AGENTS, "ann") | {name: name for name in names}
    worker = RolloutWorker(create, policies, policy_mapping_fn=lambda agent_id: mapping[agent_id], config=config)

    def collect() -> int:
        steps = worker.sample().env_steps
        # A trainer reads the metrics once per iteration; unread metrics would accumulate.
        worker.get_metrics()
        return steps

    serve_rates(collect, versions=versions("rollax", "jax", "flax", "gymnasium", "numpy"))


if __name__ == "__main__":
    main()
