"""An environment and a policy mapping of a user's own."""

from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class OwnCartPole(CartPoleEnv):
    """CartPole with another name; its class does not end episodes, so training must be short."""

    def step(self, action):
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, terminated, info


def to_second(agent_id):
    """A policy mapping of a user's own."""
    return "second"
