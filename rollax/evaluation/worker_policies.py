"""The policies of one worker: created from their specs, with their spaces, filters and runners."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from gymnasium import Space

from rollax.batch import SampleBatch
from rollax.config import TrainerConfig
from rollax.errors import PolicyError
from rollax.evaluation.actions import ActionMap
from rollax.evaluation.filters import make_filter
from rollax.evaluation.joint_rows import JointRows
from rollax.evaluation.policy_map import nobody_uses, space_of_agents
from rollax.evaluation.policy_runner import PolicyRunner
from rollax.evaluation.worker_env import EnvSpaces
from rollax.policy.policy import Policy
from rollax.policy.spec import PolicySpec
from rollax.spaces import check_space, same_space


class PolicyMaker:
    """Creates the policies of one worker.

    Args:
        config: the worker's.
        spaces: of its environment.
        policy_of: `(agent_id, episode) -> policy id`; None where there is one policy.
        default_policy_class: the class of a spec that names none.
        worker_index: 0 in the driver, which draws the same random numbers as worker 1.
        restarts: workers of this index that have failed before; each draws its own random numbers.
    """

    def __init__(
        self,
        config: TrainerConfig,
        spaces: EnvSpaces,
        policy_of: Callable[..., str] | None,
        default_policy_class: type[Policy] | None,
        worker_index: int,
        restarts: int = 0,
    ) -> None:
        self._config = config
        self._env = spaces
        self._policy_of = policy_of
        self._default_policy_class = default_policy_class
        self._process = max(worker_index, 1) - 1, restarts

    def policies(self, specs: Mapping[str, PolicySpec]) -> tuple[dict[str, Policy], JointRows]:
        """The policies by id, and the `JointRows` for those that see all agents."""
        spaces = {policy_id: self._spaces(policy_id, spec) for policy_id, spec in specs.items()}
        joint_rows = JointRows(self._env.possible_agents, spaces)
        policies = {
            policy_id: self._policy(policy_id, number, spec, spaces[policy_id], joint_rows)
            for number, (policy_id, spec) in enumerate(specs.items())
        }
        return policies, joint_rows

    def _policy(
        self, policy_id: str, number: int, spec: PolicySpec, spaces: tuple[Space, Space], joint_rows: JointRows
    ) -> Policy:
        policy_class = spec.policy_class or self._default_policy_class
        if policy_class is None:
            raise PolicyError(
                "A policy without a class.",
                where=f"policy {policy_id!r}",
                expected="a Policy class in its spec",
                fix="name one; None stands for the algorithm's own policy, and there is no algorithm here",
            )
        seed = self._config.seed
        worker_number, restarts = self._process
        if seed is not None and (number or worker_number or restarts):
            seed = int(np.random.SeedSequence((seed, worker_number, number, restarts)).generate_state(1)[0])
        changes = {**spec.config, "seed": seed} if spec.config or seed != self._config.seed else {}
        config = self._config.for_policy(policy_class.config_class, **changes)
        if getattr(config, "centralized_critic", False):
            config = config.changed(critic_space=joint_rows.space(spaces[0]))
        policy = policy_class(*spaces, config)
        policy.name = policy_id
        return policy

    def _spaces(self, policy_id: str, spec: PolicySpec) -> tuple[Space, Space]:
        return (
            self._space(policy_id, "observation_space", spec.observation_space),
            self._space(policy_id, "action_space", spec.action_space),
        )

    def _space(self, policy_id: str, kind: str, given: Space | None) -> Space:
        of_env = getattr(self._env, kind)
        given = getattr(self._config, kind) if given is None else given
        space = of_env if given is None else given
        if space is None:
            by_agent = getattr(self._env, f"{kind}s") or {}
            space = space_of_agents(by_agent, policy_id, self._policy_of, kind, self._env.possible_agents)
            if space is None and by_agent:
                raise nobody_uses(policy_id, list(by_agent), self._policy_of, kind)
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


def make_runner(policy: Policy, config: TrainerConfig) -> PolicyRunner:
    """The runner of one policy.

    Args:
        policy: the policy.
        config: the worker's config with the changes of the policy's spec.
    """
    learning = config.multiagent.policies_to_train
    learns = learning is None or policy.name in learning
    runner = PolicyRunner(
        policy,
        make_filter(config.observation_filter, policy.observation_space),
        ActionMap(policy.action_space, clip_actions=config.clip_actions, normalize_actions=config.normalize_actions),
        accepts_off_policy=config.accept_off_policy_actions or policy.learns_off_policy or not learns,
        clip_rewards=config.clip_rewards,
    )
    if config.accept_off_policy_actions:
        runner.store(frozenset({SampleBatch.OFF_POLICY}))
    return runner
