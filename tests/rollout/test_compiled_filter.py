"""The observation filter inside compiled loops, beside the one on the host."""

import numpy as np
import pytest
from gymnasium import spaces

from rollax.rollout.compiled_policy import CompiledFilter
from rollax.rollout.filters import MeanStdFilter

SPACE = spaces.Box(-np.inf, np.inf, (4,), np.float32)


@pytest.mark.parametrize("rows", [1, 3, 10, 64])
def test_observations_are_those_of_the_filter_on_the_host(rows):
    random = np.random.default_rng(0)
    obs = random.normal([0, 100, 0, 0], [1, 0.5, 0, 0], (6, rows, 4)).astype(np.float32)
    obs[..., 2:] = 0.1, 3.7  # sums of equal numbers are rounded, and their deviation from the mean is not 0 then
    counted = random.random((6, rows)) < 0.7
    counted[2] = False
    host = MeanStdFilter(SPACE)
    host(obs[0])
    compiled = CompiledFilter(host, SPACE)
    moments = compiled.moments()
    for step in range(1, 6):
        chosen = counted[step]
        if chosen.any():
            host(obs[step][chosen])
        moments = compiled.seen(moments, obs[step], chosen)
        mine, expected = np.asarray(compiled(moments, obs[step])), host(obs[step], update=False)
        np.testing.assert_allclose(mine, expected, rtol=1e-3, atol=1e-3)
        assert not mine[:, 2:].any()
