"""Gymnasium's classic control in JAX, with its equations, constants and spaces.

Numbers are float32, where Gymnasium computes in float64: one step from the same state agrees up to float32 rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from rollax.env.jax.jax_env import JaxEnv, Outcome


@dataclass(eq=False)
class CartPole(JaxEnv):
    """Balance a pole on a cart: a reward of 1 for each step, until the pole falls or the cart leaves the track.

    Source: Barto, Sutton and Anderson (1983), "Neuronlike adaptive elements that can solve difficult learning control
        problems"; Florian (2007), "Correct equations for the dynamics of the cart-pole system", Eq. 23 and 24, without
        friction:
            θ'' = (g · sin θ - cos θ · (F + m · l · θ'² · sin θ) / M) / (l · (4/3 - m · cos² θ / M)),  M = m + m_cart
            x'' = (F + m · l · (θ'² · sin θ - θ'' · cos θ)) / M
        integrated by Euler's method.

    The state is [4]: the cart's position and velocity, the pole's angle and angular velocity.

    Args:
        gravity: in m/s².
        masscart: in kg.
        masspole: in kg.
        length: half of the pole's length, in m.
        force_mag: force of an action, in N.
        tau: seconds between steps.
    """

    gravity: float = 9.8
    masscart: float = 1.0
    masspole: float = 0.1
    length: float = 0.5
    force_mag: float = 10.0
    tau: float = 0.02

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
        r = -(θ² + 0.1 · θ'² + 0.001 · u²), with θ in [-π, π) and the torque u in [-2, 2]
        θ' ← clip(θ' + (3/2 · g / l · sin θ + 3 · u / (m · l²)) · dt, ±8),  θ ← θ + θ' · dt

    The state is [2]: the pendulum's angle, 0 if upright, and angular velocity. Episodes never terminate.

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


@dataclass(eq=False)
class Acrobot(JaxEnv):
    """Swing the end of two links above a line, by a torque on the joint between them: -1 for each step until then.

    Source: Sutton (1996), "Generalization in reinforcement learning: successful examples using sparse coarse coding";
        Sutton and Barto (1998), section 11.3, for θ₁'' and θ₂''. As in Gymnasium's Acrobot-v1, a step is one step of
        the Runge-Kutta method of order 4.

    The state is [4]: the angle of the first link from below, the angle of the second link relative to the first, and
    their velocities.

    Args:
        link_length: length of the first link, in m.
        link_mass: of each link, in kg.
        link_com: distance of the center of mass of each link from its upper end, in m.
        link_moment: moment of inertia of each link, in kg m².
        gravity: in m/s².
        dt: seconds between steps.
    """

    link_length: float = 1.0
    link_mass: float = 1.0
    link_com: float = 0.5
    link_moment: float = 1.0
    gravity: float = 9.8
    dt: float = 0.2

    max_speeds = (4 * math.pi, 9 * math.pi)

    def __post_init__(self) -> None:
        high = np.array([1.0, 1.0, 1.0, 1.0, *self.max_speeds], np.float32)
        self.observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.action_space = spaces.Discrete(3)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state = jax.random.uniform(key, (4,), jnp.float32, -0.1, 0.1)
        return state, _acrobot_obs(state)

    def step(self, state: Any, action: Any, key: jax.Array) -> Outcome:
        torque, dt = jnp.asarray(action, jnp.float32) - 1.0, self.dt
        k1 = self._derivatives(state, torque)
        k2 = self._derivatives(state + dt / 2 * k1, torque)
        k3 = self._derivatives(state + dt / 2 * k2, torque)
        k4 = self._derivatives(state + dt * k3, torque)
        state = state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        limits = jnp.array(self.max_speeds, jnp.float32)
        angles = (state[:2] + math.pi) % (2 * math.pi) - math.pi
        state = jnp.concatenate([angles, jnp.clip(state[2:], -limits, limits)])
        over = -jnp.cos(state[0]) - jnp.cos(state[0] + state[1]) > 1.0
        return Outcome(state, _acrobot_obs(state), jnp.where(over, 0.0, -1.0), over)

    def _derivatives(self, state: jax.Array, torque: jax.Array) -> jax.Array:
        angle1, angle2, speed1, speed2 = state
        mass, length, com, moment, g = self.link_mass, self.link_length, self.link_com, self.link_moment, self.gravity
        coupling, sine = mass * length * com, jnp.sin(angle2)
        d1 = mass * com**2 + mass * (length**2 + com**2) + 2 * coupling * jnp.cos(angle2) + 2 * moment
        d2 = mass * com**2 + coupling * jnp.cos(angle2) + moment
        phi2 = mass * com * g * jnp.cos(angle1 + angle2 - math.pi / 2)
        phi1 = -coupling * sine * speed2 * (speed2 + 2 * speed1) + phi2
        phi1 += mass * (com + length) * g * jnp.cos(angle1 - math.pi / 2)
        pushed = torque + d2 / d1 * phi1 - coupling * speed1**2 * sine - phi2
        acceleration2 = pushed / (mass * com**2 + moment - d2**2 / d1)
        acceleration1 = -(d2 * acceleration2 + phi1) / d1
        return jnp.stack([speed1, speed2, acceleration1, acceleration2])


def _acrobot_obs(state: jax.Array) -> jax.Array:
    cosines, sines = jnp.cos(state[:2]), jnp.sin(state[:2])
    return jnp.stack([cosines[0], sines[0], cosines[1], sines[1], state[2], state[3]])


@dataclass(eq=False)
class _Car(JaxEnv):
    """Base of both cars: the valley that they drive in."""

    goal_velocity: float = 0.0

    positions, max_speed, gravity = (-1.2, 0.6), 0.07, 0.0025

    def __post_init__(self) -> None:
        low, high = self.positions
        self.observation_space = spaces.Box(
            np.array([low, -self.max_speed], np.float32), np.array([high, self.max_speed], np.float32), dtype=np.float32
        )

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state = jnp.stack([jax.random.uniform(key, (), jnp.float32, -0.6, -0.4), jnp.float32(0.0)])
        return state, state

    def _moved(self, state: jax.Array, push: jax.Array, goal: float) -> tuple[jax.Array, jax.Array]:
        """The next state, and whether it is at the goal."""
        position, velocity = state
        velocity = jnp.clip(velocity + push - self.gravity * jnp.cos(3 * position), -self.max_speed, self.max_speed)
        position = jnp.clip(position + velocity, *self.positions)
        velocity = jnp.where((position == self.positions[0]) & (velocity < 0), 0.0, velocity)
        return jnp.stack([position, velocity]), (position >= goal) & (velocity >= self.goal_velocity)


@dataclass(eq=False)
class MountainCar(_Car):
    """Drive a car out of a valley, pushing left, not at all or right: -1 for each step until it is on the hill.

    Source: Moore (1990), "Efficient memory-based learning for robot control"; Gymnasium's MountainCar-v0:
        v ← clip(v + 0.001 · (a - 1) - 0.0025 · cos(3 · x), ±0.07),  x ← clip(x + v, -1.2, 0.6);  v ← 0 at x = -1.2

    The state is [2], the position and the velocity; the observation is the state.

    Args:
        goal_velocity: the least velocity with which the car must arrive at the goal.
    """

    force, goal_position = 0.001, 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.action_space = spaces.Discrete(3)

    def step(self, state: Any, action: Any, key: jax.Array) -> Outcome:
        push = (jnp.asarray(action, jnp.float32) - 1.0) * self.force
        state, over = self._moved(state, push, self.goal_position)
        return Outcome(state, state, jnp.float32(-1.0), over)


@dataclass(eq=False)
class MountainCarContinuous(_Car):
    """Drive a car out of a valley by a weak force, the action a: 100 on the hill, -0.1 · a² for each step.

    Source: Moore (1990), as `MountainCar`; Gymnasium's MountainCarContinuous-v0:
        v ← clip(v + 0.0015 · clip(a, ±1) - 0.0025 · cos(3 · x), ±0.07),  x ← clip(x + v, -1.2, 0.6);  v ← 0 at x = -1.2

    The state is [2], the position and the velocity; the observation is the state.

    Args:
        goal_velocity: the least velocity with which the car must arrive at the goal.
    """

    power, goal_position = 0.0015, 0.45

    def __post_init__(self) -> None:
        super().__post_init__()
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, state: Any, action: Any, key: jax.Array) -> Outcome:
        state, over = self._moved(state, jnp.clip(action[0], -1.0, 1.0) * self.power, self.goal_position)
        return Outcome(state, state, jnp.where(over, 100.0, 0.0) - 0.1 * action[0] ** 2, over)
