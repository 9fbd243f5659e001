"""`AsyncGradientsOptimizer`: workers compute gradients, and each gradient is applied when it arrives."""

from __future__ import annotations

from rollax.core.introspection import defining_class
from rollax.errors import PolicyError
from rollax.optimizers.optimizer import Optimizer, Stats
from rollax.policy.model_policy import ModelPolicy
from rollax.policy.update_plan import UpdatePlan
from rollax.rollout.messages import Rollout


class AsyncGradientsOptimizer(Optimizer):
    """Each step applies the gradients that have arrived, and sends their workers the new weights.

    A gradient is computed from one fragment: `rollout_fragment_length` of the workers sets the size of its batch.

    Source: Mnih et al. (2016), arXiv:1602.01783, with processes in the place of threads.

    Raises:
        PolicyError: a policy overrides `learn_on_batch`, which is not called, but not `compute_gradients`; or there are
            remote workers, and a policy has target parameters, parts that make only every k-th step, or numbers that
            adapt. Workers have the weights, but neither these nor the number of updates.
    """

    gives_fragments = True
    pauses_between_steps = False

    def _set_up(self) -> None:
        for policy_id, policy in self.policies.items():
            own = defining_class(type(policy), "learn_on_batch")
            if own is not (made := defining_class(type(policy), "compute_gradients")) and issubclass(own, made):
                raise PolicyError(
                    "The learn_on_batch of this policy would not be called: workers compute the gradients.",
                    where=f"policy {policy_id!r}",
                    got=f"learn_on_batch of {own.__name__}, compute_gradients of {made.__name__}",
                    expected="a policy that computes its gradients as it learns",
                    fix="override compute_gradients too, or use an optimizer that calls learn_on_batch, such as A2C's",
                )
        for policy_id, policy in self.policies.items() if self.remote else ():
            plan, numbers = (policy.plan, policy.numbers) if isinstance(policy, ModelPolicy) else (UpdatePlan(), {})
            if plan.updated_targets is not None or numbers or any(interval > 1 for interval in plan.every.values()):
                raise PolicyError(
                    "Workers cannot compute the gradients of this policy: they have its weights only.",
                    where=f"policy {policy_id!r}",
                    got="a plan with updated_targets, or with every > 1 for a part of the model, or first_numbers",
                    expected="no numbers, and a plan without target parameters, in which all parts make every step",
                    fix="set num_workers=0, or use an optimizer that learns in the process of the trainer",
                )

    def step(self) -> Stats:
        if not self.remote:
            self.broadcast()
            self._apply(self._awaited(self.local_worker.sample_gradients))
            return dict(self.stats)
        if not self.remote.requests_in_flight:
            self.broadcast()
        for index in self.remote.short_of(1):  # all workers at first; later those whose request was dropped
            self.remote.request(index, "sample_gradients")
        for index, rollout in self._replies():
            self._apply(rollout)
            self.broadcast()
            self.remote.request(index, "sample_gradients")
        return dict(self.stats)

    def _apply(self, rollout: Rollout) -> None:
        self._sampled(rollout)
        with self.timings.measured("learn_s"):
            for policy_id, policy in self.policies.items():
                gradients, stats = rollout.gradients.get(policy_id, (None, None))
                if stats is not None:
                    policy.apply_gradients(gradients)
                    if isinstance(policy, ModelPolicy):  # the worker's rate is as old as its weights
                        stats = policy.reported_after(dict(stats), 1)
                self._note(policy_id, stats)
        self._trained_on(rollout)
        self.version += 1
