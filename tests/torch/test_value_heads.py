"""Several value heads, and methods of the algorithm that `postprocess` runs, in JAX and PyTorch."""

from typing import Any

import numpy as np
import pytest
from flax import nnx
from torch import nn

from rollax import PPO, Fragment, Outputs, PolicyError, PPOTrainer
from rollax.policy.add_advantages import add_advantages
from tests.golden.cases import TwoKnownAgents
from tests.torch.made import CHOICES, SEEN, seen
from tests.torch.test_both_kinds import KINDS, both_kinds


def made(kind, *, model=None, **members) -> Any:
    """A policy of this kind with two value heads."""

    def loss(self, model, out, batch, mask, coefficients):
        return ((out.value - batch["value_targets"]) ** 2).mean(), {}

    members = {"value_heads": 2, "loss": loss, "reads": ("obs", "actions", "value_targets"), **members}
    policy_class: Any = type(f"Own{kind}", (KINDS[kind],), members)
    return policy_class.make_policy(SEEN, CHOICES, {"model": model or {"fcnet_hiddens": (8,)}, "seed": 0})


@both_kinds
@pytest.mark.parametrize("memory", [{}, {"use_gru": True, "lstm_cell_size": 4}, {"vf_share_layers": True}])
def test_the_default_models_return_one_value_for_each_head(kind, memory):
    policy = made(kind, model={"fcnet_hiddens": (8,), **memory})
    context = policy.memory_of(5, None, None, None)
    states = {"state_batches": context["state_batches"]} if memory.get("use_gru") else {}
    _, _, fetches = policy.compute_actions(seen(5), **states)
    assert fetches["vf_preds"].shape == (5, 2)
    columns = {"state_in": tuple(context["state_batches"])} if states else {}
    values = policy.compute_values(seen(5), columns)
    np.testing.assert_allclose(values, fetches["vf_preds"], rtol=1e-5)
    assert abs(values[:, 0] - values[:, 1]).max() > 1e-3
    no_rows = {name: tuple(part[:0] for part in column) for name, column in columns.items()}
    assert policy.compute_values(seen(0), no_rows).shape == (0, 2)


class JaxHeads(nnx.Module):
    def __init__(self, observation_space, num_outputs, *, rngs, heads):
        self.policy, self.values = nnx.Linear(3, num_outputs, rngs=rngs), nnx.Linear(3, heads, rngs=rngs)

    def __call__(self, obs):
        return Outputs(self.policy(obs), self.values(obs))


class TorchHeads(nn.Module):
    def __init__(self, observation_space, num_outputs, *, heads):
        super().__init__()
        self.policy, self.values = nn.Linear(3, num_outputs), nn.Linear(3, heads)

    def forward(self, obs):
        return Outputs(self.policy(obs), self.values(obs))


@both_kinds
def test_a_custom_model_returns_as_many(kind):
    model = {"custom_model": {"JAX": JaxHeads, "PyTorch": TorchHeads}[kind]}
    assert made(kind, model={**model, "custom_model_config": {"heads": 2}}).compute_values(seen(4)).shape == (4, 2)
    for heads in (1, 3):
        with pytest.raises(PolicyError, match=r"value=\[\d+, 2\](.|\n)*2 columns, one for each value head"):
            made(kind, model={**model, "custom_model_config": {"heads": heads}})


@both_kinds
def test_postprocess_has_values_statistics_and_methods_of_the_algorithm(kind):
    def twice(self, model, obs, factor):
        return (2 * obs * factor[:, None]).sum(-1)

    def postprocess(self, fragment, values):
        np.testing.assert_array_equal(values(fragment["obs"]), fragment["vf_preds"])
        fragment["twice"] = values.run("twice", fragment["obs"], fragment["rewards"])
        assert values.statistics == {}
        rewards = np.stack([fragment["rewards"], fragment["twice"]], axis=1)
        return add_advantages(fragment, values, gamma=(0.5, 0.0), lambda_=1.0, rewards=rewards)

    policy = made(kind, twice=twice, postprocess=postprocess)
    obs, rewards = seen(3), np.float32([1, 2, 3])
    columns = {"obs": obs, "rewards": rewards, "terminateds": np.array([False, False, True])}
    fragment = Fragment({**columns, "vf_preds": policy.compute_values(obs)}, [2], {"obs": seen(1)})
    batch = policy.postprocess_rows(fragment)
    np.testing.assert_allclose(batch["twice"], 2 * obs.sum(axis=1) * rewards, rtol=1e-5)
    # Head 0: 1 + ½ 2 + ¼ 3 and so on; head 1 without discounting: the rewards themselves.
    np.testing.assert_allclose(batch["value_targets"][:, 0], [2.75, 3.5, 3], rtol=1e-5)
    np.testing.assert_allclose(batch["value_targets"][:, 1], batch["twice"], rtol=1e-5)
    before = ((policy.compute_values(obs) - batch["value_targets"]) ** 2).mean()
    batch["actions"] = np.full(3, 2)
    for _ in range(20):
        policy.learn_on_batch(batch)
    assert ((policy.compute_values(obs) - batch["value_targets"]) ** 2).mean() < before


class TwoHeads(PPO):
    value_heads = 2

    def postprocess(self, fragment, values):
        rewards = np.stack([fragment["rewards"]] * 2, axis=1)
        add_advantages(fragment, values, gamma=(0.9, 0.5), lambda_=0.9, rewards=rewards)
        fragment["advantages"] = fragment["advantages"].sum(axis=1)
        return fragment


class TwoHeadsTrainer(PPOTrainer):
    policy_class = TwoHeads


@pytest.mark.long
def test_a_centralized_critic_has_them_too():
    config = {"centralized_critic": True, "train_batch_size": 60, "sgd_minibatch_size": 30, "num_sgd_iter": 1}
    with TwoHeadsTrainer(env=TwoKnownAgents, config={**config, "model": {"fcnet_hiddens": (8,)}, "seed": 0}) as trainer:
        assert trainer.worker.sample()["vf_preds"].shape[1] == 2
        statistics = trainer.train()["info"]["learner"]["default_policy"]
        assert np.isfinite([statistics["vf_loss"], statistics["vf_explained_var"]]).all()
