"""`JaxPolicy`: the template of the built-in algorithms. A model, a loss, an optimizer; all of it compiled."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from gymnasium import Space

from rollax import runtime, trees
from rollax.batch import SampleBatch
from rollax.config import TrainerConfig, resolve_config
from rollax.errors import ConfigError, NonFiniteError
from rollax.models.catalog import make_model
from rollax.models.central_critic import with_critic
from rollax.models.distributions import DiagGaussian, make_distribution
from rollax.models.parametric import check_parametric
from rollax.models.recurrent import run_model
from rollax.policy import action_masks
from rollax.policy.action_masks import ActionMasks
from rollax.policy.learning import Learner, MinibatchPlan, acting_bucket
from rollax.policy.memory import Memory, as_rows
from rollax.policy.policy import ActionsResult, Policy
from rollax.policy.split_model import SplitModel

Columns = Mapping[str, Any]
_FEWEST_VALUES = 32
_ARGUMENTS = frozenset({"obs_batch", "explore"})


class JaxPolicy(Policy):
    """A policy whose acting, gradients and whole multi-epoch updates are each one compiled call.

    A subclass gives `loss`, and may give `coefficients` and `train_columns`. The model is split once into a graph and
    arrays; compiled functions take the arrays.

    Args:
        observation_space: of one agent.
        action_space: of one agent.
        config: the algorithm's config, or a dict with its keys; read here: `model`, `lr`, `lr_schedule`, `grad_clip`,
            `seed`.
    """

    squash_actions = False
    num_sgd_iter = 1
    """Passes over each batch."""
    sgd_minibatch_size: int | None = None
    """Rows per gradient step; None: the whole batch."""

    def __init__(self, observation_space: Space, action_space: Space, config: Any = None) -> None:
        super().__init__(observation_space, action_space, resolve_config(self.config_class or TrainerConfig, config))
        runtime.configure_jax()
        seed, model = self.config.seed, self.config.model
        self.rng = np.random.Generator(np.random.SFC64(seed))
        self.distribution = make_distribution(action_space, squash=self.squash_actions)
        if model.free_log_std and model.custom_model is None and not isinstance(self.distribution, DiagGaussian):
            raise _no_log_std(action_space)
        if model.custom_model is None:
            check_parametric(observation_space, action_space)
        rngs = nnx.Rngs(int(self.rng.integers(2**31)) if seed is None else seed)
        module = self._make_module(rngs)
        self.memory = Memory(module, action_space, model.max_seq_len)
        self.arguments = _ARGUMENTS | self.memory.arguments
        if self.batch_columns is not None:
            self.batch_columns = self.batch_columns | self.memory.batch_columns  # type: ignore[misc]
        self.split = SplitModel(module)
        self.params: Columns = self.split.params
        self.extra: Columns = self.split.extra
        self.on_new_variables: Callable[[], Any] | None = None
        self.masks = ActionMasks(observation_space, action_space)
        self._fetched = self._fetch_columns()
        self._lr = self.config.schedule("lr")
        self.learner = Learner(self._loss_of_arrays, self.make_optimizer(), self.params)
        # The noise is drawn on the host, so the compiled function is pure and cheap (a device generator costs more).
        self._act = jax.jit(partial(self._act_on_arrays, explore=True))
        self._act_greedily = jax.jit(partial(self._act_on_arrays, explore=False))
        self._value = jax.jit(self._values_of_arrays)
        self._logp = jax.jit(self.distribution.logp)

    def _make_module(self, rngs: nnx.Rngs) -> Any:
        """The model, with a critic beside it where the config asks for one that sees all agents."""
        config, spaces_ = self.config.model, (self.observation_space, self.action_space)
        if not getattr(self.config, "centralized_critic", False):
            return make_model(*spaces_, self.distribution.num_inputs, config, rngs)
        if self.config.critic_space is None:
            raise _no_critic_space(type(self).__name__)
        self.sees_all_agents = True
        if self.batch_columns is not None:
            self.batch_columns = self.batch_columns - {SampleBatch.VF_PREDS}  # type: ignore[misc]
        # The actor's own values are never asked for, so they need no layers.
        actor = config.model_copy(update={"vf_share_layers": True})
        model = make_model(*spaces_, self.distribution.num_inputs, actor, rngs)
        return with_critic(model, self.config.critic_space, config, rngs=rngs)

    # What an algorithm defines.

    @abstractmethod
    def loss(self, model: nnx.Module, batch: Columns, mask: jax.Array, coefficients: Columns) -> tuple[jax.Array, dict]:
        """`(loss, statistics)` of one minibatch, traced by JAX.

        Args:
            model: the model, to be called through `self.forward(model, batch)`.
            batch: the columns of `train_columns`, [B, ...]; of a policy with memory also `state_in`, one row for each
                of the sequences that the rows are made of.
            mask: [B] 1 for a real row, 0 for padding.
            coefficients: what `coefficients` returned.
        """

    def coefficients(self) -> dict[str, float]:
        """Numbers that change between updates without compiling anew; `lr` is always among them."""
        return {"lr": self._lr(self.timestep)}

    def train_columns(self, batch: SampleBatch) -> dict[str, Any]:
        """The columns that the loss reads, from a postprocessed batch."""
        return {name: batch[name] for name in (SampleBatch.OBS, SampleBatch.ACTIONS)}

    def make_optimizer(self) -> optax.GradientTransformation:
        """The direction of a step; the learning rate is applied after it."""
        clip = self.config.grad_clip
        # The same structure of state with and without clipping, so that a restored run may change its mind.
        return optax.chain(optax.identity() if clip is None else optax.clip_by_global_norm(clip), optax.scale_by_adam())

    # Acting.

    def forward(self, model: Any, columns: Columns) -> tuple[jax.Array, jax.Array]:
        """`(dist_inputs, values)` of the model, with invalid actions masked out.

        Args:
            model: the model.
            columns: `obs`, and of a policy with memory `state_in` and what else its model takes. With `critic_obs`
                among them the values are those of `model.critic(critic_obs)`.
        """
        return self._forward_and_remember(model, columns)[:2]

    def _forward_and_remember(self, model: Any, columns: Columns) -> tuple[jax.Array, jax.Array, tuple]:
        obs = columns[SampleBatch.OBS]
        dist_inputs, values, state_out = run_model(model, columns)
        if SampleBatch.CRITIC_OBS in columns:
            values = model.critic(columns[SampleBatch.CRITIC_OBS])
        if self.masks.present:
            dist_inputs = self.distribution.mask(dist_inputs, obs[action_masks.KEY])
        return dist_inputs, values, state_out

    def get_initial_state(self) -> list[Any]:
        return list(self.memory.initial_state)

    def compute_actions(  # type: ignore[override]  the library passes what is accepted
        self,
        obs_batch: Any,
        state_batches: Sequence[Any] = (),
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
        explore: bool = True,
    ) -> ActionsResult:
        rows = trees.length(obs_batch)
        size = acting_bucket(rows)
        columns = {SampleBatch.OBS: obs_batch}
        if self.memory.present:
            where = f"policy {self.name!r}"
            columns |= self.memory.given(rows, state_batches, prev_action_batch, prev_reward_batch, where)
        if size != rows:
            columns = trees.pad(columns, size)
        if self.masks.present:
            self.masks.check(obs_batch, f"policy {self.name!r}")
        if explore:
            noise = self.rng.random((size, self.distribution.num_noise), dtype=np.float32)
            actions, packed, states = self._act(self.params, self.extra, columns, noise)
        else:
            actions, packed, states = self._act_greedily(self.params, self.extra, columns, None)
        table = np.asarray(packed)[:rows]
        fetches = {name: table[:, columns] for name, columns in self._fetched.items()}
        self._check_finite(fetches[SampleBatch.ACTION_LOGP])
        actions = trees.tree_map(lambda leaf: np.asarray(leaf)[:rows], actions)
        return actions, [np.asarray(part)[:rows] for part in states], fetches

    def _act_on_arrays(
        self, params: Columns, extra: Columns, columns: Columns, noise: Any, explore: bool
    ) -> tuple[Any, Any, tuple]:
        model = self.split.merge(params, extra)
        dist_inputs, values, states = self._forward_and_remember(model, columns)
        d = self.distribution
        actions = d.sample(dist_inputs, noise) if explore else d.mode(dist_inputs)
        fetches = {
            SampleBatch.ACTION_LOGP: d.logp(dist_inputs, actions)[:, None],
            SampleBatch.VF_PREDS: values[:, None],
            SampleBatch.ACTION_DIST_INPUTS: dist_inputs,
        }
        # One array instead of three: each one that leaves a compiled function costs as much as a small layer.
        return actions, jnp.concatenate([fetches[name] for name in self._fetched], axis=1), states

    def _fetch_columns(self) -> dict[str, int | slice]:
        """Where each fetched column stands in the array that acting returns."""
        wanted = self.batch_columns
        places: dict[str, int | slice] = {SampleBatch.ACTION_LOGP: 0}
        if wanted is None or SampleBatch.VF_PREDS in wanted:
            places[SampleBatch.VF_PREDS] = len(places)
        if wanted is None or SampleBatch.ACTION_DIST_INPUTS in wanted:
            places[SampleBatch.ACTION_DIST_INPUTS] = slice(len(places), len(places) + self.distribution.num_inputs)
        return places

    def fetches_of(self, actions: Any, fetches: Mapping[str, Any]) -> Mapping[str, Any]:
        if SampleBatch.ACTION_DIST_INPUTS not in fetches:
            return {}
        logp = np.array(self._logp(fetches[SampleBatch.ACTION_DIST_INPUTS], actions))
        self._check_finite(logp)
        return {SampleBatch.ACTION_LOGP: logp}

    def compute_values(self, obs_batch: Any, memory: Mapping[str, Any] = MappingProxyType({})) -> np.ndarray:
        """[N] state values.

        Args:
            obs_batch: columns of N observations.
            memory: what goes with them into a policy with memory, as in `Pieces.next_memory`; or `critic_obs`, of which
                the values are then.
        Raises:
            PolicyError: nothing is given of what a memory needs.
        """
        rows = trees.length(obs_batch)
        self.memory.check(memory, f"policy {self.name!r}")
        if rows == 0:
            return np.empty(0, np.float32)
        # The number of trajectory ends differs from fragment to fragment: small ones share one compiled version.
        columns = {SampleBatch.OBS: obs_batch, **(memory if self.memory.present else {})}
        if SampleBatch.CRITIC_OBS in memory:
            columns = {SampleBatch.CRITIC_OBS: memory[SampleBatch.CRITIC_OBS]}
        columns = trees.pad(columns, max(acting_bucket(rows), _FEWEST_VALUES))
        return np.asarray(self._value(self.params, self.extra, columns))[:rows]

    def _values_of_arrays(self, params: Columns, extra: Columns, columns: Columns) -> jax.Array:
        model = self.split.merge(params, extra)
        if SampleBatch.CRITIC_OBS in columns:
            return model.critic(columns[SampleBatch.CRITIC_OBS])
        return run_model(model, columns)[1]

    def _check_finite(self, logp: np.ndarray) -> None:
        # A sum is finite unless an element is not: cheaper than looking at each.
        if not math.isfinite(logp.sum()):
            raise NonFiniteError(
                "The model's outputs are not finite: no action can be chosen.",
                where=f"policy {self.name!r}, row {int(np.argmin(np.isfinite(logp)))} of {len(logp)}, "
                f"at timestep {self.timestep}",
                got="a NaN or infinite log-probability",
                expected="finite outputs",
                fix="look for NaN weights, or for observations too large for the model; observation_filter="
                "'MeanStdFilter' scales them",
            )

    # Learning.

    def learn_on_batch(self, batch: SampleBatch) -> dict[str, Any]:
        """All epochs and minibatches in one compiled call; statistics are means over the last epoch.

        Raises:
            NonFiniteError: a loss or gradient is not finite; the weights are those before that gradient step.
        """
        size = self.sgd_minibatch_size
        if size is not None:
            size = max(size // self.memory.max_seq_len, 1)
        columns, plan = self._planned(batch, size, self.num_sgd_iter)
        coefficients = self.coefficients()
        update = self.learner.learn(self.params, self.extra, columns, plan, coefficients, where=f"policy {self.name!r}")
        self._set_variables(update.params, update.extra)
        if update.error is not None:
            raise update.error
        return {**update.statistics, "cur_lr": coefficients["lr"]}

    def compute_gradients(self, batch: SampleBatch) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Name -> gradient over the whole batch, and its statistics."""
        columns, plan = self._planned(batch, None, 1)
        gradients, stats = self.learner.gradients(self.params, self.extra, columns, plan, self.coefficients())
        return {name: np.array(value) for name, value in gradients.items()}, stats

    def apply_gradients(self, gradients: Mapping[str, Any]) -> None:
        """One optimizer step with gradients from here or elsewhere."""
        where = f"policy {self.name!r}"
        self._set_variables(self.learner.apply(self.params, gradients, self._lr(self.timestep), where), self.extra)

    def _planned(self, batch: SampleBatch, size: int | None, epochs: int) -> tuple[dict[str, Any], MinibatchPlan]:
        """The columns to train on, padded, and which of their rows, or sequences, make up which gradient step."""
        columns, count = self.train_columns(batch), len(batch)
        if self.memory.present:
            columns, count = self.memory.sequences(columns, batch)
        plan = MinibatchPlan.draw(self.rng, count, size, epochs, few_sizes=self.memory.present)
        return trees.pad(columns, plan.capacity), plan

    def _loss_of_arrays(
        self, params: Columns, extra: Columns, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, tuple[dict, Columns]]:
        if self.memory.present:
            batch, mask = as_rows(batch, mask)
        model = self.split.merge(params, extra, learning=True)
        loss, stats = self.loss(model, batch, mask, coefficients)
        return loss, ({**stats, "total_loss": loss}, self.split.extra_of(model))

    # Weights and state.

    def get_weights(self) -> dict[str, np.ndarray]:
        # Copies: an update donates the arrays, so a view would change under its reader.
        return {name: np.array(value) for name, value in {**self.params, **self.extra}.items()}

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        self._set_variables(*self.split.checked(weights, where=f"policy {self.name!r}"))

    def _set_variables(self, params: Columns, extra: Columns) -> None:
        self.params, self.extra = params, extra
        if self.on_new_variables is not None:
            self.on_new_variables()

    def get_state(self) -> dict[str, Any]:
        return {
            **super().get_state(),
            "optimizer": self.learner.optimizer_arrays(),
            "num_updates": self.learner.num_updates,
            "rng": self.rng.bit_generator.state,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self.learner.set_optimizer_arrays(state["optimizer"], where=f"policy {self.name!r}")
        self.learner.num_updates = state["num_updates"]
        self.rng.bit_generator.state = state["rng"]

    def compilations(self) -> int:
        """How many versions of its functions JAX has compiled; bounded, because shapes are."""
        functions: list[Any] = [self._act, self._act_greedily, self._value, *self.learner.functions()]
        return sum(function._cache_size() for function in functions)


def _no_critic_space(policy_class: str) -> ConfigError:
    return ConfigError(
        "A centralized critic for a policy that is made on its own.",
        where=f"config key 'critic_space', for {policy_class}",
        got=None,
        expected="the space of what the critic sees",
        fix="let a trainer or a RolloutWorker make the policy: it knows all agents and their spaces",
    )


def _no_log_std(action_space: Space) -> ConfigError:
    return ConfigError(
        "free_log_std for actions that have no standard deviation, or not only.",
        where="config key 'model.free_log_std'",
        got=action_space,
        expected="a Box action space",
        fix="leave free_log_std out for this action space",
    )
