"""`RolloutWorker`: policies and environments in one process; usable alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import Space

from rollax.batch import MultiAgentBatch, SampleBatch
from rollax.config import TrainerConfig
from rollax.env.context import EnvContext
from rollax.env.making import make_base_env
from rollax.env.registry import env_creator as creator_of
from rollax.errors import ConfigError, PolicyError
from rollax.evaluation.action_clipping import ActionMap
from rollax.evaluation.callbacks import make_callbacks, overrides
from rollax.evaluation.episode_table import EpisodeTable
from rollax.evaluation.filters import make_filter
from rollax.evaluation.joint_rows import JointRows
from rollax.evaluation.metrics import EpisodeMetrics
from rollax.evaluation.policy_map import DEFAULT_POLICY, policy_mapping, resolved_config, space_of_agents, specs_of
from rollax.evaluation.policy_runner import PolicyRunner
from rollax.evaluation.postprocess import BY_TRAJECTORY, overrides_trajectory, postprocess
from rollax.evaluation.sampler import Sampler
from rollax.policy.policy import Policy
from rollax.policy.shared_variables import SharedVariables
from rollax.policy.spec import PolicySpec
from rollax.spaces import check_space, same_space


class RolloutWorker:
    """Makes environments and policies, samples batches of experience, and evaluates.

    Args:
        env_creator: what an environment is made from: a function of one `EnvContext`, a class, an id.
        policy_cls_or_specs: one policy class, or policy id -> spec (see `PolicySpec.of`).
        policy_mapping_fn: `(agent_id)` or `(agent_id, episode)` -> policy id.
        config: the algorithm's config, a dict of the common keys, or None.
        default_policy_class: what a spec without a class stands for.
        worker_index: 0 in the driver.
        num_workers: how many remote workers there are.
        record: keep trajectories; a worker that only evaluates does not.
    Raises:
        ConfigError, SpaceError, EnvError, PolicyError: what is wrong, where, and how to mend it.
    """

    def __init__(
        self,
        env_creator: Any,
        policy_cls_or_specs: type[Policy] | Mapping[str, Any],
        *,
        policy_mapping_fn: Callable[..., str] | None = None,
        config: TrainerConfig | Mapping[str, Any] | None = None,
        default_policy_class: type[Policy] | None = None,
        worker_index: int = 0,
        num_workers: int = 0,
        record: bool = True,
    ) -> None:
        specs = specs_of(policy_cls_or_specs)
        self.config = resolved_config(config, specs, default_policy_class)
        self.worker_index = worker_index
        context = EnvContext(self.config.env_config, worker_index=worker_index, num_workers=num_workers)
        self.env = make_base_env(
            creator_of(env_creator),
            context,
            self.config.num_envs_per_worker,
            remote_envs=self.config.remote_worker_envs,
            remote_env_batch_wait_ms=self.config.remote_env_batch_wait_ms,
            remote_env_timeout_s=self.config.remote_env_timeout_s,
            restart_failed_sub_environments=self.config.restart_failed_sub_environments,
            observation_space=self.config.observation_space,
            action_space=self.config.action_space,
        )
        self.callbacks = make_callbacks(self.config.callbacks)
        policy_of = policy_mapping(policy_mapping_fn, list(specs))
        spaces = {policy_id: self._spaces(policy_id, spec, policy_of) for policy_id, spec in specs.items()}
        joint_rows = JointRows(self.env.possible_agents or (), spaces)
        self.policies = {
            policy_id: self._make_policy(policy_id, number, spec, default_policy_class, spaces[policy_id], joint_rows)
            for number, (policy_id, spec) in enumerate(specs.items())
        }
        self.shared = SharedVariables(self.config.multiagent.shared_variables, self.policies)
        self.runners = {
            policy_id: self._make_runner(policy, self.config.for_policy(policy.config_class, **specs[policy_id].config))
            for policy_id, policy in self.policies.items()
        }
        episodes = self._make_episode_table()
        if any(overrides_trajectory(policy) for policy in self.policies.values()):
            episodes.past = {}
        self._joint_rows = joint_rows if any(policy.sees_all_agents for policy in self.policies.values()) else None
        if episodes.past is not None or self._joint_rows is not None:
            for runner in self.runners.values():
                runner.store(BY_TRAJECTORY)
        self.sampler = Sampler(
            self.env,
            self.runners,
            episodes,
            policy_of=policy_of,
            fragment_length=self._fragment_length(),
            complete_episodes=self.config.batch_mode == "complete_episodes",
            record=record,
        )
        self.sampler.explore = self.config.explore

    def sample(self) -> SampleBatch | MultiAgentBatch:
        """One fragment, postprocessed: a `SampleBatch` where there is one policy, else a `MultiAgentBatch`."""
        if not self.sampler.record:
            raise ConfigError(
                "This worker keeps no trajectories.",
                where="RolloutWorker.sample()",
                got="record=False",
                expected="a worker made with record=True",
                fix="call evaluate(), or make another worker",
            )
        fragment, env_steps = self.sampler.sample()
        while not fragment:  # the outcome of every row is still to come
            fragment, more = self.sampler.sample()
            env_steps += more
        episodes = self.sampler.episodes
        batches = postprocess(fragment, self.policies, episodes.by_id, self._joint_rows)
        if episodes.past:
            episodes.past.clear()
        samples: SampleBatch | MultiAgentBatch = MultiAgentBatch(batches, env_steps)
        if len(self.policies) == 1:
            (policy_id,) = self.policies
            samples = SampleBatch(batches[policy_id].to_dict(), env_steps=env_steps)
        if overrides(self.callbacks, "on_sample_end"):
            self.callbacks.on_sample_end(worker=self, samples=samples)
        return samples

    def evaluate(self, num_episodes: int) -> list[EpisodeMetrics]:
        """Plays an exact number of whole episodes, a fixed share in each sub-environment, and returns their metrics.

        Fixed shares keep short episodes from being counted more often than long ones. Nothing is learned from them:
        the filters stay as they are. Running episodes are dropped, and fresh ones begin afterwards.

        Args:
            num_episodes: how many.
        """
        self.sampler.restart()
        self.sampler.take_metrics()
        record, self.sampler.record = self.sampler.record, False
        try:
            return self._play(num_episodes)
        finally:
            self.sampler.record = record
            self.sampler.restart()

    def _play(self, num_episodes: int) -> list[EpisodeMetrics]:
        shares = np.full(self.env.num_envs, num_episodes // self.env.num_envs)
        shares[: num_episodes % self.env.num_envs] += 1
        finished: list[EpisodeMetrics] = []
        while len(finished) < num_episodes:
            self.sampler.step()
            for metrics in self.sampler.take_metrics():
                # An environment that numbers its episodes as they come has one share for all of them.
                place = metrics.env_index % len(shares)
                if shares[place] > 0:
                    shares[place] -= 1
                    finished.append(metrics)
        return finished

    def get_metrics(self) -> list[EpisodeMetrics]:
        """The episodes finished since the last call."""
        return self.sampler.take_metrics()

    def get_policy(self, policy_id: str = DEFAULT_POLICY) -> Policy:
        """One of the policies.

        Raises:
            PolicyError: there is none of that id.
        """
        if policy_id not in self.policies:
            raise PolicyError(
                "No such policy.",
                where="get_policy",
                got=policy_id,
                expected=f"one of {list(self.policies)}",
                fix="use an id of multiagent.policies",
            )
        return self.policies[policy_id]

    def get_weights(self) -> dict[str, Any]:
        """Policy id -> weights."""
        return self.shared.stored_once({policy_id: policy.get_weights() for policy_id, policy in self.policies.items()})

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Takes over the weights of some or all policies."""
        for policy_id, values in weights.items():
            self.get_policy(policy_id).set_weights(values)

    def get_filters(self) -> dict[str, Any]:
        """Policy id -> the state of its observation filter."""
        return {policy_id: runner.filter.state() for policy_id, runner in self.runners.items()}

    def set_filters(self, states: Mapping[str, Any]) -> None:
        """Takes over the states of observation filters."""
        for policy_id, state in states.items():
            self.runners[policy_id].filter.set_state(state)

    def get_state(self) -> dict[str, Any]:
        """All that a checkpoint holds of this worker: policies, filters, and how far the random streams have come."""
        policies = {policy_id: policy.get_state() for policy_id, policy in self.policies.items()}
        sharing = {policy_id: policies[policy_id]["weights"] for policy_id in self.shared.policy_ids}
        for policy_id, weights in self.shared.stored_once(sharing).items():
            policies[policy_id] = {**policies[policy_id], "weights": weights}
        return {
            "policies": policies,
            "filters": self.get_filters(),
            "episodes_begun": self.sampler.episodes.begun.copy(),
            "next_episode_id": self.sampler.episodes.next_id,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes over what `get_state` returned; fresh episodes begin."""
        for policy_id, values in state["policies"].items():
            self.get_policy(policy_id).set_state(values)
        self.set_filters(state["filters"])
        episodes = self.sampler.episodes
        begun = np.asarray(state["episodes_begun"])
        shared = min(len(begun), episodes.num_envs)  # the new config may have another number of sub-environments
        episodes.begun[:shared] = begun[:shared]
        episodes.next_id = state["next_episode_id"]
        self.sampler.restart()

    def set_timestep(self, timestep: int) -> None:
        """Tells the policies how many steps have been trained on."""
        self.sampler.timestep = timestep
        for policy in self.policies.values():
            policy.timestep = timestep

    def foreach_env(self, function: Callable[[Any], Any]) -> list[Any]:
        """The function's results over the sub-environments."""
        return [function(env) for env in self.env.get_sub_environments()]

    def foreach_policy(self, function: Callable[[Policy, str], Any]) -> list[Any]:
        """The function's results over `(policy, policy id)`."""
        return [function(policy, policy_id) for policy_id, policy in self.policies.items()]

    def stop(self) -> None:
        """Closes the environments."""
        self.env.stop()

    def _make_policy(
        self,
        policy_id: str,
        number: int,
        spec: PolicySpec,
        default_policy_class: type[Policy] | None,
        spaces: tuple[Space, Space],
        joint_rows: JointRows,
    ) -> Policy:
        policy_class = spec.policy_class or default_policy_class
        if policy_class is None:
            raise PolicyError(
                "A policy without a class.",
                where=f"policy {policy_id!r}",
                expected="a Policy class in its spec",
                fix="name one; None stands for the algorithm's own policy, and here is no algorithm",
            )
        seed = self.config.seed
        if seed is not None and (number or self.worker_index):
            seed = int(np.random.SeedSequence((seed, self.worker_index, number)).generate_state(1)[0])
        changes = {**spec.config, "seed": seed} if spec.config or seed != self.config.seed else {}
        config = self.config.for_policy(policy_class.config_class, **changes)
        if getattr(config, "centralized_critic", False):
            config = config.changed(critic_space=joint_rows.space(spaces[0]))
        policy = policy_class(*spaces, config)
        policy.name = policy_id
        return policy

    def _spaces(self, policy_id: str, spec: PolicySpec, policy_of: Callable[..., str] | None) -> tuple[Space, Space]:
        return (
            self._space(policy_id, "observation_space", spec.observation_space, policy_of),
            self._space(policy_id, "action_space", spec.action_space, policy_of),
        )

    def _space(self, policy_id: str, kind: str, given: Space | None, policy_of: Callable[..., str] | None) -> Space:
        of_env = getattr(self.env, kind)
        given = getattr(self.config, kind) if given is None else given
        space = of_env if given is None else given
        if space is None:
            space = space_of_agents(getattr(self.env, f"{kind}s", None) or {}, policy_id, policy_of, kind)
        check_space(space, f"policy {policy_id!r}, {kind}")
        assert space is not None
        if of_env is not None and not same_space(space, of_env):
            raise PolicyError(
                f"The policy's {kind} is not the environment's.",
                where=f"policy {policy_id!r}",
                got=space,
                expected=of_env,
                fix=f"leave {kind} out to take the environment's, or correct it",
            )
        return space

    def _make_runner(self, policy: Policy, config: TrainerConfig) -> PolicyRunner:
        learning = config.multiagent.policies_to_train
        learns = learning is None or policy.name in learning
        runner = PolicyRunner(
            policy,
            make_filter(config.observation_filter, policy.observation_space),
            ActionMap(
                policy.action_space, clip_actions=config.clip_actions, normalize_actions=config.normalize_actions
            ),
            accepts_off_policy=config.accept_off_policy_actions or policy.learns_off_policy or not learns,
            clip_rewards=config.clip_rewards,
        )
        if config.accept_off_policy_actions:
            runner.store(frozenset({SampleBatch.OFF_POLICY}))
        return runner

    def _fragment_length(self) -> int:
        config = self.config
        if config.num_envs_per_worker != self.env.num_envs:  # a vector env brings its own number
            config = config.changed(num_envs_per_worker=self.env.num_envs)
        if config.rollout_fragment_length == "auto" and config.count_steps_by == "agent_steps":
            return -(-config.fragment_length // max(len(self.env.possible_agents or ()), 1))
        return config.fragment_length

    def _make_episode_table(self) -> EpisodeTable:
        def listener(method: str) -> Callable[[Any], Any] | None:
            if not overrides(self.callbacks, method):
                return None
            call = getattr(self.callbacks, method)
            return lambda episode: call(worker=self, base_env=self.env, episode=episode)

        return EpisodeTable(
            self.env.num_envs,
            seed=self.config.seed,
            first_env=(max(self.worker_index, 1) - 1) * self.env.num_envs,
            first_id=self.worker_index << 40,
            on_start=listener("on_episode_start"),
            on_step=listener("on_episode_step"),
            on_end=listener("on_episode_end"),
            only_policy=next(iter(self.policies)) if len(self.policies) == 1 else None,
        )
