"""NaN and infinity in samples, weights and targets raise named errors and break nothing, with every algorithm."""

from typing import Any

import numpy as np
import pytest

from rollax import Callbacks, PPOTrainer, Trainer
from rollax.algorithms.registry import ALGORITHMS, get_trainer_class
from rollax.errors import NonFiniteError
from tests.algorithms.contract.cases import settings
from tests.algorithms.replayed import DATA_ALGORITHMS, GROUP_ALGORITHMS, SEARCH_ALGORITHMS, env_of
from tests.marks import long_except

NAMES = [name for name in ALGORITHMS if name not in GROUP_ALGORITHMS | DATA_ALGORITHMS | SEARCH_ALGORITHMS]
ON_POLICY = ("PPO", "PG", "A2C", "A3C", "IMPALA", "APPO", "PQN")
COLUMNS = {
    **{f"{name} {column}": (name, column) for name in ("PPO", "PG") for column in ("obs", "advantages")},
    **{f"{name} advantages": (name, "advantages") for name in ("A2C", "A3C")},
    "PQN value_targets": ("PQN", "value_targets"),
    **{f"{name} rewards": (name, "rewards") for name in NAMES if name not in ("PPO", "PG", "A2C", "A3C", "PQN")},
}
PPO: dict[str, Any] = {**settings("PPO"), "num_sgd_iter": 2}


class InsertNaN(Callbacks):
    """Puts a NaN into the third row of a column of each batch while `column` is set."""

    column = None

    def on_sample_end(self, *, worker, samples):
        if self.column is not None:
            samples[self.column][2] = np.nan


def made(name: str, **changes: Any) -> Trainer:
    trainer_class = get_trainer_class(name)
    return trainer_class(env_of(trainer_class), {**settings(name), **changes})


def assert_learns(trainer: Trainer) -> None:
    policy: Any = trainer.get_policy()
    updates = policy.learner.num_updates
    statistics = trainer.train()["info"]["learner"]["default_policy"]
    assert policy.learner.num_updates > updates
    assert np.isfinite([value for value in statistics.values() if value is not None]).all()


@pytest.mark.short("PPO obs")
@pytest.mark.parametrize("case", long_except({"PPO obs", "PPO advantages", "PG obs", "PG advantages"}, COLUMNS))
def test_nan_in_a_batch_changes_no_weights(monkeypatch, case):
    name, column = case
    with made(name, callbacks=InsertNaN) as trainer:
        trainer.train()
        policy: Any = trainer.get_policy()
        steps, before = policy.learner.num_updates, policy.get_weights()
        with monkeypatch.context() as patch:
            patch.setattr(InsertNaN, "column", column)
            with pytest.raises(NonFiniteError) as error:
                trainer.train()
        message = str(error.value)
        assert "fix:" in message
        if name not in ON_POLICY:
            assert "nothing of it is stored" in message
            assert f"policy 'default_policy', column '{column}', row 2 of" in message
        else:
            assert "policy 'default_policy', gradient step " in message
        if name in ON_POLICY and name != "A3C":  # whose gradients come from workers
            assert "the loss (" in message
            assert f"columns ['{column}']" in message
        # Others are standardized, or of one step: they are in all rows, so that the first step is not finite.
        if column not in ("obs", "value_targets"):
            assert f"gradient step {steps}:" in message or name not in ON_POLICY
            np.testing.assert_equal(before, policy.get_weights())
        assert all(np.isfinite(value).all() for value in policy.get_weights().values())
        assert_learns(trainer)


@pytest.mark.parametrize("name", long_except({"PPO"}, NAMES))
def test_nan_weights_are_detected_in_acting(name):
    with made(name) as trainer:
        trainer.train()
        policy: Any = trainer.get_policy()
        weights = policy.get_weights()
        nan = {n: np.full_like(value, np.nan) if value.dtype.kind == "f" else value for n, value in weights.items()}
        trainer.set_weights({"default_policy": nan})
        observation = np.ones(policy.observation_space.shape, np.float32)
        acts: list[Any] = [trainer.evaluate, lambda: trainer.compute_single_action(observation)]
        for act in [*acts, trainer.train] if name in ON_POLICY else acts:
            with pytest.raises(NonFiniteError, match=r"'default_policy', row 0 of \d+(.|\n)*NaN in the weights"):
                act()
        trainer.set_weights({"default_policy": weights})
        assert_learns(trainer)


def test_non_finite_weights_are_neither_learned_nor_saved(tmp_path):
    # Loss and gradients are finite; the weights after the first step are not.
    with PPOTrainer("CartPole-v1", {**PPO, "lr": 1e300}) as trainer:
        policy = trainer.get_policy()
        good = policy.get_weights()
        with pytest.raises(NonFiniteError, match=r"'default_policy', gradient step 0: the new value of \w+\."):
            trainer.train()
        np.testing.assert_equal(policy.get_weights(), good)
        trainer.save(tmp_path / "good")
        policy.set_weights({**good, "value_head.bias": np.float32([np.inf])})
        with pytest.raises(NonFiniteError, match=r"not saved(.|\n)*'default_policy', weights, value_head\.bias"):
            trainer.save(tmp_path / "bad")
        assert not list(tmp_path.glob("bad/*"))
        trainer.restore(next((tmp_path / "good").iterdir()))
        assert all(np.isfinite(value).all() for value in policy.get_weights().values())
