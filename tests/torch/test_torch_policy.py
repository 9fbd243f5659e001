"""`TorchPolicy`: equal to JAX, masks, policies of functions, settings that are refused, and devices."""

import pickle
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces

from examples.torch_dqn import TorchDQN
from examples.torch_pg import TorchPG
from examples.torch_ppo import TorchPPO
from examples.torch_sac import TorchSAC
from rollax import SampleBatch, SyncSamplesOptimizer, TorchConfig, Trainer, load_policy, torch_algorithm
from rollax.errors import ConfigError, EnvError, PolicyError, SpaceError
from rollax.models.config import ModelConfig
from rollax.policy.exploration.parameter_noise import ParameterNoise, action_distance
from rollax.torch.networks import ActorCritic
from rollax.torch.random_numbers import random_numbers_of
from rollax.torch.weights import to_tensors
from tests.env.refused import refused
from tests.torch.made import BOX, CHOICES, PPO_CONFIG, REPLAY, SEEN, SMALL, experience, make, own, same, seen
from tests.torch.torch_weights import torch_weights


@pytest.mark.long
def test_an_update_equals_that_of_jax():
    """Equal weights, rows and plans: two epochs of minibatches of 8 and 5 rows."""
    ours, twin = make("PPO", grad_clip=0.5), make("TorchPPO", grad_clip=0.5)
    twin.set_weights(torch_weights(ours.get_weights()))
    batch = experience(ours, 13)
    twin.learning_rng.bit_generator.state = ours.learning_rng.bit_generator.state
    expected, stats = ours.learn_on_batch(batch), twin.learn_on_batch(batch)
    for name in ("total_loss", "policy_loss", "vf_loss", "entropy", "kl"):
        np.testing.assert_allclose(stats[name], expected[name], rtol=1e-4, atol=1e-5)
    weights = torch_weights(ours.get_weights())
    for name, value in twin.get_weights().items():
        np.testing.assert_allclose(value, weights[name], rtol=1e-4, atol=1e-5)


def test_observations_may_be_reversed_views():
    policy, reversed_rows = make(), seen(5)[::-1]
    both = (reversed_rows, reversed_rows.copy())
    np.testing.assert_array_equal(*(policy.compute_actions(rows, explore=False)[0] for rows in both))


def test_masked_actions_are_never_taken_and_not_learned_from():
    space = spaces.Dict({"x": SEEN, "action_mask": spaces.MultiBinary(4)})
    mask = np.tile(np.array([1, 0, 1, 0], np.int8), (64, 1))
    obs = {"x": seen(64), "action_mask": mask}
    for policy_class, config in ((TorchPPO, PPO_CONFIG), (TorchDQN, REPLAY)):
        policy = policy_class.make_policy(space, CHOICES, config)
        for explore in (True, False):
            assert set(policy.compute_actions(obs, explore=explore)[0].tolist()) <= {2, 4}
        with pytest.raises(EnvError, match="allows no action"):
            policy.compute_actions({"x": seen(1), "action_mask": np.zeros((1, 4), np.int8)})
    policy = TorchPPO.make_policy(space, CHOICES, {**PPO_CONFIG, "entropy_coeff": 0.01})
    actions, _, fetches = policy.compute_actions(obs)
    columns = {"advantages": seen(64)[:, 0], "value_targets": seen(64)[:, 1]}
    stats = policy.learn_on_batch(SampleBatch({"obs": obs, "actions": actions, **columns, **fetches}))
    assert stats["entropy"] <= np.log(2)  # of two choices, not four


def test_values_are_maxima_over_valid_actions():
    space = spaces.Dict({"x": SEEN, "action_mask": spaces.MultiBinary(4)})
    policy = TorchDQN.make_policy(space, CHOICES, REPLAY)
    obs = {"x": seen(64), "action_mask": np.tile(np.array([1, 0, 1, 0], np.int8), (64, 1))}
    everything = {**obs, "action_mask": np.ones((64, 4), np.int8)}
    action_values = policy.model(to_tensors(everything, policy.device)).policy.detach().numpy()
    assert (action_values.argmax(axis=1) % 2).any()  # some of the best actions are not valid
    np.testing.assert_array_equal(policy.compute_values(obs), action_values[:, [0, 2]].max(axis=1))


def test_a_policy_of_functions():
    assert TorchPG.__name__ == "TorchPG"
    policy = TorchPG.make_policy(SEEN, CHOICES, SMALL)
    assert policy.statistics == ("policy_loss", "entropy", "total_loss", "cur_lr")
    columns = {"obs": seen(8), "actions": np.full(8, 2), "advantages": seen(8)[:, 0]}
    stats = policy.learn_on_batch(SampleBatch(columns))
    assert {"policy_loss", "entropy"} <= stats.keys()


def heads(policy, *, width):
    return ActorCritic(policy.observation_space, policy.exploration.num_inputs, ModelConfig(fcnet_hiddens=(width,)))


class Imitation:
    """A loss with a setting, as an object."""

    def __init__(self, scale):
        self.scale = scale

    def __call__(self, policy, model, out, batch, mask, coefficients):
        loss = -self.scale * policy.distribution.logp(out.policy, batch["actions"]).mean()
        return loss, {"imitation_loss": loss}

    def loss_columns(self, algorithm, batch, rng):
        return {"obs": batch["obs"], "actions": batch["actions"]}


imitation = Imitation(0.5)
ImitationAlgorithm = torch_algorithm(
    imitation,
    make_model=partial(heads, width=4),
    make_optimizer=partial(lambda algorithm, params, model, kind: kind(params, lr=0.0), kind=torch.optim.SGD),
    postprocess=partial(lambda algorithm, fragment, values: fragment),
    loss_columns=imitation.loss_columns,
    name="ImitationAlgorithm",
)


class ImitationTrainer(Trainer):
    name = "Imitation"
    config_class = TorchConfig
    policy_class = ImitationAlgorithm
    optimizer_class = SyncSamplesOptimizer


class TestByFunctions:
    def test_any_callable_receives_the_policy(self, tmp_path):
        """Partials, objects and bound methods in a run; the class is imported by its name."""
        with ImitationTrainer(env="CartPole-v1", config={"train_batch_size": 32, "seed": 0}) as trainer:
            trainer.train()
            path = trainer.save(tmp_path)
            weights = trainer.get_weights()["default_policy"]
        assert weights["policy_trunk.mlp.layers.0.weight"].shape == (4, 4)
        same(load_policy(path, trust_code=True).policy.get_weights(), weights)
        assert pickle.loads(pickle.dumps(ImitationAlgorithm)) is ImitationAlgorithm  # noqa: S301

    @pytest.mark.parametrize("name", ["imitation", "my policy"])
    def test_a_name_that_does_not_import_the_class_is_refused(self, name):
        with pytest.raises(PolicyError, match=r"not be found again(.|\n)*name of the variable"):
            torch_algorithm(imitation, name=name)


def test_perturbed_parameters_are_refused():
    def perturbed(self):
        return ParameterNoise(TorchSAC.make_exploration(self), action_distance, lambda timestep: 0.1, 0.1)

    says = "no effect in PyTorch...Own, make_exploration...Noise"
    refused(PolicyError, own, "TorchSAC", make_exploration=perturbed, says=says)


def test_vf_share_layers_without_values_is_refused():
    with pytest.raises(ConfigError, match="vf_share_layers has no effect: there is no value function"):
        TorchPG.make_policy(SEEN, CHOICES, {"model": {"vf_share_layers": True}})


UNBOUNDED = spaces.Box(-np.inf, np.inf, (2,))


class TestOwnNetworks:
    @pytest.mark.parametrize(
        ("kind", "setting"),
        [
            *(("TorchDQN", setting) for setting in ({"use_lstm": True}, {"custom_model": torch.nn.Linear})),
            *(("TorchSAC", setting) for setting in ({"vf_share_layers": True}, {"custom_model": torch.nn.Linear})),
        ],
    )
    def test_settings_without_effect_are_refused(self, kind, setting):
        refused(ConfigError, make, kind, says=f"model.{next(iter(setting))}', for {kind}", model=setting)

    @pytest.mark.parametrize(
        ("policy_class", "space"),
        [(TorchDQN, BOX), (TorchDQN, spaces.MultiDiscrete([2, 2])), (TorchSAC, CHOICES), (TorchSAC, UNBOUNDED)],
    )
    def test_actions_of_another_kind_are_refused(self, policy_class, space):
        with pytest.raises(SpaceError, match=rf"action_space of {policy_class.__name__}"):
            policy_class.make_policy(SEEN, space, REPLAY)


class TestDevices:
    def test_a_missing_device_is_refused(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(ConfigError, match=r"does not find this device(.|\n)*got: +'?cuda"):
            make(device="cuda")
        assert make(device="auto").device.type == "cpu"

    def test_random_numbers_on_a_gpu(self, monkeypatch):
        """Each time the GPU's stream gets another seed from the generator, and is restored afterwards."""
        calls = []
        monkeypatch.setattr(torch.cuda, "get_rng_state", lambda *_: "kept")
        monkeypatch.setattr(torch.cuda, "manual_seed", calls.append)
        monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, *_: calls.append(state))
        generator, numbers = torch.Generator().manual_seed(3), []
        before = torch.get_rng_state()
        for _ in range(2):
            with random_numbers_of(generator, torch.device("cuda")):
                numbers.append(torch.rand(()).item())
        assert torch.equal(torch.get_rng_state(), before)
        assert calls[1] == calls[3] == "kept"
        assert calls[0] != calls[2]
        assert numbers[0] != numbers[1]

    def test_a_new_policy_seeds_no_gpu(self, monkeypatch):
        seeds = []
        monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
        make()
        assert not seeds

    def test_workers_without_a_gpu_use_the_cpu(self, monkeypatch):
        monkeypatch.setenv("ROLLAX_TORCH_DEVICE", "cpu")
        assert make(device="cuda").device.type == "cpu"
