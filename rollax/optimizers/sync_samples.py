"""`SyncSamplesOptimizer`: broadcasts weights, samples, learns."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rollax.batch import MultiAgentBatch
from rollax.optimizers.optimizer import Optimizer, Stats
from rollax.rollout.messages import Rollout

if TYPE_CHECKING:
    from rollax.optimizers.device_batches import DeviceBatches

log = logging.getLogger("rollax.optimizers")


class SyncSamplesOptimizer(Optimizer):
    """Each step samples a train batch with the current weights and learns from it.

    A step without remote workers makes these calls:
        1. `RolloutWorker.sample_fragment`, which samples by `BlockSampler.sample` for Gymnasium's environments, and
           ends with the algorithm's `postprocess`;
        2. `ModelPolicy.learn_on_batch`, which draws the `Minibatches`;
        3. `Learner.learn`;
        4. `GradientSteps.update`, one compiled call for all gradient steps.
    With an environment in JAX all of it is one compiled call where that is possible: `DeviceBatches`.

    Fragments are joined in the order of the workers, not of arrival: runs with the same seed and number of workers have
    the same numbers. With external clients (`PolicyServerEnv`), fragments are joined in the order of arrival.
    """

    gives_fragments = True

    rounds: DeviceBatches | None = None
    """The compiled calls; None unless the environment is in JAX and the train batches can stay on the device."""

    def _set_up(self) -> None:
        worker = self.local_worker
        if type(self) is SyncSamplesOptimizer and not self.remote and worker.samples and worker.env.in_jax:
            from rollax.optimizers import device_batches  # loaded only where it is used

            if reason := device_batches.why_not(worker):
                log.info("The train batches leave the device, because of %s.", reason)
            else:
                self.rounds = device_batches.DeviceBatches(self)

    def step(self) -> Stats:
        if self.rounds is not None and self._learned_on_device(self.rounds):
            return dict(self.stats)
        self.broadcast()
        rollouts = self.gather()
        self._learn(MultiAgentBatch.concat_samples([rollout.batch for rollout in rollouts]))
        for rollout in rollouts:
            self._trained_on(rollout)
        self.version += 1
        return dict(self.stats)

    def _learned_on_device(self, rounds: DeviceBatches) -> bool:
        from rollax.optimizers.device_batches import OnlyOnHostError  # loaded already

        try:
            return rounds.step()
        except OnlyOnHostError as error:
            log.debug("The train batches leave the device: %s.", error)
            self.rounds = None
            return False

    def gather(self) -> list[Rollout]:
        """The fragments of a train batch, sampled with the weights of the last broadcast."""
        rollouts: list[Rollout] = []
        missing = self.config.train_batch_size
        try:
            while missing > 0:
                wanted = 1 if not rollouts else max(missing // max(self._size(rollouts[-1]), 1), 1)
                found = [rollout for rollout in self._round(wanted) if self._is_new(rollout)]
                rollouts += found
                missing -= sum(map(self._size, found))
        except BaseException:
            if dropped := sum(map(self._size, rollouts)):
                log.warning("Sampling of a train batch was interrupted: its %d steps so far are dropped.", dropped)
            raise
        for rollout in rollouts:
            self._sampled(rollout)
        return rollouts

    def _round(self, wanted: int) -> list[Rollout]:
        """One fragment of the local worker, or about `wanted` fragments of the remote workers; see `_gather`."""
        if not self.remote:
            return [self._awaited(self.local_worker.sample_fragment)]
        return self._gather(-(-wanted // len(self.remote)))

    def _is_new(self, rollout: Rollout) -> bool:
        """Whether a fragment is used; a fragment that was requested for an earlier step may be too old."""
        is_new = not (self.samples_in_background and self.local_worker.is_too_old(rollout.version))
        if not is_new:
            self._sampled(rollout)
            self.timings.dropped_steps += rollout.env_steps
        return is_new
