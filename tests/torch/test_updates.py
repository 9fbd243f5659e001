"""Updates of a `TorchPolicy`: learning rates, targets, microbatches, statistics, interrupts, compiled losses."""

from functools import partial

import numpy as np
import pytest
import torch

from examples.torch_sac import TorchSAC
from rollax.errors import NonFiniteError, PolicyError, ShapeError
from rollax.policy.update_plan import UpdatePlan
from tests.env.refused import refused
from tests.torch.made import experience, make, own, same


def test_trained_parts_without_a_learning_rate_are_refused():
    rates = {"learning_rates": lambda self, lr: {"actor": 1e-3, "critics": 1e-3}}
    refused(PolicyError, own, "TorchSAC", says="no learning rate...log_alpha", **rates)


def test_errors_use_the_policys_own_random_numbers():
    def loss(self, model, out, batch, mask, coefficients):
        return out.value.mean(), {"td_error": torch.rand(len(mask))}

    one, two = (own("TorchDQN", loss=loss) for _ in range(2))
    before = torch.get_rng_state()
    np.testing.assert_array_equal(*(policy.td_errors(experience(policy, 5)) for policy in (one, two)))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_interrupted_update_changes_nothing(monkeypatch):
    policy, twin = make(), make()
    batch = experience(policy)
    for one in (policy, twin):
        one.learn_on_batch(batch)
    before, steps, loss = policy.get_weights(), [], policy.algorithm.loss

    def interrupted(*arguments):
        steps.append(1)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return loss(*arguments)

    monkeypatch.setitem(vars(policy.algorithm), "loss", interrupted)
    with pytest.raises(KeyboardInterrupt):
        policy.learn_on_batch(batch)
    monkeypatch.undo()
    same(policy.get_weights(), before)
    twin.learning_rng.bit_generator.state = policy.learning_rng.bit_generator.state
    for one in (policy, twin):
        one.learn_on_batch(batch)
    same(policy.get_weights(), twin.get_weights())


def test_after_an_interrupt_all_parameters_are_trained_again():
    def interrupted(self, model, *_):
        model.critics.requires_grad_(False)  # as in `frozen`
        raise KeyboardInterrupt

    policy = own("TorchSAC", loss=interrupted)
    with pytest.raises(KeyboardInterrupt):
        policy.learn_on_batch(experience(policy))
    assert all(parameter.requires_grad for parameter in policy.model.parameters())


def test_an_interrupt_while_a_failed_update_is_repeated_changes_nothing(monkeypatch):
    policy = make()
    batch = experience(policy)
    policy.learn_on_batch(batch)
    before, steps, loss = policy.learner.get_state()["optimizer"], [], policy.algorithm.loss

    def failing(*arguments):
        steps.append(1)
        if len(steps) == 6:  # the third step of the repetition
            raise KeyboardInterrupt
        value, statistics = loss(*arguments)
        return value * (float("nan") if len(steps) == 3 else 1.0), statistics

    monkeypatch.setitem(vars(policy.algorithm), "loss", failing)
    with pytest.raises(KeyboardInterrupt):
        policy.learn_on_batch(batch)
    same(policy.learner.get_state()["optimizer"], before)


def test_a_step_before_which_the_update_stops_changes_nothing():
    plan = UpdatePlan(8, 2, stops=lambda statistics: statistics["total_loss"] < np.inf)
    model = {"fcnet_hiddens": (8,), "normalization": "batch", "normalize_observations": True}
    policy = own(changes={"model": model}, make_plan=lambda self: plan)
    before = policy.get_weights()
    policy.learn_on_batch(experience(policy))
    same(policy.get_weights(), before)


def test_interrupted_gradients_change_nothing(monkeypatch):
    policy, twin = make(), make()
    gradients, _ = policy.compute_gradients(experience(policy))
    for one in (policy, twin):
        one.apply_gradients(gradients)
    optimizer, before = policy.learner.optimizer, policy.get_weights()
    step = optimizer.step

    def interrupted():
        step()
        raise KeyboardInterrupt

    monkeypatch.setattr(optimizer, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        policy.apply_gradients(gradients)
    monkeypatch.undo()
    same(policy.get_weights(), before)
    for one in (policy, twin):
        one.apply_gradients(gradients)
    same(policy.get_weights(), twin.get_weights())


def test_statistics_are_those_before_each_step():
    seen = []

    def loss(self, model, out, batch, mask, coefficients):
        loss, found = TorchSAC.loss(self, model, out, batch, mask, coefficients)
        seen.append(model.log_alpha.item())
        return loss, {**found, "log_alpha": model.log_alpha, "rows": mask.sum().long()}

    policy = own("TorchSAC", loss=loss, statistics=(*TorchSAC.statistics, "log_alpha", "rows"))
    found = policy.learn_on_batch(experience(policy))
    assert len(set(seen)) == 2
    assert found["log_alpha"] == pytest.approx(np.mean(seen), abs=1e-7)
    assert found["rows"] == 8


def test_statistics_may_be_numbers():
    def loss(self, model, out, batch, mask, coefficients):
        errors = out.value.detach().numpy()
        return out.value.mean(), {"two": 2, "half": 0.5, "largest": errors.max(), "td_error": errors}

    policy = own("TorchDQN", loss=loss)
    batch = experience(policy, 8)
    for found in (policy.compute_gradients(batch)[1], policy.learn_on_batch(batch)):
        assert (found["two"], found["half"]) == (2, 0.5)
        assert found["largest"] == pytest.approx(found["td_error"].max())


def test_gradients_of_parameters_outside_the_optimizer_do_not_accumulate():
    policy = own(make_optimizer=lambda _, params, model: torch.optim.SGD(model.policy_head.parameters(), lr=0.0))
    batch = experience(policy)
    first, second = (policy.compute_gradients(batch)[0] for _ in range(2))
    same(first, second)


def test_the_norm_of_a_part_with_a_single_number_can_overflow_too():
    """Adam's second moment of it would be infinite, and the temperature constant from then on."""
    policy = own("TorchSAC", learning_rates=lambda self, lr: dict.fromkeys(("actor", "critics", "log_alpha"), 1e-3))
    gradients, _ = policy.compute_gradients(experience(policy))
    large = np.full_like(gradients["log_alpha"], 1e30)
    refused(NonFiniteError, policy.apply_gradients, {**gradients, "log_alpha": large}, says="the norm of the gradient")
    policy.apply_gradients(gradients)


def test_statistics_by_row_of_a_model_with_memory_have_one_number_for_each_sequence():
    policy = own("TorchPPO-LSTM", loss=lambda self, model, out, *_: (out.value.mean(), {"td_error": out.value}))
    refused(ShapeError, policy.learn_on_batch, experience(policy), says="'td_error'...for each sequence")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_other_coefficients_do_not_recompile_the_loss(monkeypatch):
    graphs, compiled = [], torch.compile

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(compiled, backend=backend))

    def decaying(self, model, out, batch, mask, coefficients):
        entropy = out.policy.square().mean() * coefficients["entropy_coeff"]
        return entropy / (1 + coefficients["num_updates"]), {}

    schedule = {"entropy_coeff_schedule": [[0, 0.1], [100, 0.0]]}
    policy = own(changes={"torch_compile": True, **schedule}, loss=decaying)
    policy.learn_on_batch(experience(policy))
    first = len(graphs)
    policy.timestep = 50
    policy.learn_on_batch(experience(policy))
    assert first == len(graphs) > 0
