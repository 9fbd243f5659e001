"""`WorkerPolicies`: the policies of one worker, made from their specs and spaces."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gymnasium import Space

from rollax.batch import DEFAULT_POLICY, MultiAgentBatch, SampleBatch
from rollax.config import TrainerConfig, resolve_config
from rollax.config.multiagent import SharedParts
from rollax.core.running_statistics import State
from rollax.core.spaces import check_space, same_action_space, same_space
from rollax.env.base_env import BaseEnv, in_order
from rollax.env.registry import EnvContext
from rollax.errors import ConfigError, PolicyError
from rollax.models.config import ModelConfig
from rollax.policy.model_policy import ModelPolicy
from rollax.policy.policy import Policy, Weights
from rollax.policy.policy_spec import PolicyClass, PolicySpec
from rollax.policy.size_checks import check_convolutions
from rollax.rollout.filters import make_filter
from rollax.rollout.policy_runner import PolicyRunner
from rollax.rollout.seeds import policy_seed

if TYPE_CHECKING:
    from rollax.rollout.centralized_critic import JointRows
    from rollax.rollout.policy_mapping import PolicyMapping


class WorkerPolicies(dict[str, Policy]):
    """Policy id -> policy, with their runners and the variables that they share.

    Args:
        runners: policy id -> policy, with its observation filter and action map.
        joint_rows: joins the rows of all agents for a centralized critic; None without one.
        shared_variables: as `multiagent.shared_variables`.
    Attributes:
        filters_set: policy id -> how often `set_filters` has set its running statistics; with each update it is
            replaced by the driver's counts.
    Raises:
        ConfigError, PolicyError: the policies cannot share these variables.
    """

    def __init__(
        self,
        runners: Mapping[str, PolicyRunner],
        joint_rows: JointRows | None,
        shared_variables: Mapping[str, SharedParts],
    ) -> None:
        super().__init__((policy_id, runner.policy) for policy_id, runner in runners.items())
        self.runners, self.joint_rows = runners, joint_rows
        self.filters_set: dict[str, int] = {}
        self._shared = None
        if shared_variables:
            from rollax.policy.shared_variables import SharedVariables  # loaded only where it is used

            self._shared = SharedVariables(shared_variables, self)

    @property
    def accept_off_policy(self) -> bool:
        """Whether each policy may get actions of other policies: it learns from them too, or does not learn."""
        return all(runner.accepts_off_policy for runner in self.runners.values())

    def get_policy(self, policy_id: str) -> Policy:
        """The policy with that id; PolicyError for an unknown one."""
        if policy_id not in self:
            raise PolicyError("Unknown policy.", "get_policy", policy_id).expected(
                f"one of {list(self)}",
                "pass policy_id" if policy_id == DEFAULT_POLICY else "use an id of multiagent.policies",
            )
        return self[policy_id]

    def get_weights(self) -> dict[str, Weights]:
        """Policy id -> weights; shared ones are stored once."""
        if self._shared is not None:
            self._shared.synchronize()
        weights = {policy_id: policy.get_weights() for policy_id, policy in self.items()}
        return weights if self._shared is None else self._shared.stored_once(weights)

    def set_weights(self, weights: Mapping[str, Weights]) -> None:
        """Sets the weights of some or all policies.

        Raises:
            PolicyError: the weights are not a dict by policy id, or have different values of a variable that policies
                share (nothing has changed then), or are from another model.
        """
        self._refuse_unless_by_policy(weights, "weights")
        if self._shared is not None:
            self._shared.refuse_conflicts(weights)
        for policy_id, values in weights.items():
            self.get_policy(policy_id).set_weights(values)

    def get_state(self) -> dict[str, dict[str, Any]]:
        """Policy id -> state; shared weights are stored once."""
        if self._shared is None:
            return {policy_id: policy.get_state() for policy_id, policy in self.items()}
        self._shared.synchronize()
        states = {policy_id: policy.get_state() for policy_id, policy in self.items()}
        sharing = {policy_id: states[policy_id]["weights"] for policy_id in self._shared.policy_ids}
        for policy_id, weights in self._shared.stored_once(sharing).items():
            states[policy_id] = {**states[policy_id], "weights": weights}
        return states

    def set_state(self, states: Mapping[str, Any]) -> None:
        """Sets the states of some or all policies."""
        for policy_id, values in states.items():
            self.get_policy(policy_id).set_state(values)

    def get_filters(self) -> dict[str, State]:
        """Policy id -> the state of its running statistics: of its observation filter, and of its algorithm."""
        return {policy_id: runner.running_statistics.state() for policy_id, runner in self.runners.items()}

    def set_filters(self, states: Mapping[str, State]) -> None:
        """Sets the states of running statistics; PolicyError unless they are a dict by policy id."""
        self._refuse_unless_by_policy(states, "filters")
        for policy_id, state in states.items():
            self.runners[policy_id].running_statistics.set_state(state)
            self.filters_set[policy_id] = self.filters_set.get(policy_id, 0) + 1

    def _refuse_unless_by_policy(self, given: Any, what: str) -> None:
        """Raises PolicyError unless `given` is a dict whose keys are policy ids."""
        unknown = [key for key in given if key not in self] if isinstance(given, Mapping) else []
        if unknown or not isinstance(given, Mapping):
            raise PolicyError(
                f"The {what} are not a dict by policy id.",
                f"set_{what}",
                f"the keys {unknown}" if unknown else type(given).__name__,
            ).expected(
                f"policy id -> {what} of the policy, with ids from {list(self)}",
                f"pass what get_{what}() of a worker with these policies returned, or {{policy_id: {what}}}",
            )

    def sync_filters(self, states: Mapping[str, State], filters_set: Mapping[str, int], *, learning: bool) -> None:
        """Sets the states of running statistics, and keeps the statistics that are not sent yet.

        With `learning` false, policies that learn here keep their statistics. A policy whose count in `filters_set` has
        changed always gets the new statistics, and drops its statistics that are not sent yet.
        """
        for policy_id, state in states.items():
            runner = self.runners[policy_id]
            if filters_set.get(policy_id, 0) != self.filters_set.get(policy_id, 0):
                runner.running_statistics.set_state(state)
            elif learning or not runner.learns:
                runner.running_statistics.sync(state)

    def new_statistics(self, *, whole: bool) -> dict[str, State]:
        """Policy id -> running statistics since the last call, or their `whole` state, for policies that learn."""
        learning = {policy_id: runner.running_statistics for policy_id, runner in self.runners.items() if runner.learns}
        return {policy_id: each.state() if whole else each.take_delta() for policy_id, each in learning.items()}

    def compute_gradients(
        self, batch: MultiAgentBatch, policies_to_train: Sequence[str] | None
    ) -> dict[str, tuple[Any, dict[str, Any]]]:
        """Policy id -> `(gradients, statistics)` over its rows in the batch; `policies_to_train` None trains all."""
        return {
            policy_id: self[policy_id].compute_gradients(rows)
            for policy_id, rows in batch.items()
            if rows.count and (policies_to_train is None or policy_id in policies_to_train)
        }


def specs_of(given: PolicyClass | Mapping[str, Any]) -> dict[str, PolicySpec]:
    """Policy id -> spec, from one policy class or the `policies` of a config."""
    if isinstance(given, Mapping):
        if not given:
            raise PolicyError.missing(
                "policy",
                "RolloutWorker(env_creator, policy_cls_or_specs)",
                "a policy class, or at least one policy id with its spec",
            ).fix("pass {'default_policy': MyPolicy}, or MyPolicy itself")
        return {policy_id: PolicySpec.of(spec, policy_id) for policy_id, spec in given.items()}
    return {DEFAULT_POLICY: PolicySpec.of(given, DEFAULT_POLICY)}


def resolved_config(config: Any, specs: Mapping[str, PolicySpec], default: PolicyClass | None) -> TrainerConfig:
    """The config, validated by the config class of the first policy that has one."""
    if isinstance(config, TrainerConfig):
        return config
    classes = [spec.policy_class or default for spec in specs.values()]
    known = (policy_class.config_class for policy_class in classes if policy_class is not None)
    config_class = next((found for found in known if found is not None), TrainerConfig)
    return resolve_config(config_class, config)


def make_policies(
    config: TrainerConfig,
    specs: Mapping[str, PolicySpec],
    env: BaseEnv | None,
    policy_of: PolicyMapping | None,
    default_policy_class: PolicyClass | None,
    context: EnvContext,
    restarts: int,
) -> WorkerPolicies:
    """The policies of a worker.

    Args:
        config: config of the worker.
        specs: policy id -> spec.
        env: has the spaces and agents; None if the config or the specs define all spaces.
        policy_of: `(agent_id, episode) -> policy id`; None for a single policy.
        default_policy_class: the class of a spec without one.
        context: context of the worker; worker 0, the driver, draws the same random numbers as worker 1.
        restarts: number of earlier workers of this index that failed; each draws different random numbers.
    """
    source = config if env is None else env
    spaces: dict[str, tuple[Space, Space]] = {}
    for policy_id, spec in specs.items():
        observation = config.observation_space if spec.observation_space is None else spec.observation_space
        action = config.action_space if spec.action_space is None else spec.action_space
        spaces[policy_id] = (
            _space(policy_id, "observation_space", observation, source, policy_of),
            _space(policy_id, "action_space", action, source, policy_of),
        )
    agents = in_order(getattr(env, "possible_agents", None) or ())
    known = [one.config_class for one in (default_policy_class, *(spec.policy_class for spec in specs.values())) if one]
    of_config = next((one for one in known if one is not None and isinstance(config, one)), None)
    runners = {}
    for number, (policy_id, spec) in enumerate(specs.items()):
        policy_class = spec.policy_class or default_policy_class
        if policy_class is None:
            raise PolicyError("A policy has no class.", f"policy {policy_id!r}").expected(
                "a Policy class in its spec",
                "set a class in the spec: None means the algorithm's own policy, but there is no algorithm here",
            )
        seed = policy_seed(config.seed, max(context.worker_index, 1) - 1, restarts, number)
        changes = {**spec.config, "seed": seed} if spec.config or seed != config.seed else {}
        try:
            # The config's class may derive from the class of another algorithm, as Rainbow's from DQN's.
            own_class = policy_class.config_class
            own_config = config.for_policy(None if own_class is of_config else own_class, **changes)
            if getattr(own_config, "centralized_critic", False) and getattr(own_config, "critic_space", None) is None:
                own_config = own_config.changed(critic_space=_joint_rows(agents, spaces).space(spaces[policy_id][0]))
            check_convolutions(own_config.model, [space for space, _ in spaces.values()], f"policy {policy_id!r}")
            policy = policy_class.make_policy(*spaces[policy_id], own_config)
        except Exception as error:
            if len(specs) > 1:
                error.add_note(f"Raised while policy {policy_id!r}, a {policy_class.__name__}, was made.")
            raise
        policy.name, policy.worker_index, policy.num_workers = policy_id, context.worker_index, context.num_workers
        runners[policy_id] = make_runner(policy, own_config)
    _check_sequences({policy_id: runner.policy for policy_id, runner in runners.items()})
    sees_all = any(runner.policy.sees_all_agents for runner in runners.values())
    joint_rows = _joint_rows(agents, spaces) if sees_all else None
    return WorkerPolicies(runners, joint_rows, config.multiagent.shared_variables)


def _check_sequences(policies: Mapping[str, Policy]) -> None:
    """Raises ConfigError for a `max_seq_len` if no policy's model has memory; only the models show this."""
    models = {policy_id: policy for policy_id, policy in policies.items() if isinstance(policy, ModelPolicy)}
    if len(models) < len(policies) or any(policy.memory.present for policy in models.values()):
        return
    for policy_id, policy in models.items():
        length = policy.config.model.max_seq_len
        if length != ModelConfig.model_fields["max_seq_len"].default:
            raise ConfigError(
                "max_seq_len has no effect: no policy has a model with memory.",
                f"config key 'model.max_seq_len', for policy {policy_id!r}",
                length,
            ).expected(
                "a model with memory",
                "set model.use_lstm, use_gru or use_attention, give your model initial_state, or leave max_seq_len out",
            )


def _joint_rows(agents: Sequence[Hashable], spaces: Mapping[str, tuple[Space, Space]]) -> JointRows:
    from rollax.rollout.centralized_critic import JointRows

    return JointRows(agents, spaces)


def _space(policy_id: str, kind: str, given: Space | None, source: Any, policy_of: PolicyMapping | None) -> Space:
    """A policy's space: `given`, or the space of `source`, an environment or a config; checked."""
    of_source = getattr(source, kind)
    space = of_source if given is None else given
    if space is None:
        from rollax.rollout.policy_mapping import space_of_agents  # loaded only where it is used

        by_agent, declared = getattr(source, f"{kind}s", None) or {}, getattr(source, "possible_agents", None) or ()
        space = space_of_agents(by_agent, policy_id, policy_of, kind, declared)
    check_space(space, f"policy {policy_id!r}, {kind}")
    assert space is not None
    same = same_action_space if kind == "action_space" else same_space
    if of_source is not None and not same(space, of_source):
        raise PolicyError(f"The policy's {kind} is not the environment's.", f"policy {policy_id!r}", space).expected(
            of_source, f"leave {kind} out to take the environment's, or correct it"
        )
    return space


def make_runner(policy: Policy, config: TrainerConfig) -> PolicyRunner:
    """The runner of a policy, with the worker's config and the changes in the policy's spec."""
    learning = config.multiagent.policies_to_train
    learns = learning is None or policy.name in learning
    runner = PolicyRunner.of(
        policy,
        config,
        make_filter(config.observation_filter, policy.observation_space),
        learns=learns,
        accepts_off_policy=config.accept_off_policy_actions or policy.learns_off_policy or not learns,
    )
    if config.accept_off_policy_actions:
        runner.store(frozenset({SampleBatch.OFF_POLICY}))
    return runner
