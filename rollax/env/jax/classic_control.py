"""CartPole and Pendulum in JAX, with the equations, constants and spaces of Gymnasium's classic control.

Numbers are float32, where Gymnasium computes in float64: one step from the same state agrees to float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import Space, spaces

from rollax.env.jax.jax_env import JaxEnv, Outcome


@dataclass(eq=False)
class CartPole(JaxEnv):
    """Balance a pole on a cart: a reward of 1 for each step, until the pole falls or the cart leaves the track.

    Source: Barto, Sutton and Anderson (1983), "Neuronlike adaptive elements that can solve difficult learning control
        problems"; Florian (2007), "Correct equations for the dynamics of the cart-pole system", Eq. 23 and 24, without
        friction:
            θ'' = (g sin θ - cos θ (F + m l θ'² sin θ) / M) / (l (4/3 - m cos² θ / M)),  M = m + m_cart
            x'' = (F + m l (θ'² sin θ - θ'' cos θ)) / M
        integrated by Euler's method.

    The state is [4]: the cart's position and velocity, the pole's angle and angular velocity.

    Args:
        gravity: in m/s².
        masscart: in kg.
        masspole: in kg.
        length: half of the pole's length, in m.
        force_mag: of an action, in N.
        tau: seconds between steps.
    """

    gravity: float = 9.8
    masscart: float = 1.0
    masspole: float = 0.1
    length: float = 0.5
    force_mag: float = 10.0
    tau: float = 0.02
    observation_space: Space = field(init=False, repr=False)
    action_space: Space = field(init=False, repr=False)

    x_threshold = 2.4
    theta_threshold = 12 * 2 * math.pi / 360

    def __post_init__(self) -> None:
        high = np.array([2 * self.x_threshold, np.inf, 2 * self.theta_threshold, np.inf], np.float32)
        self.observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state = jax.random.uniform(key, (4,), jnp.float32, -0.05, 0.05)
        return state, state

    def step(self, state: Any, action: Any, key: jax.Array) -> Outcome:
        x, x_dot, theta, theta_dot = state
        force = jnp.where(action == 1, self.force_mag, -self.force_mag)
        sine, cosine = jnp.sin(theta), jnp.cos(theta)
        mass, moment = self.masscart + self.masspole, self.masspole * self.length
        pushed = (force + moment * theta_dot**2 * sine) / mass
        theta_acc = (self.gravity * sine - cosine * pushed) / (
            self.length * (4.0 / 3.0 - self.masspole * cosine**2 / mass)
        )
        x_acc = pushed - moment * theta_acc * cosine / mass
        state = jnp.stack(
            [
                x + self.tau * x_dot,
                x_dot + self.tau * x_acc,
                theta + self.tau * theta_dot,
                theta_dot + self.tau * theta_acc,
            ]
        )
        over = (jnp.abs(state[0]) > self.x_threshold) | (jnp.abs(state[2]) > self.theta_threshold)
        return Outcome(state, state, jnp.float32(1.0), over)


@dataclass(eq=False)
class Pendulum(JaxEnv):
    """Swing a pendulum up and keep it upright, with a torque that is too weak to lift it at once.

    Source: Gymnasium's Pendulum-v1:
        r = -(θ² + 0.1 θ'² + 0.001 u²), with θ in [-π, π)
        θ' ← clip(θ' + (3 g / (2 l) sin θ + 3 u / (m l²)) dt, -8, 8),  θ ← θ + θ' dt

    The state is [2]: the angle, 0 where it is upright, and the angular velocity. It never terminates.

    Args:
        g: gravity, in m/s².
        m: mass, in kg.
        l: length, in m.
        dt: seconds between steps.
    """

    g: float = 10.0
    m: float = 1.0
    l: float = 1.0  # noqa: E741  Gymnasium's name
    dt: float = 0.05
    observation_space: Space = field(init=False, repr=False)
    action_space: Space = field(init=False, repr=False)

    max_speed = 8.0
    max_torque = 2.0

    def __post_init__(self) -> None:
        high = np.array([1.0, 1.0, self.max_speed], np.float32)
        self.observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.action_space = spaces.Box(-self.max_torque, self.max_torque, (1,), np.float32)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        high = jnp.array([math.pi, 1.0], jnp.float32)
        state = jax.random.uniform(key, (2,), jnp.float32, -high, high)
        return state, _pendulum_obs(state)

    def step(self, state: Any, action: Any, key: jax.Array) -> Outcome:
        angle, speed = state
        torque = jnp.clip(action[0], -self.max_torque, self.max_torque)
        from_upright = (angle + math.pi) % (2 * math.pi) - math.pi
        cost = from_upright**2 + 0.1 * speed**2 + 0.001 * torque**2
        acceleration = 3 * self.g / (2 * self.l) * jnp.sin(angle) + 3.0 / (self.m * self.l**2) * torque
        speed = jnp.clip(speed + acceleration * self.dt, -self.max_speed, self.max_speed)
        state = jnp.stack([angle + speed * self.dt, speed])
        return Outcome(state, _pendulum_obs(state), -cost, jnp.bool_(False))


def _pendulum_obs(state: jax.Array) -> jax.Array:
    return jnp.stack([jnp.cos(state[0]), jnp.sin(state[0]), state[1]])
