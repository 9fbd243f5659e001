"""Ape-X DDPG in one process, and parameter noise of DDPG: exploration, errors, and learning."""

import numpy as np
import pytest
from gymnasium import spaces

from rollax import RolloutWorker
from rollax.algorithms.apex import ApexDDPG, ApexDDPGConfig
from rollax.algorithms.ddpg import DDPG
from rollax.batch import Fragment
from rollax.policy.exploration.parameter_noise import action_distance

BOX = spaces.Box(-1, 1, (3,), np.float32)
SMALL = {"model": {"fcnet_hiddens": (16,), "fcnet_activation": "relu"}, "seed": 0}


@pytest.mark.parametrize("exploration", ["GaussianNoise", "OrnsteinUhlenbeckNoise", "ParameterNoise"])
@pytest.mark.parametrize(("index", "part"), [(1, 0.4), (2, 0.4**4.5), (3, 0.4**8)])
def test_each_worker_has_its_own_scale(exploration, index, part):
    # ε^(1 + 7 i/2) for i = 0, 1, 2, of a noise_scale that rises from 0 to 2
    settings = {"noise_scale_schedule": [(0, 0.0), (100, 2.0)], "exploration": exploration}
    config = ApexDDPGConfig(**SMALL, **settings)
    worker = RolloutWorker("Pendulum-v1", ApexDDPG, config=config, worker_index=index, num_workers=3)
    noise = worker.get_policy().exploration
    if exploration != "ParameterNoise":
        noise = noise.inner  # within the random first steps
    assert noise.scale(50) == pytest.approx(part)
    assert noise.scale(200) == pytest.approx(2 * part)
    worker.stop()


def test_parameter_noise_has_the_scale_of_action_noise():
    config = {**SMALL, "exploration": "ParameterNoise", "noise_scale": 0.2, "random_steps": 0, "parameter_noise": 0.01}
    policy = DDPG.make_policy(BOX, spaces.Box(-1, 1, (2,), np.float32), config)
    obs = np.random.default_rng(0).uniform(-1, 1, (200, 3)).astype(np.float32)
    fragment = {"obs": obs, "trajectory_id": np.zeros(200), "truncateds": np.zeros(200, bool)}
    for _ in range(200):
        acted = policy.compute_actions(obs)[0]
        policy.postprocess_rows(Fragment({**fragment, "terminateds": np.zeros(200, bool)}, np.array([199]), {}))
    greedy = policy.compute_actions(obs, explore=False)[0]
    # σ moves by four hundredths at a time, and so does the distance, as long as actions are not near their bounds.
    assert action_distance(greedy, acted) == pytest.approx(0.2, rel=0.1)
