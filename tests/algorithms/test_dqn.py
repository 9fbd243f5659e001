"""DQN and Rainbow: losses against numbers derived by hand, the number of updates, and learning."""

import numpy as np
import pytest
from gymnasium import spaces

from rollax import ConfigError, MultiAgentEnv, PolicySpec
from rollax.algorithms.dqn import DQN, DQNConfig, DQNTrainer, RainbowConfig, RainbowTrainer
from tests.algorithms.envs import Film, Slides
from tests.algorithms.tables import LINE, f32, set_tables, two_rows
from tests.env.refused import refused

SMALL = {"model": {"fcnet_hiddens": ()}, "dueling": False, "seed": 0, "train_batch_size": 2, "lr": 0.1}


def policy_with(table, target_table=None, actions=2, **options):
    """A policy with tables [state, action] as values and as target values."""
    policy = DQN.make_policy(LINE, spaces.Discrete(actions), {**SMALL, **options})
    (kernel,) = (name for name, value in policy.params.items() if value.shape == (3, np.shape(table)[1]))

    def weights(values):
        zero = {name: np.zeros(value.shape, np.float32) for name, value in policy.get_weights().items()}
        return {**zero, kernel: np.asarray(values, np.float32)}

    if target_table is None:
        policy.set_weights(weights(table))
    else:
        set_tables(policy, weights(table), weights(target_table))
    return policy, kernel


def masked(**options):
    """A policy for states with masks of two actions."""
    space = spaces.Dict({"action_mask": spaces.MultiBinary(2), "state": LINE})
    return DQN.make_policy(space, spaces.Discrete(2), {**SMALL, "double_q": False, "lr": 0.0, **options})


class Grids(MultiAgentEnv):
    """Two agents observe grids of random numbers."""

    observation_space, action_space = spaces.Box(-9, 9, (3, 3, 1), np.float32), spaces.Discrete(2)
    possible_agents = ("plain", "filtered")

    def __init__(self):
        self.random = np.random.default_rng(0)

    def reset(self, *, seed=None, options=None):
        return self._grids(), {}

    def step(self, actions):
        return self._grids(), dict.fromkeys(actions, 0.0), {"__all__": False}, {"__all__": False}, {}

    def _grids(self):
        return {agent: self.random.random((3, 3, 1), np.float32) for agent in ("plain", "filtered")}


def rows(**columns):
    return two_rows(**{"actions": np.array([1, 0]), **columns})


class TestLoss:
    table = [[0.0, 0.5], [4.0, 1.0], [0.0, 0.0]]
    target_table = [[9.0, 9.0], [2.0, 8.0], [7.0, 7.0]]

    @pytest.mark.parametrize(
        ("double_q", "errors"),
        [
            # row 0: Q(0, 1) = 0.5. The target network's best at state 1 is 8: 1 + 4 = 5, error -4.5
            # row 1: Q(1, 0) = 4, terminated: 2, error 2
            (False, [-4.5, 2.0]),
            # row 0: the model's own best at state 1 is action 0, worth 2 to the target network: 1 + 1 = 2, error -1.5
            (True, [-1.5, 2.0]),
        ],
    )
    def test_errors_and_loss(self, double_q, errors):
        policy, _ = policy_with(self.table, self.target_table, double_q=double_q, lr=0.0)
        stats = policy.learn_on_batch(rows(weights=f32(1, 0.5)))
        np.testing.assert_allclose(stats.pop("td_error"), errors, rtol=1e-5)
        # Huber beyond 1: |e| - ½; the second row weighs half; the mean of two
        expected = ((abs(errors[0]) - 0.5) + 0.5 * (errors[1] - 0.5)) / 2
        np.testing.assert_allclose(stats["q_loss"], expected, rtol=1e-5)
        np.testing.assert_allclose(stats["mean_td_error"], np.mean(np.abs(errors)), rtol=1e-5)

    def test_gradient(self):
        # Huber's gradient is cut to ±1; the mean of two rows halves it, and the weight of row 1 halves it again.
        policy, kernel = policy_with(self.table, self.target_table, double_q=False, grad_clip=None)
        gradients, _ = policy.compute_gradients(rows(weights=f32(1, 0.5)))
        np.testing.assert_allclose(gradients[kernel], [[0, -0.5], [0.25, 0], [0, 0]], atol=1e-6)

    @pytest.mark.long
    def test_targets_exclude_invalid_actions(self):
        policy = masked()
        values = np.asarray(policy.compute_actions({"action_mask": np.ones((3, 2), np.int8), "state": np.arange(3)})[0])
        assert values.shape == (3,)
        obs = {"action_mask": np.ones((2, 2), np.int8), "state": np.array([0, 1])}
        new_obs = {"action_mask": np.array([[1, 0], [0, 1]], np.int8), "state": np.array([1, 2])}
        batch = rows(obs=obs, new_obs=new_obs, discounts=f32(1, 1))
        model = policy.split.merge(policy.params, policy.extra)
        table = model({"action_mask": np.ones((3, 2), np.int8), "state": np.arange(3)}).policy
        # only action 0 is valid in state 1, the next state of row 0, and only action 1 in state 2, that of row 1
        targets = np.array([1 + table[1, 0], 2 + table[2, 1]])
        expected = np.array([table[0, 1], table[1, 0]]) - targets
        np.testing.assert_allclose(policy.learn_on_batch(batch)["td_error"], expected, rtol=1e-5, atol=1e-6)

    def test_a_mask_of_zeros_after_a_truncation_allows_all(self):
        policy = masked()
        obs = {"action_mask": np.ones((2, 2), np.int8), "state": np.array([0, 1])}
        errors = []
        for last in (np.zeros((2, 2), np.int8), np.ones((2, 2), np.int8)):
            batch = rows(obs=obs, new_obs={"action_mask": last, "state": np.array([1, 2])}, discounts=f32(1, 1))
            errors.append(policy.learn_on_batch(batch)["td_error"])
        np.testing.assert_array_equal(*errors)
        assert np.abs(errors).max() < 10

    def test_values_are_those_of_valid_actions(self):
        policy = masked(dueling=True)
        state = np.arange(3)
        each_value = [
            policy.compute_values({"action_mask": np.tile(np.array(mask, np.int8), (3, 1)), "state": state})
            for mask in ([1, 0], [0, 1], [1, 1])
        ]
        np.testing.assert_array_equal(np.maximum(each_value[0], each_value[1]), each_value[2])
        assert (each_value[0] != each_value[1]).all()

    def test_distributions(self):
        # Atoms 0, 1, 2. All logits are 0: every value is 1. Target of row 0: r = 0.5, γ = 0.5: the atoms move to 0.5, 1
        # and 1.5, each with ⅓: (⅙, ⅙ + ⅓ + ⅙, ⅙) = (⅙, ⅔, ⅙). Row 1: terminated with 2: (0, 0, 1).
        # Cross-entropy with a uniform distribution is ln 3 for both; the entropy of row 0's target is
        # ⅓ ln 6 + ⅔ ln ³⁄₂ = ln 3 - ⅓ ln 2, that of row 1's is 0.
        config = {**SMALL, "num_atoms": 3, "v_min": 0.0, "v_max": 2.0, "lr": 0.0}
        policy = DQN.make_policy(LINE, spaces.Discrete(2), config)
        policy.set_weights({name: np.zeros(value.shape, np.float32) for name, value in policy.get_weights().items()})
        gradients, stats = policy.compute_gradients(rows(rewards=f32(0.5, 2)))
        np.testing.assert_allclose(stats["q_loss"], np.log(3), rtol=1e-5)
        np.testing.assert_allclose(stats["td_error"], [np.log(2) / 3, np.log(3)], rtol=1e-5)
        config |= {"prioritized_replay": True, "distribution_error": "cross_entropy"}
        other = DQN.make_policy(LINE, spaces.Discrete(2), config)
        other.set_weights(policy.get_weights())
        spread = other.compute_gradients(rows(rewards=f32(0.5, 2)))[1]
        np.testing.assert_allclose(spread["td_error"], [np.log(3)] * 2, rtol=1e-5)
        np.testing.assert_allclose(spread["q_loss"], stats["q_loss"], rtol=1e-5)
        np.testing.assert_allclose(stats["mean_target"], (1 + 2) / 2, rtol=1e-5)
        # p - m, halved by the mean, at the rows' states and actions: outputs are action by action, atom by atom
        (kernel,) = (value for value in gradients.values() if value.shape == (3, 6))
        third = 1 / 3
        expected = np.zeros((3, 6))
        expected[0, 3:] = np.array([third - 1 / 6, third - 2 / 3, third - 1 / 6]) / 2
        expected[1, :3] = np.array([third, third, third - 1]) / 2
        np.testing.assert_allclose(kernel, expected, atol=1e-6)


class TestRefuses:
    def test_atoms_the_wrong_way_round(self):
        refused(ConfigError, DQNConfig, says="v_min", num_atoms=11, v_min=1, v_max=1)

    def test_hidden_layers_without_units(self):
        for width in (0, -1):
            refused(ConfigError, DQNConfig, says="hiddens[1]...greater than or equal to 1", hiddens=(8, width))

    def test_frame_stack_axis_without_stacked_frames(self):
        refused(ConfigError, DQNTrainer, "CartPole-v1", {"frame_stack_axis": 2}, says="frame_stack_axis")


class TestRuns:
    @pytest.mark.short("Film-key0-1")
    @pytest.mark.parametrize(
        ("env", "key", "axis"), [(Film, {"frame_stack_axis": 0}, 1), (Slides, {"frame_stack": 4}, -1)]
    )
    def test_stacked_images_are_stored_once(self, env, key, axis):
        config = {"env_config": {}, "learning_starts": 8, "timesteps_per_iteration": 24, "train_batch_size": 4, **key}
        config |= {"model": {"conv_filters": ((4, 3, 2),), "conv_dense": 8}}
        with DQNTrainer(env, config) as trainer:
            result = trainer.train()
            buffer = trainer.optimizer.buffers["default_policy"]
            batch = buffer.sample(16, np.random.default_rng(0))
            (stored,) = buffer.get_state()["columns"]["obs"]["arrays"]
        assert np.isfinite(result["info"]["learner"]["default_policy"]["q_loss"])
        assert stored.shape[1:] == (8, 8)
        stacks = np.moveaxis(batch["obs"], axis, 1)[:, :, 0, 0].astype(int)
        np.testing.assert_array_equal(stacks[:, 0], np.maximum(stacks[:, -1] - 3, 0))

    @pytest.mark.long
    def test_stacks_that_a_policy_filters_are_stored_whole(self):
        policies = {"plain": None, "filtered": PolicySpec(config={"observation_filter": "MeanStdFilter"})}
        config = {"multiagent": {"policies": policies, "policy_mapping_fn": lambda agent: agent}, "frame_stack": 3}
        config |= {"buffer_size": 40, "timesteps_per_iteration": 60, "model": {"fcnet_hiddens": (4,)}}
        with DQNTrainer(Grids, config) as trainer:
            trainer.train()
            stored = {name: len(buffer) for name, buffer in trainer.optimizer.buffers.items()}
        assert min(stored.values()) > 35  # a few slots hold last observations

    @pytest.mark.long
    def test_every_exploring_call_has_new_noise(self):
        policies = [
            RainbowTrainer.policy_class.make_policy(LINE, spaces.Discrete(2), RainbowConfig(seed=seed))
            for seed in (0, 0, 1)
        ]
        policies[2].set_weights(policies[0].get_weights())
        obs = np.zeros(4, np.int64)

        def values(policy, explore):
            return policy.compute_actions(obs, explore=explore)[2]["q_value"]

        first, second, other = ([values(policy, True) for _ in range(3)] for policy in policies)
        np.testing.assert_array_equal(first, second)  # noise depends on the seed
        for draws in (first, [first[0], other[0], values(policies[0], False)]):
            assert len({float(draw[0]) for draw in draws}) == 3
        assert len(set(first[0].tolist())) == 1  # all rows of a call have the same
        np.testing.assert_array_equal(values(policies[0], False), values(policies[2], False))
