"""`SearchOptimizer`: evaluates candidates along random directions, and moves the parameters by their returns."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollax.core.stored_values import read_count
from rollax.errors import ConfigError, PolicyError
from rollax.ops.evolution import SIGNS, gradient_estimate
from rollax.optimizers.optimizer import Optimizer, Stats
from rollax.rollout.worker import RolloutWorker
from rollax.search.compiled_candidates import candidate_player, play_candidates
from rollax.search.config import SearchFields
from rollax.search.messages import CandidateReturns, Candidates
from rollax.search.searched_policy import SearchedPolicy

log = logging.getLogger("rollax.search")
_EPISODES_AT_ONCE = 2  # per sub-environment; with 1, many would be idle until the longest episode of a request ends


class SearchOptimizer(Optimizer):
    """Each step is one generation: N directions, whose candidates are played, and one step of the parameters.

    The outcome depends on the seed alone, not on workers, their sub-environments, or the order of results: a direction
    and the seeds of its episodes are functions of (seed, generation, number), and returns and statistics are joined in
    the order of the directions. A remote worker plays a few directions for each request. Directions of a lost worker
    are evaluated again. Observation statistics change between generations only.

    Subclasses implement `weights`; `decay` and `request` have defaults.

    Raises:
        ConfigError: `output` or `multiagent.policies` is set.
        PolicyError: the policy is no `SearchedPolicy`, or is not to be trained.
        EnvError: the environment has several agents, or does not begin episodes from given seeds.
    """

    config_class = SearchFields

    def _set_up(self) -> None:
        super()._set_up()
        if self.config.multiagent.policies:
            raise ConfigError.one_policy_only("config key 'multiagent.policies'", self.config.multiagent.policies)
        if (key := self.config.recording_key) is not None:
            expected = "None for this algorithm"
            raise ConfigError(
                "The episodes of candidates cannot be written.", f"config key '{key}'", getattr(self.config, key)
            ).expected(expected, f"leave {key} out, and write episodes of the trained policy with trainer.record(...)")
        ((self._policy_id, policy),) = self.policies.items() or [("", None)]
        if not isinstance(policy, SearchedPolicy):
            what = "The policy does not support parameter search, or is not trained."
            got = None if policy is None else policy.made_by.__name__
            fix = "leave multiagent out, or derive the policy's class from SearchedPolicy"
            raise PolicyError(what, "config key 'multiagent'", got).expected("a SearchedPolicy that is trained", fix)
        if self.config.noise_size is not None:
            log.warning("noise_size has no effect: directions are generated, there is no table of noise.")
        self._policy = policy
        # Checked here, because an exception of a worker in a step counts as a failure of its process.
        if self.remote:
            num_envs = max(self.remote.call_all("apply", _prepared, raises=True).values(), default=1)
        else:
            num_envs = _prepared(self.local_worker)
        episodes = len(SIGNS) * self.config.episodes_per_candidate  # of a direction
        self._directions_at_once = -(-_EPISODES_AT_ONCE * num_envs // episodes)
        self.generation = 0
        seed = self.config.seed
        self._seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed

    @abstractmethod
    def weights(self, returns: NDArray[np.float64]) -> NDArray[np.float64]:
        """[N] weights of the directions in the gradient, from the returns [N, 2] of their candidates."""

    def decay(self) -> float:
        """The weight decay c: c · θ is subtracted from the gradient."""
        return 0.0

    def request(self, indices: NDArray) -> Candidates:
        """The request for some directions, for one worker."""
        config = self.config
        return Candidates(
            seed=self._seed,
            generation=self.generation,
            indices=indices,
            noise_stdev=config.noise_stdev,
            episodes=config.episodes_per_candidate,
            shared_starts=config.shared_starts,
            reward_offset=config.reward_offset,
        )

    def _task(self, indices: NDArray) -> Callable[[RolloutWorker], CandidateReturns]:
        return partial(play_candidates, self.request(indices))

    def step(self) -> Stats:
        self.broadcast()
        results = self._evaluated()
        by_index = {int(k): (part, row) for part in results for row, k in enumerate(part.indices)}
        order = [by_index[index] for index in range(self.config.num_directions)]
        returns = np.stack([part.returns[row] for part, row in order])
        generation = self.generation
        self._record(order)
        self.generation += 1  # before the step: after an interrupt in between, no direction is evaluated twice
        with self.timings.measured("learn_s"):
            statistics = self._move(returns, generation)
        self.version += 1
        self._note(self._policy_id, {**statistics, "cur_lr": self._policy.scheduled("lr")})
        return dict(self.stats)

    def _evaluated(self) -> list[CandidateReturns]:
        """The returns of all directions."""
        missing = np.arange(self.config.num_directions)
        if not self.remote:
            return [self.local_worker.perform(self._task(missing))]
        results: list[CandidateReturns] = []
        with self.timings.measured("wait_s"):
            self.remote.forget()  # requests of an interrupted step, which may have had other parameters
            while len(missing):
                results += self._requested(missing)
                # Other workers get the directions of a worker that was left out.
                missing = np.setdiff1d(missing, np.concatenate([part.indices for part in results] or [missing[:0]]))
        return results

    def _requested(self, indices: NDArray) -> list[CandidateReturns]:
        """The returns of these directions; directions of a worker that is left out during the call are missing."""
        workers = len(self.remote)
        if not workers:
            raise self.remote.failures.unavailable()
        # Small shares, because each is limited by `sample_timeout_s`, and faster workers get more of them.
        size = min(self._directions_at_once, -(-len(indices) // workers))
        shares = deque(np.split(indices, range(size, len(indices), size)))
        results: list[CandidateReturns] = []
        while True:
            for index in self.remote.short_of(1)[: len(shares)]:
                self.remote.request(index, "perform", self._task(shares.popleft()))
            if not self.remote.requests_in_flight:
                return results
            results += [reply.value for reply in self.remote.collect()]

    def _move(self, returns: NDArray[np.float64], generation: int) -> dict[str, float]:
        """One step of the parameters; returns statistics."""
        policy = self._policy
        theta = policy.get_vector()
        gradient = gradient_estimate(self.weights(returns), self._seed, generation, len(theta))
        policy.apply_gradients(policy.parts_of(np.float32(self.decay()) * theta - gradient))
        return {
            "gradient_norm": float(np.linalg.norm(gradient)),
            "weight_norm": float(np.linalg.norm(policy.get_vector())),
            "return_mean": float(returns.mean()),
            "return_std": float(returns.std()),
            "return_max": float(returns.max()),
        }

    def _record(self, order: list[tuple[CandidateReturns, int]]) -> None:
        """Counts steps, and adds episodes and statistics of observations, in the order of the directions."""
        observation_filter = self.local_worker.runners[self._policy_id].filter
        for part in {id(part): part for part, _ in order}.values():
            self.timings.add("sample_s", part.sample_s)
        for part, row in order:
            self.env_steps += int(part.lengths[row])
            self.agent_steps += int(part.lengths[row])
            self.timings.lags.add(0)
            episodes = len(part.episodes) // len(part.indices)
            own = slice(row * episodes, (row + 1) * episodes)
            self._episodes += part.episodes[own]
            for state in part.filters[own]:
                observation_filter.merge(state)

    def report(self) -> dict[str, Any]:
        """The number of generations, as `generation`."""
        return {"generation": self.generation}

    def begin_exactly(self) -> None:
        """Drops nothing: returns depend only on the parameters, the search's own seed and the number of generations."""

    def get_state(self) -> dict[str, Any]:
        """The number of generations, and the seed of the search if the config has none."""
        drawn = {"search_seed": self._seed} if self.config.seed is None else {}
        return {"generation": self.generation, **drawn}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned; a seed in the config is kept.

        Raises:
            CheckpointError: a value is missing or wrong; the optimizer is then unchanged.
        """
        generation, seed = read_count(state, "generation", "optimizer"), self._seed
        if self.config.seed is None and "search_seed" in state:
            seed = read_count(state, "search_seed", "optimizer")
        self.generation, self._seed = generation, seed


def _prepared(worker: RolloutWorker) -> int:
    """Makes the player of candidates in a worker; returns the number of its sub-environments."""
    candidate_player(worker)
    return worker.env.num_envs
