"""Observations of 64-bit integers: small ones are read, larger ones are refused instead of being read modulo 2**32."""

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from rollax import BatchError, EnvError, RolloutWorker, SampleBatch
from rollax.algorithms.pg import PG
from rollax.algorithms.ppo import PPO

CHOICES = spaces.Discrete(2)


def box(dtype: type) -> spaces.Box:
    limits = np.iinfo(dtype)
    return spaces.Box(limits.min, limits.max, (2,), dtype)


def make(space: spaces.Space) -> PPO:
    return PPO.make_policy(space, CHOICES, {"seed": 0, "model": {"fcnet_hiddens": (4,)}})


@pytest.mark.parametrize(("dtype", "low", "high"), [(np.int64, -(2**31), 2**31 - 1), (np.uint64, 0, 2**32 - 1)])
def test_integers_that_jax_would_wrap(dtype, low, high):
    policy = make(spaces.Dict({"time": box(dtype), "x": spaces.Box(-1, 1, (1,))}))

    def obs(value: int) -> dict[str, np.ndarray]:
        time = np.array([[1, 2], [3, value]], dtype)
        return {"time": time, "x": np.zeros((2, 1), np.float32)}

    for value in (low, high):
        assert np.isfinite(policy.compute_values(obs(value))).all()
        policy.compute_actions(obs(value))
    for value in (high + 1, *([low - 1] if low else [])):
        for call in (policy.compute_values, policy.compute_actions, policy.act_greedily):
            with pytest.raises(EnvError, match="needs more than 32 bits") as error:
                call(obs(value))
            assert "key 'time', row 1 of 2\n" in str(error.value)
            assert f"got:      {value}, in Box((2,), {np.dtype(dtype)})" in str(error.value)


def test_floats_in_the_place_of_integers_are_not_wrapped():
    policy = make(box(np.int64))
    large = np.full((1, 2), 2.0**32 + 1024, np.float32)
    assert policy.compute_values(large) != policy.compute_values(np.full((1, 2), 1024, np.int64))


class Spread(PG):
    """Its loss counts the trajectories of the batch."""

    reads = (*PG.reads, "trajectory_id")
    numbered = False

    def loss_columns(self, batch, rng):
        ids = batch["trajectory_id"]
        ids = np.unique(ids, return_inverse=True)[1] if self.numbered else ids
        return {**super().loss_columns(batch, rng), "trajectory_id": ids}

    def loss(self, model, out, batch, mask, coefficients):
        loss, _ = super().loss(model, out, batch, mask, coefficients)
        ids = jnp.sort(batch["trajectory_id"])
        return loss, {"trajectories": 1 + jnp.sum(ids[1:] != ids[:-1])}


class Numbered(Spread):
    numbered = True


def test_ids_of_several_workers_in_a_loss_of_ones_own():
    # Those of different workers differ in the upper bits alone.
    config = {"rollout_fragment_length": 8, "seed": 0}
    workers = [RolloutWorker("CartPole-v1", Spread, config=config, worker_index=index) for index in (1, 2)]
    batch = SampleBatch.concat_samples([worker.sample() for worker in workers])
    assert len(np.unique(batch["trajectory_id"])) == 2
    with pytest.raises(BatchError, match=r"more than 32 bits(.|\n)*'trajectory_id'(.|\n)*return_inverse"):
        workers[0].get_policy().learn_on_batch(batch)
    policy = RolloutWorker("CartPole-v1", Numbered, config=config).get_policy()
    assert policy.learn_on_batch(batch)["trajectories"] == 2
