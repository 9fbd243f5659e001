"""User-defined models for every kind of algorithm: named outputs of one forward pass, and random inputs."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax import ConfigError, JaxPolicy, Outputs, PolicyError, SampleBatch
from rollax.algorithms.pg import PG
from rollax.algorithms.ppo import PPO
from rollax.algorithms.registry import get_trainer_class
from rollax.models.noisy_linear import NoisyLinear
from rollax.offline.marwil import MARWIL
from rollax.ops.mean_over_rows import masked_mean

SEEN, THREE, BOX = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)
GROUP_SEEN, GROUP_ACTS = spaces.Tuple([SEEN] * 2), spaces.Tuple([THREE] * 2)
ROWS = 6


class Plain(nnx.Module):
    """A linear layer of observations; a critic of continuous actions also takes the actions."""

    def __init__(self, observation_space, num_outputs, *, rngs, action_space=None, how=""):
        width = 2 if action_space is None else 4
        self.head, self.how = nnx.Linear(width, num_outputs, rngs=rngs), how

    def __call__(self, obs, actions=None):
        if isinstance(obs, tuple):  # a member of a group: its observation and its number
            obs = obs[0]
        x = obs if actions is None else jnp.concatenate([obs, actions], axis=-1)
        out = self.head(x)
        return Outputs(out[:, :1] if self.how == "too narrow" else out)


class ActorOnly(nnx.Module):
    def __init__(self, observation_space, num_outputs, *, rngs):
        self.head = nnx.Linear(2, num_outputs, rngs=rngs)

    def __call__(self, obs):
        return Outputs(self.head(obs))


class ActorWithCritic(ActorOnly):
    def critic(self, critic_obs):
        return jnp.zeros(len(critic_obs))


class Noisy(nnx.Module):
    noisy = True

    def __init__(self, observation_space, num_outputs, *, rngs):
        self.head = NoisyLinear(2, num_outputs, sigma0=0.5, rngs=rngs)

    def __call__(self, obs):
        return Outputs(self.head(obs))


class WithMemory(ActorOnly):
    def initial_state(self):
        return (np.zeros(1, np.float32),)


def policy_of(algorithm: str, model: type, how: str = "", **config: Any) -> Any:
    observed, acts = (GROUP_SEEN, GROUP_ACTS) if algorithm == "QMIX" else (SEEN, config.pop("actions", THREE))
    arguments = {"how": how} if how else {}
    sizes = {"train_batch_size": ROWS, "seed": 0, "lr": 0.05}
    policy_class: Any = get_trainer_class(algorithm).policy_class
    model_config = {"custom_model": model, "custom_model_config": arguments}
    return policy_class.make_policy(observed, acts, {**sizes, "model": model_config, **config})


def transitions(policy: Any) -> SampleBatch:
    rng = np.random.default_rng(0)

    def some(space: spaces.Space) -> Any:
        if isinstance(space, spaces.Tuple):
            return tuple(map(some, space.spaces))
        return rng.integers(3, size=ROWS) if space == THREE else rng.uniform(-1, 1, (ROWS, 2)).astype(np.float32)

    return SampleBatch(
        {
            "obs": some(policy.observation_space),
            "actions": some(policy.action_space),
            "rewards": np.ones(ROWS, np.float32),
            "new_obs": some(policy.observation_space),
            "discounts": np.full(ROWS, 0.9, np.float32),
            "weights": np.ones(ROWS, np.float32),
            "value_targets": np.ones(ROWS, np.float32),
        }
    )


KINDS: dict[str, tuple[str, type, dict[str, Any]]] = {
    "DQN": ("DQN", Plain, {}),
    "DQN, atoms": ("DQN", Plain, {"num_atoms": 5}),
    "PQN": ("PQN", Plain, {"sgd_minibatch_size": ROWS}),
    "Rainbow": ("Rainbow", Noisy, {}),
    "SAC": ("SAC", Plain, {"actions": BOX}),
    "SAC, discrete": ("SAC", ActorOnly, {}),
    "TD3": ("TD3", Plain, {"actions": BOX, "policy_delay": 1}),
    "DDPG": ("DDPG", Plain, {"actions": BOX}),
    "QMIX": ("QMIX", Plain, {}),
    "IQL": ("IQL", Plain, {"actions": BOX}),
}


@pytest.mark.short("DQN", "SAC")
@pytest.mark.parametrize("kind", KINDS)
def test_algorithms_act_and_learn_with_a_user_defined_model(kind):
    algorithm, model, config = KINDS[kind]
    policy = policy_of(algorithm, model, **config)
    batch = transitions(policy)
    actions, _, _ = policy.compute_actions(batch["obs"], explore=False)
    assert all(len(column) == ROWS for column in (actions if algorithm == "QMIX" else [actions]))
    before = dict(policy.params)
    own = [name for name in before if ".head." in f".{name}"]
    assert own
    statistics = policy.learn_on_batch(batch)
    assert all(np.isfinite(value).all() for value in statistics.values() if value is not None)
    assert not any(np.array_equal(before[name], policy.params[name]) for name in own if name.endswith("kernel"))


class Normalizing(nnx.Module):
    """Batch normalization and dropout of all inputs, then a linear layer."""

    def __init__(self, observation_space, num_outputs, *, rngs, action_space=None):
        width = 2 if action_space is None else 4
        self.norm = nnx.BatchNorm(width, momentum=0.75, rngs=rngs)
        self.dropout, self.head = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(width, num_outputs, rngs=rngs)

    def __call__(self, obs, actions=None):
        x = obs if actions is None else jnp.concatenate([obs, actions], axis=-1)
        return Outputs(self.head(self.dropout(self.norm(x))))


STATE = "critics.members.network."


class TestCriticsWithState:
    """Batch statistics and random streams of critics, which are neither parameters nor state of the optimizer."""

    @pytest.mark.long
    @pytest.mark.parametrize("algorithm", ["SAC", "CQL", "TD3", "DDPG", "IQL"])
    def test_an_update_moves_the_statistics_of_each_critic_once(self, algorithm):
        policy = policy_of(algorithm, Normalizing, actions=BOX)
        batch = transitions(policy)
        before = policy.get_weights()
        policy.learn_on_batch(batch)
        inputs = np.concatenate([batch["obs"], batch["actions"]], axis=-1)
        critics = 1 if algorithm == "DDPG" else 2
        # ¾ of the initial mean 0 and variance 1, and ¼ of those of the batch
        for name, moved in (("mean", 0.25 * inputs.mean(axis=0)), ("var", 0.75 + 0.25 * inputs.var(axis=0))):
            np.testing.assert_allclose(policy.extra[f"{STATE}norm.{name}"], [moved] * critics, rtol=1e-4, atol=1e-6)
        after = policy.get_weights()
        assert (after[f"{STATE}dropout.rngs.count"] > before[f"{STATE}dropout.rngs.count"]).all()
        if algorithm == "IQL":
            assert not np.array_equal(after["state_value.network.norm.mean"], before["state_value.network.norm.mean"])


@pytest.mark.parametrize(
    ("algorithm", "model", "config", "error", "message"),
    [
        ("Rainbow", Plain, {}, ConfigError, r"explores by noisy layers(.|\n)*noisy = True(.|\n)*NoisyLinear"),
        ("TD3", ActorOnly, {"actions": BOX}, ConfigError, r"cannot be built(.|\n)*action_space"),
        ("SAC", WithMemory, {}, PolicyError, r"memory(.|\n)*initial_state"),
        ("DQN", Plain, {"how": "too narrow"}, PolicyError, r"policy of the wrong(.|\n)*policy=\[13, 3\]"),
        ("DDPG", Plain, {"actions": BOX, "how": "too narrow"}, PolicyError, r"policy of the wrong(.|\n)*13, 2"),
        ("QMIX", Plain, {"how": "too narrow"}, PolicyError, r"policy of the wrong(.|\n)*policy=\[13, 3\]"),
    ],
)
def test_models_that_do_not_fit_are_refused(algorithm, model, config, error, message):
    with pytest.raises(error, match=message):
        policy_of(algorithm, model, **config)


LEARN_FROM_VALUES = ["A2C", "A3C", "PPO", "IMPALA", "APPO", "MARWIL"]
NO_VALUE = r"value of the wrong(.|\n)*got: +value NoneType(.|\n)*fix: +return state values too: `Outputs\(.*\)`"
HINT = r"; the method `critic` gets observations only with centralized_critic=True"


@pytest.mark.parametrize("algorithm", LEARN_FROM_VALUES)
def test_a_model_without_values_is_refused_where_they_are_learned_from(algorithm):
    policy_class: Any = get_trainer_class(algorithm).policy_class

    class OwnModel(policy_class):
        def make_model(self, rngs):
            return ActorOnly(self.observation_space, self.distribution.num_inputs, rngs=rngs)

    for model, hint in ((ActorOnly, "$"), (ActorWithCritic, HINT)):
        with pytest.raises(PolicyError, match=NO_VALUE + hint):
            policy_class.make_policy(SEEN, THREE, {"model": {"custom_model": model}})
    with pytest.raises(PolicyError, match=f"{NO_VALUE}$"):
        OwnModel.make_policy(SEEN, THREE, {})


def test_imitation_with_equal_weights_learns_no_values():
    class OwnModel(MARWIL):
        def make_model(self, rngs):
            return ActorOnly(self.observation_space, self.distribution.num_inputs, rngs=rngs)

    OwnModel.make_policy(SEEN, THREE, {"beta": 0.0})


def test_a_critic_of_observations_that_postprocessing_adds_replaces_values():
    class CentralPolicy(JaxPolicy):
        def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
            sample_batch["critic_obs"] = sample_batch["obs"]
            return super().postprocess_trajectory(sample_batch, other_agent_batches, episode)

    class Central(PPO):
        policy_class = CentralPolicy

    Central.make_policy(SEEN, THREE, {"model": {"custom_model": ActorWithCritic}})


@pytest.mark.parametrize("algorithm", ["PG", "BC"])
@pytest.mark.parametrize("model", [ActorOnly, ActorWithCritic])
def test_algorithms_without_values_take_models_without_values(algorithm, model):
    policy = policy_of(algorithm, model)
    batch = transitions(policy)
    batch["advantages"] = np.arange(ROWS, dtype=np.float32)
    before = dict(policy.params)
    assert np.isfinite(policy.learn_on_batch(batch)["policy_loss"])
    assert not np.array_equal(before["head.kernel"], policy.params["head.kernel"])


def test_a_policy_that_fetches_all_columns_needs_values():
    class Own(PG):
        samples = property(lambda self: None)

    with pytest.raises(PolicyError, match=f"{NO_VALUE}$"):
        Own.make_policy(SEEN, THREE, {"model": {"custom_model": ActorOnly}})


class TestModelsOfMakeModel:
    """Models of an actor alone, where the algorithm expects others."""

    def made(self, algorithm, action_space, model=lambda width, rngs: ActorOnly(SEEN, width, rngs=rngs)):
        policy_class: Any = get_trainer_class(algorithm).policy_class

        class Own(policy_class):
            def make_model(self, rngs):
                return model(self.exploration.num_inputs, rngs)

        spaces = (GROUP_SEEN, GROUP_ACTS) if algorithm == "QMIX" else (SEEN, action_space)
        return Own.make_policy(*spaces, {"train_batch_size": ROWS, "seed": 0})

    @pytest.mark.parametrize("algorithm", ["SAC", "TD3", "DDPG", "IQL", "CQL", "TD3BC"])
    def test_parts_without_a_learning_rate_are_refused(self, algorithm):
        with pytest.raises(PolicyError, match=r"no learning rate(.|\n)*Own, make_model(.|\n)*\['head'\](.|\n)*'actor'"):
            self.made(algorithm, BOX)

    @pytest.mark.parametrize("algorithm", ["DQN", "DiscreteCQL"])
    def test_values_without_logits_are_refused(self, algorithm):
        policy = self.made(algorithm, THREE)
        message = r"the logits(.|\n)*Own, make_model(.|\n)*aux of \[\](.|\n)*CustomQNetwork"
        with pytest.raises(PolicyError, match=message):
            policy.learn_on_batch(transitions(policy))

    def test_a_group_requires_its_own_kind(self):
        class Two(nnx.Module):
            def __call__(self, obs):
                return Outputs(jnp.zeros((len(obs[0]), 6)))

        with pytest.raises(PolicyError, match=r"not that of a group(.|\n)*got: +Two(.|\n)*GroupQNetwork"):
            self.made("QMIX", None, lambda width, rngs: Two())

    @pytest.mark.parametrize("algorithm", ["DQN", "SAC", "PG"])
    def test_other_outputs_are_refused(self, algorithm):
        with pytest.raises(PolicyError, match=r"policy of the wrong shape(.|\n)*ActorOnly"):
            self.made(algorithm, THREE, lambda width, rngs: ActorOnly(SEEN, width + 1, rngs=rngs))

    def test_a_function_is_refused(self):
        with pytest.raises(PolicyError, match=r"not a module of Flax NNX(.|\n)*Own, make_model"):
            self.made("DQN", THREE, lambda width, rngs: lambda obs: Outputs(obs))


class ThreeHeads(nnx.Module):
    """Counts how often its trunk is traced."""

    calls: list[str] = []

    def __init__(self, observation_space, num_outputs, *, rngs):
        self.trunk = nnx.Linear(2, 8, rngs=rngs)
        self.policy, self.value, self.next = (nnx.Linear(8, n, rngs=rngs) for n in (num_outputs, 1, 2))

    def __call__(self, obs):
        ThreeHeads.calls.append("trunk")
        hidden = jnp.tanh(self.trunk(obs))
        return Outputs(self.policy(hidden), self.value(hidden)[:, 0], aux={"next": self.next(hidden)})


class Predicting(PPO):
    """PPO that also learns to predict the next observation."""

    def loss_columns(self, batch, rng):
        return {**super().loss_columns(batch, rng), "new_obs": batch["new_obs"]}

    def loss(self, model, out, batch, mask, coefficients):
        ThreeHeads.calls.append("loss")
        loss, stats = super().loss(model, out, batch, mask, coefficients)
        prediction_loss = masked_mean(jnp.square(out.aux["next"] - batch["new_obs"]).mean(axis=-1), mask)
        return loss + prediction_loss, {**stats, "prediction_loss": prediction_loss}


@pytest.mark.long
def test_a_model_with_three_heads_runs_its_trunk_once():
    sizes = {"sgd_minibatch_size": ROWS, "train_batch_size": ROWS, "num_sgd_iter": 3, "seed": 0, "lr": 0.02}
    policy = Predicting.make_policy(SEEN, THREE, {**sizes, "model": {"custom_model": ThreeHeads}})
    batch = transitions(policy)
    actions, _, fetches = policy.compute_actions(batch["obs"])
    returns = np.arange(ROWS, dtype=np.float32)
    batch = SampleBatch({**batch, **fetches, "actions": actions, "advantages": returns, "value_targets": returns})
    ThreeHeads.calls.clear()
    first = policy.learn_on_batch(batch)["prediction_loss"]
    # The update is traced more than once. In each trace the loss gets the outputs of one pass.
    assert ThreeHeads.calls.count("loss") == ThreeHeads.calls.count("trunk") > 0
    for _ in range(20):
        last = policy.learn_on_batch(batch)["prediction_loss"]
    assert last < 0.7 * first


def test_a_noisy_model_draws_new_numbers_in_each_exploring_call():
    policy, obs = policy_of("Rainbow", Noisy), np.ones((1, 2), np.float32)
    explored = {float(policy.compute_actions(obs)[2]["q_value"][0]) for _ in range(6)}
    greedy = {float(policy.compute_actions(obs, explore=False)[2]["q_value"][0]) for _ in range(4)}
    assert (len(explored), len(greedy)) == (6, 1)
