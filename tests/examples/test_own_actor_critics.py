"""CrossQ and TQC of the examples update as those of the library, and their learning runs.

`tests/algorithms/test_crossq.py` and `test_tqc.py` compare those of the library with numbers derived by hand.
"""

import numpy as np
import pytest
from gymnasium import spaces

import rollax
from examples import crossq, tqc
from tests.algorithms.tables import f32, two_rows

LAYERS = {"fcnet_hiddens": (4,), "normalization": "batch_renorm", "fcnet_activation": "relu"}
OF_BOTH = {"train_batch_size": 2, "lr": 1e-3, "policy_delay": 3, "seed": 0}
CASES = [
    (crossq.CrossQ, {"model": LAYERS, "warm_up": 2}),
    (rollax.CrossQ, {"model": LAYERS, "critic_model": LAYERS, "renorm_warmup_steps": 2}),
    (tqc.TQC, {"model": {"fcnet_hiddens": (4,)}, "num_quantiles": 4, "dropped_quantiles": 1}),
    (rollax.TQC, {"model": {"fcnet_hiddens": (4,)}, "num_quantiles": 4, "top_quantiles_to_drop_per_net": 1}),
]


@pytest.mark.parametrize("cases", [CASES[:2], CASES[2:]], ids=["CrossQ", "TQC"])
def test_updates_are_those_of_the_library(cases):
    """Six of them, of which the actor makes two; layers that renormalize are in their warm-up, and then after it."""
    ours, theirs = (
        algorithm.make_policy(spaces.Discrete(3), spaces.Box(-1, 1, (1,)), {**OF_BOTH, **config})
        for algorithm, config in cases
    )
    before = theirs.get_weights()
    ours.set_weights(before)
    for _ in range(6):
        batch = two_rows(actions=f32(0.2, -0.4)[:, None])
        stats, expected = (policy.learn_on_batch(batch) for policy in (ours, theirs))
        assert stats.keys() == expected.keys()
        for name, value in expected.items():
            if value is not None:  # of a part that made no step
                np.testing.assert_allclose(stats[name], value, rtol=1e-5, err_msg=name)
    after = theirs.get_weights()
    for name, value in ours.get_weights().items():
        np.testing.assert_allclose(value, after[name], rtol=1e-5, atol=1e-7, err_msg=name)
        assert (value != before[name]).any()
    assert ours.targets.keys() == theirs.targets.keys()


@pytest.mark.parametrize(("config", "key"), [(crossq.CrossQConfig, {"tau": 0.01}), (tqc.TQCConfig, {"twin_q": False})])
def test_keys_without_effect_are_refused(config, key):
    with pytest.raises(rollax.ConfigError, match=next(iter(key))):
        config(**key)


@pytest.mark.learning
def test_own_crossq_pendulum(reaches):
    reaches(crossq.CrossQTrainer, "Pendulum-v1", -200, 20_000, crossq.CONFIG)


@pytest.mark.learning
def test_own_tqc_pendulum(reaches):
    reaches(tqc.TQCTrainer, "Pendulum-v1", -200, 20_000, tqc.CONFIG)
