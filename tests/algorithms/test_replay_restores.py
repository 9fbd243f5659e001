"""A checkpoint that does not fit changes neither policies nor replay buffers."""

import pytest

from rollax import ApexDQNTrainer, DQNTrainer, PolicyError, PolicySpec
from tests.algorithms.checkpoints import to_plain
from tests.algorithms.envs import TwoAgents
from tests.algorithms.replayed import SMALL

POLICIES = {"policies": {"left": None, "right": None}, "policy_mapping_fn": lambda agent: agent}


@pytest.mark.long
@pytest.mark.parametrize("trainer_class", [DQNTrainer, ApexDQNTrainer])
def test_a_refused_checkpoint_changes_nothing(trainer_class, tmp_path):
    config = {
        **SMALL,
        "timesteps_per_iteration": 20,
        "n_step": 1,
        "store_buffer_in_checkpoints": True,
        "multiagent": POLICIES,
    }
    with trainer_class(TwoAgents, config) as saved:
        saved.train()
        path = saved.save(tmp_path)
    # Weights of `left` fit, so that they are restored before those of `right` are refused.
    unlike = {"left": None, "right": PolicySpec(config={"model": {"fcnet_hiddens": (9,)}})}
    with trainer_class(TwoAgents, {**config, "multiagent": {**POLICIES, "policies": unlike}, "seed": 4}) as trainer:
        for _ in range(2):
            trainer.train()
        before = to_plain(trainer.get_state())
        with pytest.raises(PolicyError, match="wrong shape"):
            trainer.restore(path)
        assert to_plain(trainer.get_state()) == before
        trainer.train()
        assert trainer.optimizer.report()["replay"]["num_updates"] == 10
