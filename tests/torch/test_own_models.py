"""User-defined models in PyTorch: checks of outputs and layers, tied weights, and batch normalization."""

from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from examples.torch_ppo import TorchPPO
from rollax import Outputs
from rollax.errors import ConfigError, PolicyError
from tests.env.refused import refused
from tests.torch.made import CHOICES, PPO_CONFIG, SEEN, experience, make, own, same, seen


class Stateful(nn.Module):
    """A model with dropout, batch statistics, tied weights and a parameter that is not trained."""

    def __init__(self, observation_space, num_outputs):
        super().__init__()
        self.norm, self.dropout = nn.BatchNorm1d(3), nn.Dropout(0.5)
        self.policy, self.value = nn.Linear(3, num_outputs), nn.Linear(3, 1)
        self.tied = self.policy
        self.fixed = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, obs):
        hidden = self.dropout(self.norm(obs))
        return Outputs(self.tied(hidden) * self.fixed, self.value(hidden)[:, 0])


class TestOwnModels:
    @pytest.mark.long
    def test_buffers_are_weights_and_tied_weights_are_stored_once(self):
        policy, other = (make(model={"custom_model": Stateful}, seed=seed) for seed in (1, 2))
        names = set(policy.get_weights())
        assert {"norm.running_mean", "norm.num_batches_tracked", "fixed", "policy.weight"} <= names
        assert not any(name.startswith("tied") for name in names)
        policy.learn_on_batch(experience(policy))
        assert policy.get_weights()["norm.running_mean"].any()
        assert policy.get_weights()["fixed"] == 1
        other.set_weights(policy.get_weights())
        same(other.get_weights(), policy.get_weights())
        acted = [one.compute_actions(seen(4), explore=False)[2] for one in (policy, other)]
        np.testing.assert_array_equal(*(fetches["action_dist_inputs"] for fetches in acted))

    def test_a_model_without_trained_parameters_is_refused(self):
        class Frozen(Stateful):
            def __init__(self, observation_space, num_outputs):
                super().__init__(observation_space, num_outputs)
                self.requires_grad_(False)

        refused(PolicyError, make, says="no parameters to train...make_model...Frozen", model={"custom_model": Frozen})

    def test_dropout_uses_the_policys_own_stream(self):
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        policy = make(model={"custom_model": Stateful})
        other = make(model={"custom_model": Stateful})
        batch = experience(policy)
        policy.learn_on_batch(batch)
        np.testing.assert_array_equal(torch.rand(3), expected)  # the global stream has not changed
        other.set_state(policy.get_state())
        policy.learn_on_batch(batch)
        torch.rand(17)
        other.learn_on_batch(batch)
        same(policy.get_weights(), other.get_weights())

    def test_a_module_of_jax_is_refused(self):
        from tests.policy.small_ppo import Stateful as OfJax

        with pytest.raises(ConfigError, match=r"not a class of PyTorch modules(.|\n)*torch.nn.Module"):
            make(model={"custom_model": OfJax})


class TwoLinears(nn.Module):
    """A model that breaks its interface in the way `how`."""

    def __init__(self, observation_space, num_outputs, how="right"):
        super().__init__()
        self.how = how
        self.policy, self.value = nn.Linear(3, num_outputs), nn.Linear(3, 1)

    def forward(self, obs):
        outputs, values = self.policy(obs), self.value(obs)[:, 0]
        wrong = {
            "column of values": lambda: Outputs(outputs, values[:, None]),
            "no names": lambda: (outputs, values),
            "no value": lambda: Outputs(outputs),
            "integers": lambda: Outputs(outputs, values.long()),
            "missing key": lambda: obs["camera"],
        }
        return wrong[self.how]() if self.how in wrong else Outputs(outputs, values)


class Replacing(TwoLinears):
    """Replaces a buffer in training by `newer` of it and the observations."""

    def __init__(self, observation_space, num_outputs, first, newer):
        super().__init__(observation_space, num_outputs)
        self.register_buffer("buffer", first.clone())
        self.newer, self.always = newer, False

    def forward(self, obs):
        if self.training or self.always:
            self.buffer = self.newer(self.buffer, obs)
        return super().forward(obs)


class Recurrent(TwoLinears):
    """A model with memory that breaks its interface in the way `how`."""

    def initial_state(self):
        return (np.zeros(2, np.float32),)

    def forward(self, obs, state):  # type: ignore[override]
        (last,) = state
        wrong = {"no state": (), "state of each row": (last.repeat(3, 1),), "another type": (last.double(),)}
        return super().forward(obs)._replace(state=wrong.get(self.how, state))


class TestOutputs:
    """The checks are those of models in JAX; here that tensors are described, and errors of `forward`."""

    @pytest.mark.parametrize(
        ("model", "how", "says"),
        [
            (TwoLinears, "column of values", "returns value of the wrong...got:      value float32[13, 1]...squeeze"),
            (TwoLinears, "integers", "value of the wrong...int64[13]...return floats"),
            (TwoLinears, "no value", "value of the wrong...return state values too"),
            (TwoLinears, "missing key", "failed on a batch...where:...TwoLinears...as tensors"),
            (Recurrent, "no state", "state changes its shape...got:      tuple of 0"),
            (Recurrent, "state of each row", "state changes its shape...float32[39, 2]...float32[13, 2]"),
            (Recurrent, "another type", "state changes its shape...float64[13, 2]...float32[13, 2]"),
        ],
    )
    def test_broken_interfaces_are_named(self, model, how, says):
        refused(PolicyError, make, says=says, model={"custom_model": model, "custom_model_config": {"how": how}})
        assert make(model={"custom_model": model}).memory.present == (model is Recurrent)

    def test_an_initial_state_in_numpys_default_type(self):
        class Plain(Recurrent):
            def initial_state(self):
                return (np.zeros(2),)

        policy = make(model={"custom_model": Plain})
        assert [part.dtype for part in policy.get_initial_state()] == [np.float32]
        _, state, _ = policy.compute_actions(np.zeros((4, 3), np.float32))
        assert [part.dtype for part in state] == [np.float32]

    def test_models_of_make_model_are_checked(self):
        says = "policy of the wrong...got:      policy float32[13, 3]"
        refused(PolicyError, own, make_model=lambda self: TwoLinears(SEEN, 3), says=says)

    def test_models_of_policies_with_their_own_forward_are_not_checked(self):
        model = {"custom_model": TwoLinears, "custom_model_config": {"how": "no names"}}
        policy = own(changes={"model": model}, forward=lambda self, model, columns: Outputs(*model(columns["obs"])))
        assert CHOICES.contains(policy.compute_single_action(np.zeros(3, np.float32)))

    def test_unknown_constructor_arguments_are_refused(self):
        with pytest.raises(ConfigError, match=r"cannot be built(.|\n)*'hwo'"):
            make(model={"custom_model": TwoLinears, "custom_model_config": {"hwo": 1}})

    def test_the_rows_of_the_check_are_in_the_space(self):
        """An embedding fails for an index that is out of range."""

        class Embedded(TwoLinears):
            def __init__(self, observation_space, num_outputs):
                super().__init__(observation_space, num_outputs)
                self.embedding, self.start = nn.Embedding(4, 3), int(observation_space.start)

            def forward(self, obs):
                return super().forward(self.embedding(obs - self.start))

        for seen_space in (CHOICES, spaces.Discrete(4, start=-9)):
            TorchPPO.make_policy(seen_space, CHOICES, {**PPO_CONFIG, "model": {"custom_model": Embedded}})

    def test_lazy_layers(self):
        class Lazy(nn.Module):
            def __init__(self, observation_space, num_outputs):
                super().__init__()
                self.policy, self.value = nn.LazyLinear(num_outputs), nn.LazyLinear(1)

            def forward(self, obs):
                return Outputs(self.policy(obs), self.value(obs)[:, 0])

        policy, twin = (make(model={"custom_model": Lazy}) for _ in range(2))
        same(policy.get_weights(), twin.get_weights())
        before = str(policy.get_acting_state())
        policy.compute_actions(seen(2), explore=False)
        assert str(policy.get_acting_state()) == before  # it draws no random numbers
        policy.learn_on_batch(experience(policy))
        assert not np.array_equal(policy.get_weights()["policy.weight"], twin.get_weights()["policy.weight"])

        with pytest.raises(PolicyError, match=r"sizes of some layers(.|\n)*Own, make_model(.|\n)*policy.weight"):
            own(changes={"model": {"custom_model": Lazy}}, forward=lambda self, model, columns: model(columns["obs"]))

    def test_outputs_in_half_precision(self):
        """NumPy has no bfloat16; log-probabilities in acting and learning are computed from equal float32 inputs."""

        class Half(TwoLinears):
            def forward(self, obs):
                out = super().forward(obs)
                return out._replace(policy=out.policy.bfloat16(), value=out.value.bfloat16())

        policy = make(model={"custom_model": Half}, num_sgd_iter=1, sgd_minibatch_size=16)
        batch = experience(policy)
        assert batch["vf_preds"].dtype == policy.compute_values(seen(2)).dtype == np.float32
        assert abs(policy.learn_on_batch(batch)["kl"]) < 1e-7


class TestBatchNorm:
    def test_a_last_minibatch_is_filled_up_with_other_rows(self):
        """17 rows are minibatches of 8, 8 and 1: the last one has statistics of 8 rows too."""
        policy, other = (make(model={"custom_model": Stateful}, num_sgd_iter=1) for _ in range(2))
        batch = experience(policy, 17)
        policy.learn_on_batch(batch)
        assert policy.learner.num_updates == 3
        assert policy.get_weights()["norm.num_batches_tracked"] == 3
        other.learn_on_batch(batch)
        same(policy.get_weights(), other.get_weights())

    def test_the_gradient_of_one_row_uses_the_running_statistics(self):
        policy = make(model={"custom_model": Stateful})
        gradients, _ = policy.compute_gradients(experience(policy, 1))
        assert "policy.weight" in gradients
        assert "norm.num_batches_tracked" not in gradients

    def test_single_rows_alone_are_refused(self):
        with pytest.raises(ConfigError, match=r"minibatches of 1 row, and the layers \['norm'\](.|\n)*LayerNorm"):
            make(model={"custom_model": Stateful}, sgd_minibatch_size=1)
        make(model={"custom_model": TwoLinears}, sgd_minibatch_size=1)


class TestLaterLayers:
    """Layers that were added after the policy was made, and are not in the optimizer."""

    @pytest.mark.parametrize("frozen", [False, True])
    def test_replaced_ones_are_named(self, frozen):
        policy = make(model={"custom_model": TwoLinears})
        batch, policy.model.value = experience(policy), nn.Linear(3, 1).requires_grad_(not frozen)
        updates = (partial(policy.learn_on_batch, batch), partial(policy.compute_gradients, batch))
        for call in (*updates, policy.get_weights, policy.get_state):
            refused(PolicyError, call, says="neither trained nor stored...['value.weight', 'value.bias']")

    def test_untrained_ones_are_named_if_unfrozen_and_others_may_be_frozen(self):
        policy = make(model={"custom_model": Stateful})
        batch = experience(policy)
        trained = next(iter(policy.params.values()))
        before = trained.detach().clone()
        trained.requires_grad_(False)
        policy.learn_on_batch(batch)
        assert torch.equal(trained, before)
        trained.requires_grad_(True)
        policy.learn_on_batch(batch)
        assert not torch.equal(trained, before)
        policy.model.fixed.requires_grad_(True)
        refused(PolicyError, policy.learn_on_batch, batch, says="neither trained nor stored...got:      ['fixed']")

    def test_buffers_that_learning_creates_are_named(self):
        class Averages(TwoLinears):
            """Has its buffers from the first batch on."""

            def forward(self, obs):
                if self.training:
                    self.register_buffer("mean", obs.mean(dim=0))
                    self.register_buffer("deviation", obs.std(dim=0), persistent=False)
                return super().forward(obs)

        policy = make(model={"custom_model": Averages})
        policy.learn_on_batch(experience(policy))
        refused(PolicyError, policy.get_state, says="neither trained nor stored...got:      ['mean']")


class Counter(nn.Module):
    """Has state that is neither a parameter nor a buffer."""

    def get_extra_state(self):
        return {"calls": 1}


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: None, r"not a module of PyTorch(.|\n)*make_model(.|\n)*None"),
        (lambda: nn.Linear, r"not a module of PyTorch(.|\n)*instance"),
        (lambda: nn.Sequential(nn.Linear(3, 4), Counter()), r"get_extra_state(.|\n)*module 1(.|\n)*register_buffer"),
    ],
    ids=["none", "class", "extra state"],
)
def test_objects_that_are_no_models_and_unstored_state_are_refused(made, message):
    with pytest.raises(PolicyError, match=message):
        own(make_model=lambda self: made())
