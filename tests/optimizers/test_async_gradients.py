"""`AsyncGradientsOptimizer` with stand-ins: each gradient is applied once, and its worker gets the new weights."""

from dataclasses import replace

import pytest
from gymnasium.spaces import Box, Discrete

from rollax import AsyncGradientsOptimizer
from rollax.algorithms.a3c import A3C
from rollax.errors import PolicyError
from rollax.policy.update_plan import UpdatePlan
from tests.optimizers.stand_ins import STEPS, FragmentWorker, learning, policy_of, pool_of, serving_pool, steps


@pytest.mark.parametrize("seed", [0, 1])
def test_each_gradient_is_applied_once_and_its_worker_gets_the_new_weights(seed):
    workers, processes = pool_of(3, seed=seed)
    optimizer = AsyncGradientsOptimizer(FragmentWorker(), workers)
    steps(optimizer, 30)
    applied = policy_of(optimizer).applied
    assert len(applied) == policy_of(optimizer).updates == 30
    assert (optimizer.env_steps, optimizer.agent_steps) == (30 * STEPS, 30 * STEPS)
    follows, numbers, lags = dict.fromkeys((1, 2, 3), 0), dict.fromkeys((1, 2, 3), 0), []
    for updates, (fragments, computed_with) in enumerate(applied):
        ((number, acted_with),) = fragments
        index = number // 1000
        numbers[index] += 1
        assert number == 1000 * index + numbers[index]
        assert acted_with == computed_with == follows[index]
        lags.append(updates - follows[index])
        follows[index] = updates + 1
    assert max(lags) > 2
    _, queue = optimizer.timings.take()
    assert queue["policy_lag_max"] == max(lags)
    assert queue["policy_lag_mean"] == pytest.approx(sum(lags) / 30)
    assert processes.fragments == 33  # three are in flight


def test_all_received_gradients_are_applied_in_one_step():
    workers, processes = pool_of(3)
    optimizer = AsyncGradientsOptimizer(FragmentWorker(), workers)
    processes.wait = lambda references, count, timeout_s: references
    assert optimizer.step() == {"a": {"rows": STEPS}}
    assert [computed_with for _, computed_with in policy_of(optimizer).applied] == [0, 0, 0]
    assert [worker.version for worker in processes.workers] == [2, 3, 4]


def test_a_worker_without_clients_blocks_no_other():
    workers, _ = serving_pool(2, 1)
    optimizer = AsyncGradientsOptimizer(FragmentWorker(), workers)
    steps(optimizer, 3)
    assert [fragments[0][0] for fragments, _ in policy_of(optimizer).applied] == [2001, 2002, 2003]


def test_a_failed_worker_computes_another_gradient(caplog):
    workers, _ = pool_of(2, fails={(1, 3): ValueError("no oil")})
    optimizer = AsyncGradientsOptimizer(FragmentWorker(), workers)
    steps(optimizer, 12)
    numbers = [fragments[0][0] for fragments, _ in policy_of(optimizer).applied]
    assert [number for number in numbers if number < 2000][:4] == [1001, 1002, 1101, 1102]
    assert optimizer.env_steps == 12 * STEPS
    assert "no oil" in caplog.text


def test_without_workers_runs_in_the_callers_process():
    optimizer = AsyncGradientsOptimizer(FragmentWorker())
    for _ in range(3):
        assert optimizer.step() == {"a": {"rows": STEPS}}
    assert policy_of(optimizer).applied == [([(k + 1, k)], k) for k in range(3)]
    assert optimizer.local_worker.timestep == 2 * STEPS
    assert optimizer.timings.take()[1]["policy_lag_max"] == 0


def test_only_trained_policies_learn():
    worker = FragmentWorker(0, a=1, b=1)
    optimizer = AsyncGradientsOptimizer(worker, config=learning(worker, "a"))
    assert optimizer.step() == {"a": {"rows": STEPS}}
    assert policy_of(optimizer, "b").applied == []


def test_an_own_way_to_learn_is_refused():
    """It was ignored."""
    worker = FragmentWorker()
    recording = type(worker.policies["a"])
    own = {"learn_on_batch": lambda self, batch: {}}
    worker.policies["a"] = type("Own", (recording,), own)()
    with pytest.raises(PolicyError, match="policy 'a'(.|\n)*learn_on_batch of Own"):
        AsyncGradientsOptimizer(worker)
    own["compute_gradients"] = recording.compute_gradients
    worker.policies["a"] = type("Own", (recording,), own)()
    AsyncGradientsOptimizer(worker)


class Counting(A3C):
    """Has a number that counts updates."""

    def first_numbers(self):
        return {"count": 0.0}

    def after_update(self, numbers, statistics):
        return {"count": numbers["count"] + 1}, statistics


def made(algorithm):
    return algorithm.make_policy(Box(-1, 1, (2,)), Discrete(2), {"model": {"fcnet_hiddens": [4]}})


def test_numbers_adapt_after_each_gradient():
    optimizer = AsyncGradientsOptimizer(FragmentWorker())
    policy = optimizer.policies["a"] = made(Counting)
    policy.apply_gradients = lambda gradients: None
    rollout = optimizer.local_worker.sample_gradients()
    for _ in range(2):
        optimizer._apply(replace(rollout, gradients={"a": ({}, {"entropy": 0.5})}))
    assert policy.numbers == {"count": 2.0}
    assert optimizer.stats["a"]["entropy"] == 0.5


@pytest.mark.parametrize(
    ("plan", "base"),
    [
        ({"every": {"value_trunk": 2}}, A3C),
        ({"updated_targets": lambda targets, params, _: params}, A3C),
        ({}, Counting),
    ],
)
def test_a_policy_that_needs_more_than_its_weights_learns_in_one_process_only(plan, base):
    class Planned(base):
        def learning_rates(self, lr):
            return dict.fromkeys(("policy_head", "policy_trunk", "value_head", "value_trunk"), lr)

        def make_plan(self):
            return UpdatePlan(**plan)

    worker = FragmentWorker()
    worker.policies["a"] = made(Planned)
    AsyncGradientsOptimizer(worker)
    with pytest.raises(PolicyError, match="policy 'a'"):
        AsyncGradientsOptimizer(worker, pool_of(1)[0])
