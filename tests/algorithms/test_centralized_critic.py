"""A centralized critic: its inputs, its values, the number of its calls, and its checkpoints."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax import A2CTrainer, A3CTrainer, JaxPolicy, MultiAgentEnv, PolicySpec, PPOTrainer, RolloutWorker, load_policy
from rollax.algorithms.ppo import PPO
from rollax.errors import ConfigError, PolicyError
from rollax.models.config import ModelConfig
from rollax.models.outputs import Outputs
from rollax.torch.networks import CentralCritic
from tests.rollout.test_recurrent_sampling import KeepsFragment

COIN = spaces.Discrete(2)
SMALL = {"num_envs_per_worker": 4, "train_batch_size": 256, "sgd_minibatch_size": 64, "lr": 3e-3, "seed": 0}
SMALL |= {"model": {"fcnet_hiddens": (32,)}}
ONE_EACH = {"policies": {"a": None, "b": None}, "policy_mapping_fn": lambda agent_id: agent_id}


class Secrets(MultiAgentEnv):
    """Each agent observes its own coin. Its reward depends on the other's coin and action only, so that it cannot be
    predicted from its own observations."""

    observation_space = action_space = COIN
    possible_agents = ("a", "b")
    length = 8

    def __init__(self, env_config: dict) -> None:
        self.rng = np.random.default_rng(0)

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.steps = 0
        return self._coins(), {}

    def step(self, actions):
        self.steps += 1
        rewards = {agent: 2.0 * self.coins[other] + float(actions[other]) for agent, other in (("a", "b"), ("b", "a"))}
        over = self.steps == self.length
        return self._coins(), rewards, {"__all__": False}, {"__all__": over}, {}

    def _coins(self):
        self.coins = {agent: int(self.rng.integers(2)) for agent in "ab"}
        return dict(self.coins)


class Steady(Secrets):
    """Constant observations and reward 1 at each step; every episode is truncated after five steps."""

    length = 5

    def step(self, actions):
        obs, rewards, terminateds, truncateds, infos = super().step(actions)
        return obs, dict.fromkeys(rewards, 1.0), terminateds, truncateds, infos

    def _coins(self):
        self.coins = dict.fromkeys("ab", 0)
        return dict(self.coins)


def trained(env, iterations=8, **config):
    with PPOTrainer(env, {**SMALL, "centralized_critic": True, **config}) as trainer:
        for _ in range(iterations):
            result = trainer.train()
        return result["info"]["learner"], trainer.worker.sample()


@pytest.mark.long
@pytest.mark.parametrize("trainer_class", [A2CTrainer, A3CTrainer])
def test_other_actor_critics_have_a_centralized_critic(trainer_class):
    # Only a critic that observes the other's coin and action can predict the rewards.
    config = {"num_envs_per_worker": 8, "rollout_fragment_length": 16, "gamma": 0.0}
    config |= {"train_batch_size": 128} if trainer_class is A2CTrainer else {"timesteps_per_iteration": 0}
    config |= {"lr": 2e-2, "grad_clip": None, "seed": 0, "model": {"fcnet_hiddens": (32,)}}
    explained = {}
    for centralized in (False, True):
        with trainer_class(Secrets, {**config, "centralized_critic": centralized}) as trainer:
            for _ in range(40):
                stats = trainer.train()["info"]["learner"]["default_policy"]
            explained[centralized] = stats["vf_explained_var"]
    assert explained[True] > 0.8
    assert explained[False] < 0.3


class TestValues:
    @pytest.mark.long
    def test_critic_explains_what_only_others_observe(self):
        learner, batch = trained(Secrets, gamma=0.0)
        assert learner["default_policy"]["vf_explained_var"] > 0.95
        critic_obs = batch["critic_obs"]
        np.testing.assert_array_equal(critic_obs["obs"], batch["obs"])
        np.testing.assert_array_equal(critic_obs["agent"], batch["agent_id"] == "b")
        (part,) = critic_obs["other"]["parts"]
        np.testing.assert_array_equal(batch["rewards"], 2.0 * part["obs"][:, 0] + part["actions"][:, 0])
        assert np.corrcoef(batch["vf_preds"], batch["rewards"])[0, 1] > 0.95

    @pytest.mark.long
    def test_truncated_episodes_bootstrap(self):
        """V = 1 / (1 - γ) = 4. With truncation taken for termination it would be at most 2.3."""
        _, batch = trained(Steady, 25, gamma=0.75, lr=1e-2, rollout_fragment_length=7, **{"lambda": 0.5})
        np.testing.assert_allclose(batch["vf_preds"], 4.0, atol=0.2)
        np.testing.assert_allclose(batch["value_targets"], 4.0, atol=0.2)


def worker(specs=None, mapping=None, env=Secrets, policy_class=PPO, **config) -> RolloutWorker:
    return RolloutWorker(
        env,
        specs or {"a": None, "b": None},
        policy_mapping_fn=mapping or (lambda agent_id: agent_id),
        config={**SMALL, "rollout_fragment_length": 16, "centralized_critic": True, **config},
        default_policy_class=policy_class,
    )


def with_weights(policy: PPO, prefix: str, value: float) -> None:
    weights = policy.get_weights()
    policy.set_weights({n: np.full_like(w, value) if n.startswith(prefix) else w for n, w in weights.items()})


class TestActing:
    def test_acting_does_not_call_the_critic(self):
        made = worker()
        for policy in made.policies.values():
            with_weights(policy, "critic.", np.nan)
        made.sampler.step()
        actions, _, fetches = made.policies["a"].compute_actions(np.array([0, 1]))
        assert set(fetches) == {"action_logp", "action_dist_inputs"}
        assert len(actions) == 2
        assert np.isnan(made.sample()["a"]["vf_preds"]).all()

    def test_the_actor_learns_nothing_from_the_values(self):
        """Without a policy gradient, only the critic's weights move."""
        policy = worker().policies["a"]
        batch = worker().sample()["a"]
        batch["advantages"] = np.zeros(len(batch), np.float32)
        gradients, _ = policy.compute_gradients(batch)
        assert np.abs(gradients["critic.head.kernel"]).max() > 0
        assert all(not gradient.any() for name, gradient in gradients.items() if not name.startswith("critic."))


def test_bootstrap_after_a_cut_uses_next_observations_of_all_agents():
    made = worker({"a": KeepsFragment, "b": KeepsFragment}, rollout_fragment_length=3)
    samples = made.sample()
    for mine, others in (("a", "b"), ("b", "a")):
        policy, batch = made.policies[mine], samples[mine]
        following, last = policy.fragment.after["critic_obs"], policy.fragment.last
        (part,) = following["other"]["parts"]
        np.testing.assert_array_equal(following["obs"], policy.fragment.after["obs"])
        np.testing.assert_array_equal(part["obs"][:, 0], made.policies[others].fragment.after["obs"])
        np.testing.assert_array_equal(part["actions"][:, 0], samples[others]["actions"][last])
        assert not np.array_equal(following["obs"], batch["obs"][last])
        values = policy.compute_values(policy.fragment.after["obs"], {"critic_obs": following})
        delta = batch["rewards"][last] + 0.99 * values - batch["vf_preds"][last]
        np.testing.assert_allclose(batch["advantages"][last], delta, rtol=1e-4, atol=1e-5)


class TestOtherSettings:
    @pytest.mark.long
    def test_with_memory(self):
        """The actor has memory. The critic does not need it, since it observes everything."""
        model = {"fcnet_hiddens": (32,), "use_lstm": True, "max_seq_len": 5, "lstm_cell_size": 8}
        learner, batch = trained(Secrets, 6, gamma=0.0, lr=1e-2, model=model)
        assert learner["default_policy"]["vf_explained_var"] > 0.9
        assert "state_in" in batch

    def test_a_policy_without_it_beside_one_with_it(self):
        specs = {"a": None, "b": PolicySpec(config={"centralized_critic": True})}
        samples = worker(specs, centralized_critic=False).sample()
        assert "critic_obs" in samples["b"]
        assert "critic_obs" not in samples["a"]

    def test_with_overridden_postprocess_trajectory(self):
        """Segments hold the critic's observations and the next one, so that advantages equal those of whole batches."""
        plain = worker(rollout_fragment_length=13).sample()
        by_segment = worker({"a": Halved, "b": Halved}, rollout_fragment_length=13).sample()
        for policy_id in "ab":
            np.testing.assert_array_equal(by_segment[policy_id]["actions"], plain[policy_id]["actions"])
            np.testing.assert_allclose(by_segment[policy_id]["vf_preds"], plain[policy_id]["vf_preds"], rtol=1e-5)
            expected = plain[policy_id]["advantages"] / 2
            np.testing.assert_allclose(by_segment[policy_id]["advantages"], expected, rtol=1e-4, atol=1e-5)


class HalvedPolicy(JaxPolicy):
    def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
        done = super().postprocess_trajectory(sample_batch, other_agent_batches, episode)
        done["advantages"] = done["advantages"] / 2
        return done


class Halved(PPO):
    policy_class = HalvedPolicy


def test_a_policy_is_loaded_without_its_environment(tmp_path):
    with PPOTrainer(Secrets, {**SMALL, "centralized_critic": True, "multiagent": ONE_EACH}) as trainer:
        weights = trainer.get_policy("a").get_weights()
        policy = load_policy(trainer.save(tmp_path), "a")
    assert any(name.startswith("critic.") for name in weights)
    assert policy.compute_single_action(1) in (0, 1)
    np.testing.assert_equal(policy.policy.get_weights(), weights)


def test_agents_in_a_set_have_the_same_order_in_every_process():
    class Unordered(Secrets):
        possible_agents = {f"agent {letter}" for letter in "abcdefghij"}  # type: ignore[assignment]

    with PPOTrainer(Unordered, {**SMALL, "centralized_critic": True}) as trainer:
        assert list(trainer.worker.policies.joint_rows._numbers) == sorted(Unordered.possible_agents)


def test_a_spec_with_spaces_in_a_worker_that_does_not_sample():
    spec = PolicySpec(PPO, COIN, COIN, {"centralized_critic": True})
    local = RolloutWorker(Secrets, {"p": spec}, policy_mapping_fn=lambda agent: "p", config=SMALL, samples=False)
    assert local.policies["p"].config.critic_space["agent"] == spaces.Discrete(2)


def test_evaluation_with_another_number_of_agents():
    class Team(Secrets):
        def __init__(self, env_config: dict) -> None:
            super().__init__(env_config)
            self.possible_agents = tuple("abc"[: env_config["agents"]])

    evaluation = {"evaluation_config": {"env_config": {"agents": 2}}}
    config = {**SMALL, "centralized_critic": True, "env_config": {"agents": 3}, **evaluation}
    with PPOTrainer(Team, config) as trainer:
        assert trainer.evaluate(2)["episodes"] == 2


class TestRefused:
    def test_a_single_agent_and_agents_that_are_not_declared(self):
        class Open(Secrets):
            possible_agents = None

        for env in ("CartPole-v1", Open):
            with pytest.raises(ConfigError, match=r"centralized_critic(.|\n)*possible_agents"):
                PPOTrainer(env, {**SMALL, "centralized_critic": True})

    def test_a_policy_made_on_its_own(self):
        with pytest.raises(ConfigError, match=r"critic_space(.|\n)*RolloutWorker"):
            PPO.make_policy(COIN, COIN, {**SMALL, "centralized_critic": True})

    @pytest.mark.parametrize("space", [COIN, spaces.Dict(obs=COIN)])
    def test_a_space_that_the_default_critic_does_not_read(self, space):
        """It was an AssertionError or KeyError without a text."""
        message = r"critic_obs(.|\n)*key 'critic_space'(.|\n)*leave critic_space out"
        with pytest.raises(ConfigError, match=message):
            PPO.make_policy(COIN, COIN, {**SMALL, "centralized_critic": True, "critic_space": space})
        with pytest.raises(ConfigError, match=message):
            CentralCritic(space, ModelConfig())

    def test_columns_by_hand_without_next_observations(self):
        with pytest.raises(PolicyError, match=r"sample_batch\.after\['critic_obs'\]"):
            worker({"a": ByHand, "b": ByHand}, **BY_HAND, rollout_fragment_length=3).sample()


class OwnCritic(nnx.Module):
    """The actor observes its coin, the critic both coins and the other's action."""

    def __init__(self, observation_space, num_outputs, *, rngs):
        self.actor = nnx.Linear(1, num_outputs, rngs=rngs)
        self.hidden = nnx.Linear(3, 32, rngs=rngs)
        self.out = nnx.Linear(32, 1, rngs=rngs)

    def __call__(self, obs):
        return Outputs(self.actor(obs[:, None].astype(jnp.float32)))

    def critic(self, critic_obs):
        return self.out(jax.nn.relu(self.hidden(critic_obs))).squeeze(-1)


class Unsqueezed(OwnCritic):
    def critic(self, critic_obs):
        return super().critic(critic_obs)[:, None]


BY_HAND = {"centralized_critic": False, "model": {"custom_model": OwnCritic}}


class ByHandPolicy(JaxPolicy):
    fills_what_follows = False

    def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
        ((_, other),) = other_agent_batches.values()
        columns = (sample_batch["obs"], other["obs"], other["actions"])
        sample_batch["critic_obs"] = np.stack(columns, axis=1).astype(np.float32)
        if self.fills_what_follows:
            columns = (sample_batch.after["obs"], other.after["obs"], other["actions"][-1:])
            sample_batch.after["critic_obs"] = np.stack(columns, axis=1).astype(np.float32)
        return super().postprocess_trajectory(sample_batch)


class ByHand(PPO):
    policy_class = ByHandPolicy


class ByHandWithNextPolicy(ByHandPolicy):
    fills_what_follows = True


class ByHandWithNext(PPO):
    policy_class = ByHandWithNextPolicy


class TestByHand:
    @pytest.mark.long
    def test_critic_explains_what_only_others_observe(self):
        multiagent = {"policies": {"both": ByHandWithNext}, "policy_mapping_fn": lambda agent_id: "both"}
        learner, _ = trained(Secrets, multiagent=multiagent, gamma=0.0, **BY_HAND)
        assert learner["both"]["vf_explained_var"] > 0.95

    def test_last_value_is_that_of_the_next_observation(self):
        samples = worker({"a": ByHandWithNext, "b": ByHandWithNext}, **BY_HAND, rollout_fragment_length=3).sample()
        batch = samples["a"]
        made = worker({"a": ByHandWithNext, "b": ByHandWithNext}, **BY_HAND).policies["a"]
        values = made.compute_values(batch["obs"], {"critic_obs": batch["critic_obs"]})
        following = made.compute_values(batch.after["obs"], batch.after)
        np.testing.assert_allclose(batch["vf_preds"], values, rtol=1e-5)
        assert batch["t"][batch.ends].tolist() == [2] * len(batch.ends)
        delta = batch["rewards"][batch.ends] + 0.99 * following - values[batch.ends]
        np.testing.assert_allclose(batch["advantages"][batch.ends], delta, rtol=1e-4, atol=1e-5)

    def test_a_critic_with_an_axis_too_many_is_refused(self):
        made = worker({"a": ByHandWithNext, "b": ByHandWithNext}, **{**BY_HAND, "model": {"custom_model": Unsqueezed}})
        with pytest.raises(PolicyError, match=r"Unsqueezed\.critic(.|\n)*\(32, 1\)(.|\n)*squeeze\(-1\)"):
            made.sample()
