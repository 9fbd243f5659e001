"""A sampler from outside the library: the example in `examples/` returns the same rows and episodes."""

import inspect

import numpy as np
import pytest

from examples.own_sampler import PlainSampler
from rollax import ConfigError, RolloutWorker, Sampler
from rollax.algorithms.ppo import PPO
from rollax.rollout.block_sampler import BlockSampler
from rollax.rollout.row_sampler import RowSampler
from tests.env.refused import refused
from tests.rollout.worlds import Encode, Line

CONFIG = {"num_envs_per_worker": 3, "rollout_fragment_length": 7, "observation_filter": "MeanStdFilter", "seed": 3}


def test_the_example_is_short():
    assert len(inspect.getsource(PlainSampler).splitlines()) <= 100


@pytest.mark.short("None-Line", "RowSampler-Line", "RowSampler-CartPole-v1")
@pytest.mark.parametrize("env", [Line, "CartPole-v1"])
@pytest.mark.parametrize("library", [None, RowSampler])
def test_the_same_rows_and_episodes(env, library):
    plain, columns = (RolloutWorker(env, PPO, config={**CONFIG, "sampler": it}) for it in (PlainSampler, library))
    assert type(plain.sampler) is PlainSampler
    assert type(columns.sampler) is (library or BlockSampler)
    for _ in range(5):
        rows, expected = plain.sample(), columns.sample()
        assert rows.env_steps == expected.env_steps == 21
        for name in expected:
            np.testing.assert_array_equal(rows[name], expected[name], err_msg=name)
        assert plain.get_metrics() == columns.get_metrics()
    assert plain.evaluate(4) == columns.evaluate(4)
    assert plain.get_state()["sampling"]["next_trajectory_id"] == columns.get_state()["sampling"]["next_trajectory_id"]


def test_an_error_is_followed_by_fresh_episodes():
    worker = RolloutWorker(Line, Encode, config={**CONFIG, "sampler": PlainSampler})
    worker.sample()
    env = worker.env.env
    step, env._steps[0] = env._steps[0], lambda action: 1 / 0
    with pytest.raises(Exception, match="division"):
        worker.sample()
    env._steps[0] = step
    assert set(worker.sample()["eps_id"]) & {0, 1, 2} == set()


@pytest.mark.parametrize("wrong", [dict, Sampler.__init__])
def test_a_value_that_is_not_a_sampler_is_refused(wrong):
    refused(ConfigError, RolloutWorker, Line, Encode, config={"sampler": wrong}, says="sampler")
