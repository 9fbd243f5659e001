"""Tensors of PyTorch that become arrays of JAX and back, without a copy; what is refused."""

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from rollax import EnvError, TorchVectorEnv
from rollax.env.vector.native_vector_env import stated_autoreset_mode
from tests.env.jax.tensor_worlds import Torques, Walks
from tests.env.refused import refused

torch = pytest.importorskip("torch")


class Keeping(Walks):
    """Keeps the tensors of its last actions, which it does not overwrite."""

    def step(self, actions):
        self.actions = actions
        return super().step(actions + 0)


class KeepingTorques(Torques):
    def step(self, actions):
        self.actions = actions
        return super().step(actions)


def test_memory_is_shared():
    """Results are the simulator's memory; actions too, where JAX has their dtype: it has float32, but not int64."""
    inside = KeepingTorques(torch)
    env = TorchVectorEnv(inside)
    env.reset(seed=0)
    actions = jnp.ones((3, 1))
    received = env.step_tensors(actions)
    assert received.obs["at"].unsafe_buffer_pointer() == inside.obs.data_ptr()
    assert received.rewards.unsafe_buffer_pointer() == inside.rewards.data_ptr()
    assert received.terminateds.unsafe_buffer_pointer() == inside.terminated.data_ptr()
    assert received.truncateds.unsafe_buffer_pointer() == inside.truncated.data_ptr()
    assert inside.actions.data_ptr() == actions.unsafe_buffer_pointer()


def test_integer_actions_have_the_dtype_of_the_space():
    inside = Keeping(torch)
    env = TorchVectorEnv(inside)
    env.reset(seed=0)
    env.step_tensors(jnp.array([0, 1, 1]))
    assert inside.actions.dtype == torch.int64
    assert inside.actions.tolist() == [0, 1, 1]


@pytest.mark.parametrize("world", [Walks, Torques])
def test_on_the_host_it_is_the_same_environment_in_numpy(world):
    env, other = TorchVectorEnv(world(torch, final="final_obs")), world(np, final="final_obs")
    np.testing.assert_equal(env.reset(seed=4), other.reset(seed=4))
    random, ends = np.random.default_rng(0), np.zeros(2, int)
    for _ in range(40):
        actions = random.integers(0, 2, 3)
        if world is Torques:
            actions = (2 * actions - 1).astype(np.float32)[:, None]
        result, expected = env.step(actions.copy()), other.step(actions)
        np.testing.assert_equal(result, expected)
        assert all(isinstance(part, np.ndarray) for part in result[1:4])
        ends += [flag.sum() for flag in result[2:4]]
    assert (ends > 5).all()


def test_results_on_the_host_do_not_change_with_the_next_step():
    env = TorchVectorEnv(Walks(torch))
    obs, _ = env.reset(seed=1)
    before = obs.copy()
    env.step(np.ones(3, int))
    np.testing.assert_array_equal(obs, before)


class Changed(Walks):
    """A walker whose results of a step are changed by a function."""

    def __init__(self, change):
        super().__init__(torch)
        self.change = change

    def step(self, actions):
        return self.change(*super().step(actions))


def _without_final(obs, rewards, terminated, truncated, infos):
    return obs, rewards, terminated, truncated | True, {}


REFUSED = {
    "NumPy": lambda obs, *rest: (obs.numpy(), *rest),
    "another device": lambda obs, *rest: (obs.to("meta"), *rest),
    "a gradient": lambda obs, *rest: (obs.requires_grad_(), *rest),
    "fewer rows": lambda obs, *rest: (obs[:2], *rest),
    "another shape": lambda obs, *rest: (obs[:, :1], *rest),
    "another structure": lambda obs, *rest: ({"obs": obs}, *rest),
    "complex observations": lambda obs, *rest: (obs + 0j, *rest),
    "rewards with an axis": lambda obs, rewards, *rest: (obs, rewards[:, None], *rest),
    "rewards that are flags": lambda obs, rewards, *rest: (obs, rewards > 0, *rest),
    "flags that are numbers": lambda obs, rewards, terminated, *rest: (obs, rewards, terminated.float(), *rest),
    "four values": lambda obs, rewards, terminated, truncated, infos: (obs, rewards, terminated, infos),
    "no last observation": _without_final,
    "a last observation of one": lambda *rest: (*rest[:-1], {"final_obs": rest[0][0]}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_results_are_refused(case):
    env = TorchVectorEnv(Changed(REFUSED[case]))
    env.reset(seed=0)
    refused(EnvError, env.step_tensors, jnp.zeros(3, int))


def test_numbers_of_other_dtypes_are_cast():
    """Float64 and strided tensors are copied, on the device."""
    env = TorchVectorEnv(Changed(lambda obs, rewards, *rest: (obs.double().T.contiguous().T, rewards.double(), *rest)))
    env.reset(seed=0)
    received, expected = env.step_tensors(jnp.zeros(3, int)), TorchVectorEnv(Walks(torch))
    expected.reset(seed=0)
    np.testing.assert_equal(jax.device_get(received), jax.device_get(expected.step_tensors(jnp.zeros(3, int))))


def test_the_shared_metadata_of_gymnasium_states_no_mode(monkeypatch):
    """ale-py writes the mode of its own environments there."""
    monkeypatch.setitem(gym.vector.VectorEnv.metadata, "autoreset_mode", AutoresetMode.NEXT_STEP)

    class Silent(Walks):
        metadata = gym.vector.VectorEnv.metadata

    assert stated_autoreset_mode(Silent(torch)) is None
    TorchVectorEnv(Silent(torch)).reset()
    assert stated_autoreset_mode(OtherMode(torch)) is AutoresetMode.NEXT_STEP


class OtherMode(Walks):
    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}


@pytest.mark.parametrize("make", [lambda: OtherMode(torch), lambda: spaces.Discrete(2), lambda: Walks(np)])
def test_other_environments_are_refused(make):
    refused(EnvError, lambda: TorchVectorEnv(make()).reset())
