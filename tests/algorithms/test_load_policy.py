"""`load_policy`: a policy from a checkpoint acts on raw observations like its trainer."""

import gymnasium as gym
import numpy as np
import pytest

from examples.stateless_cartpole import StatelessCartPole
from rollax import Policy, PolicySpec, PPOTrainer, Trainer, load_policy
from rollax.algorithms.checkpoint import trainer_class_of
from rollax.algorithms.load_policy import load_policies
from rollax.algorithms.pg import PG
from rollax.errors import CheckpointError, ConfigError
from tests.algorithms.checkpoints import OF_PPO as CONFIG
from tests.algorithms.envs import MaskedCartPole, TwoAgents
from tests.algorithms.own_code import Lean, Linear
from tests.env.refused import raised, refused


def trained(tmp_path, env, **config):
    trainer = PPOTrainer(env, {**CONFIG, **config})
    trainer.train()
    return trainer, trainer.save(tmp_path)


@pytest.mark.long
def test_a_folder_of_checkpoints_stands_for_the_newest(tmp_path):
    with PPOTrainer("CartPole-v1", CONFIG) as trainer, PPOTrainer("CartPole-v1", CONFIG) as other:
        trainer.save(tmp_path)
        trainer.train()
        trainer.save(tmp_path)
        other.restore(tmp_path)
        assert other.iteration == 1
        with PPOTrainer.from_checkpoint(tmp_path) as again:
            assert again.iteration == 1
        weights, loaded = trainer.get_policy().get_weights(), load_policy(tmp_path).policy.get_weights()
        assert all(np.array_equal(value, loaded[name]) for name, value in weights.items())


@pytest.mark.long
def test_explores_as_its_trainer_after_the_last_update(tmp_path):
    trainer, path = trained(tmp_path, "CartPole-v1")
    assert load_policy(path).policy.timestep == trainer.optimizer.steps > 0


@pytest.mark.long
def test_filters_observations_and_scales_actions(tmp_path):
    trainer, path = trained(tmp_path, "Pendulum-v1", observation_filter="MeanStdFilter")

    policy = load_policy(path)
    env = gym.make("Pendulum-v1")
    obs, _ = env.reset(seed=0)
    for _ in range(20):
        action = policy.compute_single_action(obs)
        np.testing.assert_array_equal(action, trainer.compute_single_action(obs))
        assert env.action_space.contains(action)
        obs, *_ = env.step(action)
    # Without its filter the action would differ.
    assert not np.array_equal(
        action,
        trainer.worker.runners["default_policy"].action_map(
            trainer.get_policy().compute_actions(obs[None], explore=False)[0]
        )[0],
    )
    # Its random stream continues that of the trainer.
    explored = [one.compute_single_action(obs, explore=True) for one in (policy, trainer)]
    np.testing.assert_array_equal(*explored)


@pytest.mark.long
def test_dict_observations_with_a_mask(tmp_path):
    trainer, path = trained(tmp_path, MaskedCartPole)
    policy = load_policy(path)  # does not make the environment, so it needs no trusted code
    env = gym.make("CartPole-v1")
    mask = np.array([0, 0, 0, 1, 1, 0, 0, 0, 1, 0], np.int8)
    obs = {"cart": env.reset(seed=0)[0], "action_mask": mask}
    assert policy.compute_single_action(obs) == trainer.compute_single_action(obs)
    assert all(mask[policy.compute_single_action(obs, explore=True)] for _ in range(30))


def test_a_policy_of_another_algorithm_is_loaded_by_its_id(tmp_path):
    policies = {"ppo": None, "pg": (PG, None, None, {"lr": 0.5})}
    multiagent = {"policies": policies, "policy_mapping_fn": lambda agent: "ppo", "policies_to_train": ["ppo"]}
    trainer, path = trained(tmp_path, "CartPole-v1", multiagent=multiagent)
    policy = load_policy(path, "pg")
    assert policy.policy.made_by is PG
    assert policy.policy.config.lr == 0.5
    obs = np.ones(4, np.float32)
    assert policy.compute_single_action(obs) == trainer.compute_single_action(obs, policy_id="pg")


@pytest.mark.long
def test_each_policy_has_the_filter_of_its_own_config(tmp_path):
    policies = {"left": (None, None, None, {"observation_filter": "MeanStdFilter"}), "right": None}
    multiagent = {"policies": policies, "policy_mapping_fn": lambda agent: agent}
    trainer, path = trained(tmp_path, TwoAgents, multiagent=multiagent)
    obs = np.array([[0.25, 0.75]], np.float32)
    for policy_id, runner in trainer.worker.runners.items():
        loaded = load_policy(path, policy_id).filter
        assert type(loaded) is type(runner.filter)
        np.testing.assert_array_equal(loaded(obs, update=False), runner.filter(obs, update=False))


def test_a_trainer_that_is_not_registered(tmp_path):
    class MyTrainer(PPOTrainer):
        name = "MINE"

    trainer = MyTrainer("CartPole-v1", CONFIG)
    path = trainer.save(tmp_path)
    obs = np.zeros(4, np.float32)
    for runner in (load_policy(path), load_policy(path, trainer_class=MyTrainer)):  # its policy is a built-in one
        assert runner.compute_single_action(obs) == trainer.compute_single_action(obs)
    says = "trainer_class'...without an import path...fix:      open it with its own class: YourTrainer.from_"
    raised(CheckpointError, Trainer.from_checkpoint, path, says=says, trust_code=True)


NO_TRAINER = "The class that the checkpoint names is not a trainer class"


@pytest.mark.parametrize(
    ("named", "error", "message"),
    [
        ("os:system", CheckpointError, NO_TRAINER),
        ("tests.algorithms.own_code:Linear", CheckpointError, NO_TRAINER),
        (5, CheckpointError, "without an import path"),
        ("nowhere:Trainer", ConfigError, "cannot be imported"),
    ],
)
def test_a_forged_trainer_class(named, error, message):
    stored = {"algorithm": "PPO", "trainer_class": named}
    raised(error, trainer_class_of, stored, "here", trust_code=True, says=message)
    raised(CheckpointError, trainer_class_of, stored, "here", says="user's own", trust_code=False)
    assert trainer_class_of({"algorithm": "PPO"}, "here", trust_code=False) is PPOTrainer  # of an older version


class TestOneOfSeveral:
    @pytest.fixture(scope="class")
    @classmethod
    def saved(cls, tmp_path_factory):
        policies = {"left": (None, None, None, {"gamma": 0.5, "model": {"fcnet_hiddens": (4, 4)}}), "right": Lean}
        multiagent = {"policies": policies, "policy_mapping_fn": lambda agent: agent}
        return trained(tmp_path_factory.mktemp("saved"), TwoAgents, multiagent=multiagent)

    def test_a_trainer_in_the_place_of_a_path(self, saved):
        for call, given, says in (
            (load_policy, saved[0], "load_policy...trainer.save('checkpoints')"),
            (PPOTrainer.from_checkpoint, None, "from_checkpoint(path)\n...None"),
            (saved[0].restore, 3, "restore(path)\n...3"),
        ):
            raised(CheckpointError, call, given, says=f"not the path...{says}")

    def test_unknown_id(self, saved):
        says = "does not contain this policy...default_policy...['left', 'right']"
        raised(CheckpointError, load_policy, saved[1], says=says)

    def test_a_user_defined_policy(self, saved):
        trainer, path = saved
        says = "'policy_class'...own_code:Lean...policy_class=...trust_code"
        raised(CheckpointError, load_policy, path, "right", says=says)
        for right in (load_policy(path, "right", policy_class=Lean), load_policy(path, "right", trust_code=True)):
            assert isinstance(right.policy, Lean)
            assert right.policy.limit == trainer.get_policy("right").limit
            assert right.compute_single_action(np.array([0.0, right.policy.limit + 1], np.float32)) == 1


class Still(Policy):
    """Keeps no config."""

    def __init__(self, observation_space, action_space, config=None):
        super().__init__(observation_space, action_space)

    def compute_actions(self, obs_batch):
        return [0] * len(obs_batch), [], {}


class TestCustomModel:
    def check(self, policy, trainer):
        obs = np.random.default_rng(0).uniform(-1, 1, (20, 4)).astype(np.float32)
        for row in obs:
            assert policy.compute_single_action(row) == trainer.compute_single_action(row)
        logits = [
            one.compute_actions(obs, explore=False)[2]["action_dist_inputs"]
            for one in (policy.policy, trainer.get_policy())
        ]
        np.testing.assert_array_equal(*logits)

    def test_is_imported_only_with_trust_code(self, tmp_path):
        model = {"custom_model": Linear, "custom_model_config": {"scale": 3.0}}
        trainer, path = trained(tmp_path, "CartPole-v1", model=model)
        says = "'model.custom_model'...own_code:Linear...custom_model=...trust_code"
        raised(CheckpointError, load_policy, path, says=says)
        self.check(load_policy(path, custom_model=Linear), trainer)
        self.check(load_policy(path, trust_code=True), trainer)

    @pytest.mark.long
    def test_without_an_import_path(self, tmp_path):
        class Local(Linear):
            pass

        trainer, path = trained(tmp_path, "CartPole-v1", model={"custom_model": Local})
        error = raised(CheckpointError, load_policy, path, trust_code=True, says="without an import path")
        assert str(error).endswith("custom_model=YourModel")
        self.check(load_policy(path, custom_model=Local), trainer)

    def test_without_a_policy_that_has_one(self, tmp_path):
        _, path = trained(tmp_path, "CartPole-v1")
        refused(ConfigError, load_policies, path, custom_model=Linear, says="no effect")

    @pytest.mark.long
    @pytest.mark.parametrize("other", [None, Still], ids=["standard", "without a config"])
    def test_is_for_the_policies_that_have_one(self, tmp_path, other):
        policies = {"other": other, "own": PolicySpec(config={"model": {"custom_model": Linear}})}
        multiagent = {"policies": policies, "policy_mapping_fn": lambda agent: "own", "policies_to_train": ["own"]}
        with PPOTrainer("CartPole-v1", {**CONFIG, "multiagent": multiagent}) as trainer:
            loaded = load_policies(trainer.save(tmp_path), custom_model=Linear, trust_code=other is Still)
            assert loaded.keys() == policies.keys()
            for policy_id, policy in loaded.items():
                assert policy.policy.get_weights().keys() == trainer.get_policy(policy_id).get_weights().keys()


MEMORY = {"use_lstm": True, "lstm_cell_size": 3, "max_seq_len": 8}
MEMORY |= {"lstm_use_prev_action": True, "lstm_use_prev_reward": True, "fcnet_hiddens": (4,)}
RECURRENT = {**CONFIG, "observation_filter": "MeanStdFilter", "clip_rewards": True, "model": MEMORY}


@pytest.mark.long
def test_a_policy_with_memory(tmp_path):
    with PPOTrainer(StatelessCartPole, RECURRENT) as trainer:
        trainer.train()
        assert_acts_like(load_policy(trainer.save(tmp_path)), trainer)


def assert_acts_like(loaded, trainer):
    """Compares single actions of a loaded policy and of the trainer with batches of one row, filtered by hand."""
    policy, observation_filter = trainer.get_policy(), trainer.worker.runners["default_policy"].filter
    state = theirs = action = None
    batch, previous, reward = [part[None] for part in policy.get_initial_state()], 0, 0.0
    for obs in np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32):
        seen = observation_filter(obs[None], update=False)
        memory = batch, np.array([previous]), np.sign([reward])
        actions, batch, _ = policy.compute_actions(seen, *memory, explore=False)
        same, theirs, _ = trainer.compute_single_action(obs, theirs, prev_action=action, prev_reward=reward)
        action, state, fetches = loaded.compute_single_action(obs, state, prev_action=action, prev_reward=reward)
        assert action == same == actions[0]
        np.testing.assert_array_equal(state[0], theirs[0])
        np.testing.assert_allclose(state[0], batch[0][0], rtol=1e-5)
        assert set(fetches) == {"action_logp", "vf_preds", "action_dist_inputs"}
        previous, reward = action, 3.0
