"""Clocks in JAX, in which the seed and the actions determine every number, and their traces in a bare loop."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from rollax import JaxEnv, MultiAgentJaxEnv, Outcome, TimeLimit, to_base_env
from rollax.env.rows import DEFAULT_AGENT
from tests.env.drive import Event, Moment, Trace
from tests.env.worlds import ACTION_SPACE, OBS_SPACE, action_for


class JaxClock(JaxEnv):
    """As `Clock`: episodes of 1 to 4 steps end by termination, truncation, or both at once."""

    observation_space, action_space = OBS_SPACE, ACTION_SPACE

    def reset(self, key):
        kind, length, number = jax.random.split(key, 3)
        state = {
            "count": jnp.int32(0),
            "length": jax.random.randint(length, (), 1, 5),
            "kind": jax.random.randint(kind, (), 0, 3),
        }
        return state, jnp.stack([0.0, 0.0, jax.random.uniform(number)])

    def step(self, state, action, key):
        count = state["count"] + 1
        over = count == state["length"]
        obs = jnp.stack([count.astype(float), action.astype(float), jax.random.uniform(key)])
        flags = over & (state["kind"] != 1), over & (state["kind"] != 0)
        return Outcome({**state, "count": count}, obs, count + action / 10, *flags)


class Both(JaxEnv):
    """Nested observations and actions; the observation has what was acted, so that a wrong order shows."""

    observation_space = spaces.Dict(
        {"seen": spaces.Tuple([spaces.Box(-5, 5, (2,), np.float32), spaces.Discrete(7)]), "count": spaces.Discrete(9)}
    )
    action_space = spaces.Dict({"move": spaces.Box(-2, 3, (2,), np.float32), "turn": spaces.MultiDiscrete([2, 3])})

    def reset(self, key):
        return jnp.int32(0), self._obs(jnp.zeros(2), jnp.zeros(2, int), 0)

    def step(self, state, action, key):
        obs = self._obs(action["move"], action["turn"], state + 1)
        return Outcome(state + 1, obs, action["move"].sum(), state == 4, state == 7)

    def _obs(self, move, turn, count):
        return {"seen": (move, turn.sum()), "count": count}


class JaxClocks(MultiAgentJaxEnv):
    """Three clocks, which begin and end together; their numbers and rewards differ."""

    agents = ("c", "a", "b")
    observation_space, action_space = OBS_SPACE, ACTION_SPACE

    def __init__(self, env_config: Any = None) -> None:
        self.clock = JaxClock()

    def reset(self, key):
        state, obs = self.clock.reset(key)
        return state, {agent: obs.at[1].set(place) for place, agent in enumerate(self.agents)}

    def step(self, state, actions, key):
        outcomes = {agent: self.clock.step(state, action, key) for agent, action in actions.items()}
        obs = {agent: one.obs + jnp.array([0, 10 * ord(agent), 0]) for agent, one in outcomes.items()}
        rewards = {agent: one.reward + ord(agent) for agent, one in outcomes.items()}
        return outcomes["a"]._replace(obs=obs, reward=rewards)


class Unlike(MultiAgentJaxEnv):
    """Two agents with different spaces, one of them with masked actions; each observes what the other did."""

    agents = ("mover", "turner")
    observation_spaces = {
        "turner": spaces.Dict({"action_mask": spaces.MultiBinary(3), "seen": spaces.Box(-5, 5, (2,), np.float32)}),
        "mover": spaces.Tuple([spaces.Discrete(3), spaces.Discrete(9)]),
    }
    action_spaces = {"mover": spaces.Box(-2, 3, (2,), np.float32), "turner": spaces.Discrete(3)}

    def reset(self, key):
        return jnp.int32(0), self._obs(jnp.zeros(2), 0, 0)

    def step(self, state, actions, key):
        obs = self._obs(actions["mover"], actions["turner"], state + 1)
        rewards = {"turner": actions["mover"].sum(), "mover": actions["turner"]}
        return Outcome(state + 1, obs, rewards, state == 4, state == 7)

    def _obs(self, move, turn, count):
        mask = (jnp.arange(3) != count % 3).astype(jnp.int8)
        return {"mover": (turn, count), "turner": {"action_mask": mask, "seen": move}}


class Meeting(MultiAgentJaxEnv):
    """Two walkers on a line, who see how far away the other is: each step costs both 0.1, and meeting pays both 1."""

    agents = ("ann", "bob")
    observation_space, action_space = spaces.Box(-9, 9, (1,), np.float32), spaces.Discrete(3)

    def reset(self, key):
        places = jax.random.choice(key, 10, (2,), replace=False)
        return places, self._obs(places)

    def step(self, state, actions, key):
        places = jnp.clip(state + jnp.stack([actions["ann"], actions["bob"]]) - 1, 0, 9)
        met = places[0] == places[1]
        return Outcome(places, self._obs(places), dict.fromkeys(self.agents, jnp.where(met, 1.0, -0.1)), met)

    def _obs(self, places):
        distance = (places[1] - places[0])[None]
        return {"ann": distance, "bob": -distance}


def meeting(context: Any) -> JaxEnv:
    return TimeLimit(Meeting(), 30)


def by_name(agent_id: str) -> str:
    """A policy for each agent."""
    return agent_id


def jax_clocks(num_envs: int, env: type[JaxEnv] = JaxClock) -> Any:
    return to_base_env(env(), num_envs=num_envs)


def jax_clock_trace(seed: int, moments: int, env_class: type[JaxEnv] = JaxClock) -> Trace:
    """What happens to clocks of this seed, one function call after another."""
    env, key, draws = env_class(), jax.random.key(np.uint32(seed)), 0
    several = isinstance(env, MultiAgentJaxEnv)
    trace: list[Moment] = []

    def by_agent(part: Any) -> dict:
        return dict(sorted(part.items())) if several else {DEFAULT_AGENT: part}

    def happened(obs: Any, rewards: Any, terminated: bool, truncated: bool) -> None:
        over = bool(terminated or truncated)
        flags = bool(terminated), bool(truncated), not over
        events = [
            Event(
                agent, tuple(np.asarray(seen).tolist()), None if rewards is None else float(rewards[agent]), *flags, {}
            )
            for agent, seen in by_agent(obs).items()
        ]
        trace.append(Moment(events, over))

    reset, step = jax.jit(env.reset), jax.jit(env.step)
    state, actions = None, {}
    while len(trace) < moments:
        draw, draws = jax.random.fold_in(key, np.uint32(draws)), draws + 1
        if state is None:
            state, obs = reset(draw)
            happened(obs, None, False, False)
        else:
            state, obs, rewards, *flags = step(state, actions if several else actions[DEFAULT_AGENT], draw)
            happened(obs, by_agent(rewards), *flags)
            state = None if any(flags) else state
        actions = {agent: jnp.int32(action_for(np.asarray(seen))) for agent, seen in by_agent(obs).items()}
    return trace
