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
from rollax.policy.policy import Policy, PolicySpec
from rollax.spaces import check_space, same_space


def make_policies(
    config: TrainerConfig,
    specs: Mapping[str, PolicySpec],
    env_spaces: EnvSpaces,
    policy_of: Callable[..., str] | None,
    default_policy_class: type[Policy] | None,
    worker_index: int,
    restarts: int,
) -> tuple[dict[str, Policy], JointRows]:
    """The policies of a worker by id, and the `JointRows` for those that see all agents.

    Args:
        config: the worker's.
        specs: policy id -> spec.
        env_spaces: of the worker's environment.
        policy_of: `(agent_id, episode) -> policy id`; None where there is one policy.
        default_policy_class: the class of a spec that names none.
        worker_index: 0 in the driver, which draws the same random numbers as worker 1.
        restarts: workers of this index that have failed before; each draws its own random numbers.
    """
    spaces: dict[str, tuple[Space, Space]] = {}
    for policy_id, spec in specs.items():
        observation = config.observation_space if spec.observation_space is None else spec.observation_space
        action = config.action_space if spec.action_space is None else spec.action_space
        spaces[policy_id] = (
            _space(policy_id, "observation_space", observation, env_spaces, policy_of),
            _space(policy_id, "action_space", action, env_spaces, policy_of),
        )
    joint_rows = JointRows(env_spaces.possible_agents, spaces)
    policies = {}
    for number, (policy_id, spec) in enumerate(specs.items()):
        policy_class = spec.policy_class or default_policy_class
        if policy_class is None:
            raise PolicyError(
                "A policy without a class.",
                where=f"policy {policy_id!r}",
                expected="a Policy class in its spec",
                fix="name one; None stands for the algorithm's own policy, and there is no algorithm here",
            )
        seed = _seed(config.seed, max(worker_index, 1) - 1, restarts, number)
        changes = {**spec.config, "seed": seed} if spec.config or seed != config.seed else {}
        own_config = config.for_policy(policy_class.config_class, **changes)
        if getattr(own_config, "centralized_critic", False):
            own_config = own_config.changed(critic_space=joint_rows.space(spaces[policy_id][0]))
        policies[policy_id] = policy_class(*spaces[policy_id], own_config)
        policies[policy_id].name = policy_id
    return policies, joint_rows


def _seed(seed: int | None, process: int, restarts: int, number: int) -> int | None:
    """The seed of a policy: that of the config for the first policy of the first process."""
    if seed is None or not (number or process or restarts):
        return seed
    return int(np.random.SeedSequence((seed, process, number, restarts)).generate_state(1)[0])


def _space(
    policy_id: str, kind: str, given: Space | None, env_spaces: EnvSpaces, policy_of: Callable[..., str] | None
) -> Space:
    of_env = getattr(env_spaces, kind)
    space = of_env if given is None else given
    if space is None:
        by_agent = getattr(env_spaces, f"{kind}s") or {}
        space = space_of_agents(by_agent, policy_id, policy_of, kind, env_spaces.possible_agents)
        if space is None and by_agent:
            raise nobody_uses(policy_id, list(by_agent), policy_of, kind)
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
