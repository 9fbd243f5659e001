"""Policies with memory: acting, sequences as units of learning, and padding."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax import RolloutWorker, SampleBatch
from rollax.algorithms.dqn import DQN
from rollax.algorithms.pg import PG
from rollax.algorithms.ppo import PPO
from rollax.batch import Fragment
from rollax.batch.columns import MissingColumnError
from rollax.errors import BatchError, ConfigError, PolicyError
from rollax.models.catalog import make_model
from rollax.models.config import ModelConfig
from rollax.models.outputs import Outputs
from rollax.ops.mean_over_rows import masked_mean
from rollax.policy.exploration.action_noise import OrnsteinUhlenbeckNoise
from rollax.policy.sequence_draw import SequenceDraw
from rollax.policy.update_plan import UpdatePlan
from tests.models.test_recurrent import Recurrent

SEEN, CHOICES = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4, start=2)
MASKED = spaces.Dict({"x": SEEN, "action_mask": spaces.MultiBinary(4)})
LSTM = {"use_lstm": True, "lstm_cell_size": 4, "fcnet_hiddens": (6,), "max_seq_len": 4}
INPUTS = {"lstm_use_prev_action": True, "lstm_use_prev_reward": True}


def make(cls: Any = PPO, space: spaces.Space = SEEN, model: dict | None = None, **config: Any) -> Any:
    sizes = {"sgd_minibatch_size": 8, "num_sgd_iter": 2} if cls is PPO else {}
    config = {"seed": 3, "lr": 1e-2, **sizes, "model": {**LSTM, **(model or {})}, **config}
    return cls.make_policy(space, CHOICES, config)


def own_model(model: Any) -> dict[str, Any]:
    """Settings of `make` for a model of one's own, with the default sizes."""
    return {"use_lstm": False, "custom_model": model, "lstm_cell_size": 64, "fcnet_hiddens": (64, 64)}


def experience(policy: Any, trajectories: list[int], seed: int = 0, episodes: list[int] | None = None) -> SampleBatch:
    """Trajectories of these lengths, played by the policy, as a postprocessed batch."""
    random, parts = np.random.default_rng(seed), []
    for trajectory, length in enumerate(trajectories):
        state = [part[None] for part in policy.get_initial_state()]
        action, reward = np.zeros(1, np.int64), np.zeros(1, np.float32)
        for t in range(length):
            obs: Any = random.uniform(-1, 1, (1, 3)).astype(np.float32)
            if policy.algorithm.masks.present:
                mask = random.integers(0, 2, (1, 4)).astype(np.int8)
                mask[0, random.integers(4)] = 1
                obs = {"x": obs, "action_mask": mask}
            memory = {"state_in": tuple(state), "prev_actions": action, "prev_rewards": reward}
            action, state, fetches = policy.compute_actions(obs, state, action, reward)
            reward = random.normal(size=1).astype(np.float32)
            advantages, targets = random.normal(size=(2, 1)).astype(np.float32)
            flags = {"terminateds": np.array([t == length - 1]), "truncateds": np.zeros(1, bool)}
            columns = {"obs": obs, "actions": action, "rewards": reward, **flags}
            further = {"advantages": advantages, "value_targets": targets, "trajectory_id": np.array([trajectory])}
            episode = {"eps_id": np.array([trajectory if episodes is None else episodes[trajectory]])}
            parts.append(SampleBatch({**columns, **further, **episode, **memory, **fetches}))
    return SampleBatch.concat_samples(parts)


def sequences_of(policy: Any, batch: SampleBatch) -> tuple[dict, int]:
    columns = policy.algorithm.loss_columns(batch, policy.learning_rng)
    return policy.memory.sequences(columns, batch, policy.memory.max_seq_len)


def assert_close(left: dict, right: dict) -> None:
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_allclose(left[name], right[name], rtol=2e-4, atol=2e-6, err_msg=name)


class TestActing:
    def test_state_is_the_initial_state_by_default(self):
        policy = make(model=INPUTS)
        obs = np.ones((3, 3), np.float32)
        zero = [np.zeros((3, 16), np.float32)]
        default = policy.compute_actions(obs, explore=False)
        given = policy.compute_actions(obs, zero, np.zeros(3, np.int64), np.zeros(3), explore=False)
        np.testing.assert_array_equal(default[2]["action_dist_inputs"], given[2]["action_dist_inputs"])
        np.testing.assert_array_equal(default[1][0], given[1][0])
        assert default[1][0].shape == (3, 16)
        assert np.abs(default[1][0]).min() > 0

    @pytest.mark.parametrize("state", [[np.zeros((2, 15))], [np.zeros((1, 16))], [np.zeros((2, 16))] * 2], ids=len)
    def test_states_of_the_wrong_shape_are_refused(self, state):
        with pytest.raises(PolicyError, match=r"recurrent state has the wrong(.|\n)*\(2, 16\)"):
            make().compute_actions(np.zeros((2, 3), np.float32), state)

    def test_values_require_the_memory(self):
        policy = make()
        obs, state = np.ones((2, 3), np.float32), np.ones((2, 16), np.float32)
        with pytest.raises(PolicyError, match=r"value of an observation depends(.|\n)*state_in(.|\n)*fragment\.after"):
            policy.compute_values(obs)
        values = policy.compute_values(obs, {"state_in": (state,)})
        np.testing.assert_allclose(values, policy.compute_actions(obs, [state])[2]["vf_preds"], rtol=1e-5)

    def test_single_actions_return_the_next_state(self):
        policy = make(model=INPUTS)
        rows = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
        state, action, reward = None, None, None
        batch: Any = [np.zeros((1, 16), np.float32)]
        previous, rewards = np.zeros(1, np.int64), np.zeros(1, np.float32)
        for obs in rows:
            action, state, fetches = policy.compute_single_action(obs, state, prev_action=action, prev_reward=reward)
            actions, batch, expected = policy.compute_actions(obs[None], batch, previous, rewards, explore=False)
            np.testing.assert_array_equal(state[0], batch[0][0])
            assert (action, fetches["action_logp"]) == (actions[0], expected["action_logp"][0])
            previous, rewards, reward = actions, np.array([2.5], np.float32), 2.5

    def test_states_keep_their_shape_and_dtype(self):
        policy = make(model=own_model(Recurrent))
        count = np.array([2**24 + 1, 7], np.int32)  # the first is no float32
        state = [np.ones((2, 2, 2), np.float32), count]
        _, (table, counted), _ = policy.compute_actions(np.zeros((2, 3), np.float32), state, None, np.zeros(2))
        assert (table.tolist(), counted.tolist()) == ((state[0] + 1).tolist(), [2**24 + 2, 8])
        assert (table.dtype, counted.dtype) == (np.float32, np.int32)


class TestSequences:
    def test_gradient_equals_that_of_single_steps(self):
        policy = make(PG, model={**INPUTS, "max_seq_len": 32})
        batch = experience(policy, [3, 7, 1])

        def loss(params: dict) -> jax.Array:
            logps = []
            model = policy.split.merge(params, policy.extra)
            for row in range(len(batch)):
                if batch["prev_rewards"][row] == 0:
                    state: Any = (jnp.zeros((1, 16)),)
                inputs = [jnp.asarray(batch[name][row : row + 1]) for name in ("prev_actions", "prev_rewards")]
                logits, _, state, _ = model(jnp.asarray(batch["obs"][row : row + 1]), state, *inputs)
                logps.append(jax.nn.log_softmax(logits[0])[batch["actions"][row] - 2])
            advantages = batch["advantages"]
            return -jnp.mean(jnp.stack(logps) * ((advantages - advantages.mean()) / advantages.std()))

        value, expected = jax.jit(jax.value_and_grad(loss))(dict(policy.params))
        gradients, stats = policy.compute_gradients(batch)
        assert_close(gradients, expected)
        np.testing.assert_allclose(stats["policy_loss"], value, rtol=1e-4, atol=1e-6)

    @pytest.mark.long
    @pytest.mark.parametrize("space", [SEEN, MASKED], ids=["plain", "masked"])
    @pytest.mark.parametrize("lengths", [(7, 16), (16, 64)], ids=str)
    def test_more_padding_changes_nothing(self, space, lengths):
        short, long = (make(space=space, model={**INPUTS, "max_seq_len": length}) for length in lengths)
        batch = experience(short, [3, 7, 1, 2])
        (left, left_stats), (right, right_stats) = short.compute_gradients(batch), long.compute_gradients(batch)
        assert_close(left, right)
        assert_close(left_stats, right_stats)

    @pytest.mark.short("PPO")
    @pytest.mark.parametrize("cls", [PPO, PG])
    def test_a_padded_batch_gives_the_gradients_of_its_rows(self, cls):
        policy = make(cls)
        batch = experience(policy, [3, 6])  # in sequences of 3, 4 and 2 rows
        batch["advantages"] += 5  # far from padding's zeros
        rows, stats = policy.compute_gradients(batch)
        padded, padded_stats = policy.compute_gradients(batch.sequences(4))
        assert_close(rows, padded)
        assert_close(stats, padded_stats)

    @pytest.mark.parametrize("known", ["trajectory_id", "terminateds"])
    def test_sequences_end_with_trajectories_or_at_max_seq_len(self, known):
        # Trajectories 0 and 1 are of one episode: of an agent that has ended and returned, or of two agents that still
        # act.
        policy = make()
        batch = experience(policy, [6, 2, 9], episodes=[0, 0, 1])
        batch[{"trajectory_id": "terminateds", "terminateds": "trajectory_id"}[known]][:] = 0
        columns, units = sequences_of(policy, batch)
        assert columns["seq_lens"].tolist() == [4, 2, 2, 4, 4, 1]
        assert units == 6
        starts = [0, 4, 6, 8, 12, 16]
        np.testing.assert_array_equal(columns["state_in"][0], batch["state_in"][0][starts])
        assert (np.abs(columns["state_in"][0]).max(axis=1) > 0).tolist() == [False, True, False, False, True, True]
        for sequence, (start, length) in enumerate(zip(starts, columns["seq_lens"], strict=True)):
            np.testing.assert_array_equal(columns["obs"][sequence, :length], batch["obs"][start : start + length])
            np.testing.assert_array_equal(columns["obs"][sequence, length:], 0)

    @pytest.mark.long
    def test_minibatches_use_whole_sequences_once_per_epoch(self, monkeypatch):
        policy, plans = make(), []
        learn = policy.learner.learn

        def spy(columns: Any, plan: Any, *args: Any, **kwargs: Any) -> Any:
            plans.append((plan, {name: jax.tree.leaves(column)[0].shape[:1] for name, column in columns.items()}))
            return learn(columns, plan, *args, **kwargs)

        monkeypatch.setattr(policy.learner, "learn", spy)
        policy.learn_on_batch(experience(policy, [6, 2, 9]))
        ((plan, shapes),) = plans
        assert set(shapes.values()) == {(8,)}  # 6 sequences, padded to a power of two
        assert plan.rows.shape[1] == 2  # 8 rows are 2 sequences of 4
        used = plan.rows[: plan.steps].reshape(2, -1)
        assert [sorted(epoch[epoch >= 0].tolist()) for epoch in used] == [list(range(6))] * 2

    @pytest.mark.long
    def test_a_minibatch_has_at_least_one_sequence(self):
        policy = make(sgd_minibatch_size=2)
        stats = policy.learn_on_batch(experience(policy, [6, 2]))
        assert np.isfinite(stats["total_loss"])


class OverSequences(DQN):
    """Learns from replayed sequences; the model may have no memory."""

    reads = ("obs", "rewards")
    statistics = ("rows", "sum_of_rewards")

    def make_model(self, rngs):
        model = self.config.model.custom_model
        if model is None:
            return super().make_model(rngs)
        return model(self.observation_space, self.exploration.num_inputs, rngs=rngs)

    def make_plan(self):
        return UpdatePlan(self.config.train_batch_size)

    def replayed(self, memory):
        return SequenceDraw(4)

    def loss(self, model, out, batch, mask, coefficients):
        sequences = (batch["rewards"] * mask).reshape(-1, 4)  # raises unless whole sequences
        statistics = {"rows": mask.sum(), "sum_of_rewards": sequences.sum()}
        return masked_mean(out.policy.mean(axis=-1), mask), {**statistics, "td_error": sequences.sum(axis=1)}


@pytest.mark.parametrize("model", [None, Recurrent], ids=["without memory", "with memory"])
@pytest.mark.parametrize("padded", [True, False])
def test_replayed_sequences_are_the_units_of_learning(model, padded):
    # Two trajectories of 5 and 2 rows: sequences of 4, 1 and 2 rows. Rewards are digits: 1111, 1 and 22.
    config = {"model": {"custom_model": model, "max_seq_len": 20}, "train_batch_size": 8, "seed": 0}
    policy = OverSequences.make_policy(SEEN, CHOICES, config)
    rewards = np.array([1e3, 1e2, 1e1, 1, 1, 2e1, 2], np.float32)
    columns = {"obs": np.ones((7, 3), np.float32), "rewards": rewards, "eps_id": np.array([0] * 5 + [1] * 2)}
    if model is not None:
        columns["prev_rewards"] = np.zeros(7, np.float32)
        columns["state_in"] = tuple(np.repeat(part[None], 7, axis=0) for part in policy.memory.initial_state)
    batch = SampleBatch(columns)
    if padded:
        batch = batch.sequences(4)
        batch["rewards"][~batch.mask()] = 9e6
    stats = policy.learn_on_batch(batch)
    assert policy.learner.num_updates == 2  # of two sequences, then of one
    assert stats["rows"] == 7 / 2
    assert stats["sum_of_rewards"] == rewards.sum() / 2
    assert sorted(stats["td_error"]) == [1, 22, 1111]


class Echoes(nnx.Module):
    """A memory of the last observation, with a table as weights."""

    def __init__(self, observation_space, num_outputs, *, rngs):
        self.weights = nnx.Param(jnp.ones((3, num_outputs)))

    def initial_state(self):
        return [np.zeros(3, np.float32)]

    def __call__(self, obs, state):
        by_step = obs.reshape(len(state[0]), -1, 3)
        before = jnp.concatenate([state[0][:, None], by_step[:, :-1]], axis=1).reshape(-1, 3)
        return Outputs(before @ self.weights[...], before.sum(axis=1), (by_step[:, -1],))


class EchoesInNumpysDefaultType(Echoes):
    def initial_state(self):
        return [np.zeros(3)]


@pytest.mark.parametrize("model", [Echoes, EchoesInNumpysDefaultType])
def test_custom_models_with_memory_learn(model):
    policy = make(model=own_model(model))
    batch = experience(policy, [6, 2])
    before = np.concatenate([np.zeros((1, 3)), batch["obs"][:5], np.zeros((1, 3)), batch["obs"][6:7]])
    np.testing.assert_allclose(batch["vf_preds"], before.sum(axis=1), rtol=1e-5, atol=1e-6)
    weights = policy.get_weights()["weights"]
    policy.learn_on_batch(batch)
    assert np.abs(policy.get_weights()["weights"] - weights).max() > 1e-3


class Wandering(PPO):
    """A policy of one's own, with memory and noise that has a state too."""

    def make_exploration(self):
        return OrnsteinUhlenbeckNoise(super().make_exploration(), (1,), lambda timestep: 0.1)


@pytest.mark.long
def test_models_get_the_memory_without_the_state_of_the_noise():
    config = {"rollout_fragment_length": 12, "sgd_minibatch_size": 8, "model": {"custom_model": Recurrent}}
    worker = RolloutWorker("Pendulum-v1", Wandering, config={"train_batch_size": 12, "seed": 0, **config})
    policy, batch = worker.get_policy(), worker.sample()
    assert [part.shape for part in policy.get_initial_state()] == [(2, 2), (), (1,)]
    values = policy.forward(policy.current_model(), batch).value
    np.testing.assert_allclose(values, policy.compute_values(batch["obs"], batch))
    before = policy.get_weights()["head.kernel"]
    policy.learn_on_batch(batch)
    assert np.abs(policy.get_weights()["head.kernel"] - before).max() > 0


def test_previous_actions_and_rewards_of_other_rows_are_refused():
    policy = make(model=INPUTS)
    obs = np.zeros((3, 3), np.float32)
    actions, rewards = np.full(3, 2), np.zeros(3, np.float32)
    policy.compute_actions(obs, [], actions, rewards)
    for wrong in (rewards[:2], np.zeros(4, np.float32), np.zeros(5, np.float32), np.float32(0), rewards[:, None]):
        with pytest.raises(PolicyError, match=r"prev_reward_batch of compute_actions(.|\n)*3 rows"):
            policy.compute_actions(obs, [], actions, wrong)
    for wrong in (actions[:1], np.full(4, 2)):
        with pytest.raises(PolicyError, match=r"prev_action_batch of compute_actions(.|\n)*3 rows"):
            policy.compute_actions(obs, [], wrong, rewards)
    with pytest.raises(PolicyError, match=r"depends on the memory(.|\n)*without \['prev_actions', 'prev_rewards'\]"):
        policy.compute_values(obs, {"state_in": (np.zeros((3, 4), np.float32),) * len(policy.get_initial_state())})


def test_a_repeated_fragment_is_not_one_trajectory():
    policy = make()
    batch = experience(policy, [6])
    batch["t"] = np.arange(6)
    twice = SampleBatch.concat_samples([batch, batch])
    sequences, count = sequences_of(policy, twice)
    assert (count, sequences["seq_lens"].tolist()) == (4, [4, 2, 4, 2])


def test_a_repeated_segment_is_not_one_trajectory_without_a_number_of_steps_either():
    policy = make()
    segment = Fragment(experience(policy, [6]).to_dict(), [5], {})
    segment["terminateds"][:] = False
    sequences, count = sequences_of(policy, SampleBatch.concat_samples([segment, segment]))
    assert (count, sequences["seq_lens"].tolist()) == (4, [4, 2, 4, 2])
    np.testing.assert_array_equal(sequences["state_in"][0], segment["state_in"][0][[0, 4, 0, 4]])


@pytest.mark.parametrize("name", ["state_in", pytest.param("seq_lens", marks=pytest.mark.long)])
def test_columns_of_sequences_among_those_of_steps_are_refused(name):
    class Lists(PPO):
        def loss_columns(self, batch, rng):
            return {**super().loss_columns(batch, rng), name: batch[name]}

    class Leaves(PPO):  # as the error says
        def loss(self, model, out, batch, mask, coefficients):
            assert name in batch or name == "seq_lens"
            return super().loss(model, out, batch, mask, coefficients)

    batch = experience(make(), [6, 2])
    with pytest.raises(BatchError) as raised:
        make(Lists).learn_on_batch(batch.sequences(4))
    assert f"leave {name} out" in raised.value.parts["fix"]
    if name == "seq_lens":
        with pytest.raises(MissingColumnError) as raised:
            make(Lists).learn_on_batch(batch)
        assert f"leave {name} out" in raised.value.parts["fix"]
    for rows in (batch, batch.sequences(4)):
        make(Leaves).learn_on_batch(rows)


def test_an_own_model_without_memory_refuses_the_keys_of_memory():
    """It ignored them."""

    class Own(PPO):
        def make_model(self, rngs):
            return make_model(self.observation_space, self.action_space, 4, ModelConfig(), rngs, needs_value=True)

    with pytest.raises(ConfigError, match="use_lstm has no effect: the model that make_model returned has no memory"):
        make(Own)
    assert not make(Own, model={"use_lstm": False, "lstm_cell_size": 64}).memory.present
