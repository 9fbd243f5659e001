"""FlashSAC: its critics, targets, reward scale and optimizer, against numbers derived by hand."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax import ConfigError, Outputs, SampleBatch
from rollax.algorithms.flash_sac import FlashSAC, FlashSACConfig
from rollax.batch import Fragment
from rollax.models.unit_norm import with_unit_norms
from tests.algorithms.tables import BOX, HALF, LINE, f32, set_tables, two_rows
from tests.algorithms.test_sac import Middle


class Tables(nnx.Module):
    """Numbers for each state: an actor's means and log standard deviations, or the logits of a critic's atoms."""

    def __init__(self, observation_space, num_outputs, *, rngs, action_space=None):
        self.table = nnx.Param(jnp.zeros((int(observation_space.n), num_outputs), jnp.float32))

    def __call__(self, obs, actions=None):
        return Outputs(self.table[...][obs])


SMALL = {"model": {"custom_model": Tables}, "seed": 0, "train_batch_size": 2, "lr": 0.1, "initial_alpha": 0.5}
SMALL |= {"num_atoms": 3, "v_max": 4.0, "policy_delay": 1}
BLOCKS = {"model": {"fcnet_hiddens": (6,)}, "actor_hiddens": (4,), "num_atoms": 5, "train_batch_size": 8, "seed": 0}


class TestLosses:
    """Atoms -4, 0, 4; α = ½. All noise is the median, so the action is tanh(mean), with σ = 1.

    state  mean   a     log π                             critic 1 (target)       critic 2 (target)
      0     0     0    -0.918939                          1/3 each                1/3 each
      1    HALF  0.5   -0.918939 + 0.287682 = -0.631257   0, 1/2, 1/2: mean 2     1/4, 1/2, 1/4: mean 0
      2     0     0    -0.918939                          1/3 each                1/3 each
    """

    actor = ([0, 0], [HALF, 0], [0, 0])
    critics = f32([[1, 2, 1], [1, 1, 2], [1, 1, 1]], [[1, 1, 2], [1, 1, 1], [1, 1, 1]])
    targets = f32([[1, 1, 1], [1e-9, 1, 1], [1, 1, 1]], [[1, 1, 1], [1, 2, 1], [1, 1, 1]])

    def policy(self, **options):
        policy = FlashSAC.make_policy(LINE, BOX, {**SMALL, **options})
        found = {name: np.asarray(value) for name, value in policy.get_weights().items()}

        def tables(critics):
            name = next(name for name in found if name.startswith("critics."))
            return {**found, "actor.table": f32(*self.actor), name: np.log(critics[: len(found[name])])}

        set_tables(policy, tables(self.critics), tables(self.targets))
        policy.learning_rng = Middle()
        return policy

    def found(self, **options):
        return self.policy(**options).compute_gradients(two_rows())

    def test_target_and_critics(self):
        # Row 0: s' = 1, where critic 2 has the smaller mean. The atoms become 1 + ½ (z + ½ · 0.631257), so
        #   -0.842186, 1.157814, 3.157814, with 1/4, 1/2, 1/4. Of these the shares of the atoms -4, 0, 4 are
        #   1/4 (0.210546, 0.789454, 0) + 1/2 (0, 0.710546, 0.289454) + 1/4 (0, 0.210546, 0.789454)
        #   = 0.052637, 0.605273, 0.342090. Its mean is 1.157814.
        # Row 1 is terminated: 2, so 0, 1/2, 1/2.
        gradients, stats = self.found()
        target = f32([0.052637, 0.605273, 0.342090], [0, 0.5, 0.5])
        logs = np.log(f32([[0.25, 0.5, 0.25], [0.25, 0.25, 0.5]], [[0.25, 0.25, 0.5], [1 / 3] * 3]))
        np.testing.assert_allclose(stats["critic_loss"], -(target * logs).sum() / 2, rtol=1e-5)
        np.testing.assert_allclose(stats["mean_target"], (1.157814 + 2) / 2, rtol=1e-5)
        # Means of the critics: 0 and 1 in row 0, 1 and 0 in row 1.
        np.testing.assert_allclose(stats["td_error"], [(1.157814 + 0.157814) / 2, (1 + 2) / 2], rtol=1e-5)
        # By the logits of a row: (p - m) / 2 rows.
        (by_critic,) = (value for name, value in gradients.items() if name.startswith("critics."))
        np.testing.assert_allclose(by_critic[:, :2], (np.exp(logs) - target) / 2, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(by_critic[:, 2], 0)

    def test_actor_reads_the_smaller_mean(self):
        # Means 0 and 1 in state 0, 1 and 0 in state 1; α log π - min.
        _, stats = self.found()
        np.testing.assert_allclose(stats["actor_loss"], 0.5 * np.mean([-0.918939, -0.631257]), rtol=1e-5)

    def test_target_entropy(self):
        # ½ log(2πe 0.15²) = -0.478181 by default; -log α (log π + H̄).
        mean = np.mean([-0.918939, -0.631257])
        for options, entropy in (({}, -0.478181), ({"target_std": 1.0}, 1.418939), ({"target_entropy": 0.25}, 0.25)):
            gradients, _ = self.found(**options)
            np.testing.assert_allclose(gradients["log_alpha"], -(mean + entropy), rtol=1e-5)

    def test_rewards_are_divided_by_the_scale(self):
        # Discounted sums 10, -30, 20: the largest is 30, and 30 / 4 = 7.5. Their deviation is √(1400 / 3) = 21.602469.
        policy = self.policy()
        policy.running_statistics["returns"].update([10.0, -30.0, 20.0])
        _, stats = policy.compute_gradients(two_rows())
        np.testing.assert_allclose(stats["reward_scale"], 21.602469, rtol=1e-6)
        # 0 + ½ · ½ · 0.631257 = 0.157814 and the reward 1 / 21.602469; 2 / 21.602469.
        np.testing.assert_allclose(stats["mean_target"], (0.157814 + 3 / 21.602469) / 2, rtol=1e-4)

    def test_one_critic(self):
        # Critic 1 alone, with the mean 2 in state 1: 1 + ½ · 2 + 0.157814.
        _, stats = self.found(twin_q=False)
        np.testing.assert_allclose(stats["mean_target"], (2.157814 + 2) / 2, rtol=1e-5)


def test_running_statistics_of_sampled_rows():
    # γ = ½: 4, 6 + 2 = 8 in one slot; -6 in the other.
    policy = FlashSAC.make_policy(LINE, BOX, {**SMALL, "gamma": 0.5})
    columns = {"slot": [0, 0, 1], "trajectory_id": [3, 3, 4], "rewards": f32(4, 6, -6)}
    rows = Fragment({name: np.array(column) for name, column in columns.items()}, np.array([1, 2]), {})
    policy.prepare_rows(rows)
    np.testing.assert_array_equal(rows["rewards"], [4, 6, -6])  # as they were sampled
    returns = policy.coefficients()["running_statistics"]["returns"]
    np.testing.assert_allclose(returns["largest"], 8)
    np.testing.assert_allclose(returns["deviation"], np.std([4, 8, -6]), rtol=1e-6)


def replayed(rows: int) -> SampleBatch:
    rng = np.random.default_rng(0)
    normal = {name: rng.standard_normal((rows, 3)).astype(np.float32) for name in ("obs", "new_obs")}
    actions = rng.uniform(-1, 1, (rows, 1)).astype(np.float32)
    discounts, ones = np.full(rows, 0.9, np.float32), np.ones(rows, np.float32)
    return SampleBatch({**normal, "actions": actions, "rewards": ones, "discounts": discounts, "weights": ones})


VECTOR = spaces.Box(-9, 9, (3,), np.float32)


@pytest.mark.long
def test_weights_and_targets_keep_their_norms():
    policy = FlashSAC.make_policy(VECTOR, BOX, {**BLOCKS, "lr": 0.3, "tau": 0.5})
    before = policy.get_weights()
    for _ in range(4):
        policy.learn_on_batch(replayed(8))
    after = policy.get_weights()
    names = [name for name in after if name.rpartition(".")[2].startswith("unit_")]
    assert {name.partition(".")[0] for name in names} == {"actor", "critics"}
    for params in (policy.params, {name: policy.targets[name] for name in policy.params}):
        for name, value in with_unit_norms(params).items():
            np.testing.assert_allclose(value, params[name], rtol=1e-5, atol=1e-6)
    for name in names:
        assert np.abs(after[name] - before[name]).max() > 1e-3, name


XQC = {"residual_blocks": False, "model": {"fcnet_hiddens": (6, 5)}, "actor_hiddens": (4, 3), "policy_delay": 3}
XQC |= {"longest_repeat": 1, "target_entropy": -0.5, "num_atoms": 5, "train_batch_size": 8, "seed": 0}


@pytest.mark.long
def test_plain_layers_keep_the_norms_of_their_weights_only():
    policy = FlashSAC.make_policy(VECTOR, BOX, {**XQC, "lr": 0.3, "tau": 0.5})
    assert policy.get_initial_state() == []  # the noise is not repeated
    before = policy.get_weights()
    found = [policy.learn_on_batch(replayed(8)) for _ in range(3)]
    assert [stats["actor_loss"] is None for stats in found] == [True, True, False]
    after = policy.get_weights()
    kernels = {name: value for name, value in after.items() if name.endswith("unit_kernel")}
    assert [value.shape for name, value in sorted(kernels.items()) if "actor" in name] == [(3, 2), (3, 4), (4, 3)]
    for name, value in kernels.items():
        np.testing.assert_allclose(np.square(value).sum(axis=-2), 1, rtol=1e-5)
        np.testing.assert_allclose(np.square(policy.targets[name]).sum(axis=-2), 1, rtol=1e-5)
        assert np.abs(value - before[name]).max() > 1e-3, name
    scales = {name: value for name, value in after.items() if name.endswith(".scale")}
    assert {name.partition(".")[0] for name in scales} == {"actor", "critics"}
    assert all(np.abs(np.square(value).mean(axis=-1) - 1).max() > 1e-2 for value in scales.values())


@pytest.mark.long
@pytest.mark.parametrize("residual", [True, False])
def test_critics_see_both_steps_in_one_batch(residual):
    # The running statistics of the critics' input, momentum 0.99: of (s, a) and (s', a'), where s has the mean 1 and s'
    # the mean 3. The actor's statistics are of both too, and change in its own steps only.
    policy = FlashSAC.make_policy(VECTOR, BOX, BLOCKS if residual else {**XQC, "policy_delay": 2})
    norm = "input_norm" if residual else "norms.0"
    batch = replayed(8)
    batch["obs"], batch["new_obs"] = np.full((8, 3), 1, np.float32), np.full((8, 3), 3, np.float32)
    policy.learn_on_batch(batch)
    extra = policy.get_weights()
    np.testing.assert_allclose(extra[f"critics.members.mlp.{norm}.mean"][:, :3], 0.02, rtol=1e-5)
    np.testing.assert_allclose(extra[f"critics.members.mlp.{norm}.var"][:, :3], 0.99 + 0.01, rtol=1e-5)
    np.testing.assert_array_equal(extra[f"actor.layers.{norm}.mean"], 0)
    policy.learn_on_batch(batch)
    np.testing.assert_allclose(policy.get_weights()[f"actor.layers.{norm}.mean"], 0.02, rtol=1e-5)


@pytest.mark.long
def test_noise_is_repeated_unless_it_is_switched_off():
    assert len(FlashSAC.make_policy(VECTOR, BOX, BLOCKS).get_initial_state()) == 2
    assert FlashSAC.make_policy(VECTOR, BOX, {**BLOCKS, "longest_repeat": 1}).get_initial_state() == []


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"model": {"fcnet_hiddens": (8, 16)}}, "model.fcnet_hiddens"),
        ({"model": {"fcnet_hiddens": ()}}, "model.fcnet_hiddens"),
        ({"actor_hiddens": (8, 16)}, "actor_hiddens"),
        ({"model": {"fcnet_hiddens": ()}, "residual_blocks": False}, "model.fcnet_hiddens"),
        ({"model": {"residual_blocks": True}}, "model.residual_blocks"),
        ({"model": {"custom_model": Tables}, "residual_blocks": False}, "residual_blocks"),
        ({"model": {"normalization": "layer"}}, "normalization"),
        ({"model": {"fcnet_activation": "gelu"}}, "fcnet_activation"),
        ({"target_std": 0.3, "target_entropy": -1.0}, "target_std"),
        ({"model": {"custom_model": Tables}, "actor_hiddens": (8,)}, "actor_hiddens"),
    ],
)
def test_settings_without_effect_or_meaning_are_refused(config, match):
    with pytest.raises(ConfigError, match=match):
        FlashSACConfig(**config)


@pytest.mark.parametrize(
    "settings", [{}, {"then_online": True}, {"input": {"sampler": 1, "a": 1}, "then_online": True}]
)
def test_learning_from_recorded_data_alone_is_refused(settings):
    with pytest.raises(ConfigError, match="sampler"):
        FlashSACConfig(**{"input": "a", **settings})
    assert FlashSACConfig(input={"sampler": 1, "a": 1}).steps_the_env
