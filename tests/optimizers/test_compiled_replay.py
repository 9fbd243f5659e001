"""Replay on the device: rounds of sampling and learning in one compiled call."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import rollax
from rollax import CheckpointError, DQNTrainer, FlashSACTrainer, JaxEnv, Outcome, PolicySpec, RolloutWorker, SACTrainer
from rollax.algorithms.dqn import DQN, Rainbow
from rollax.batch import SampleBatch
from rollax.core.running_statistics import RunningMoments
from rollax.errors import ConfigError, EnvError, NonFiniteError
from rollax.optimizers import compiled_replay, replay_rounds
from rollax.optimizers.compiled_replay import CompiledReplayOptimizer
from rollax.optimizers.sync_replay import SyncReplayOptimizer
from rollax.policy.running_returns import RunningReturns
from tests.env.refused import refused
from tests.marks import long_except
from tests.optimizers.compared import assert_same_weights, trainer_of, weights_of

TD3_KEYS = {"num_envs_per_worker": 4, "rollout_fragment_length": 2, "train_batch_size": 16, "training_intensity": 0.25}
TD3_KEYS |= {"learning_starts": 24, "buffer_size": 64, "timesteps_per_iteration": 40}
TD3_KEYS |= {"model": {"fcnet_hiddens": [8]}, "lr_schedule": [[0, 1e-2], [200, 0.0]], "seed": 3}
DQN_KEYS = {**TD3_KEYS, "target_network_update_freq": 3, "epsilon_timesteps": 100}
TD3_KEYS["random_steps"] = 16
SAC_KEYS = {**TD3_KEYS, "policy_delay": 2}
PRIORITIES = {"prioritized_replay": True, "prioritized_replay_alpha": 0.7, "prioritized_replay_eps": 1e-3, "n_step": 2}
OU_NOISE = {"exploration": "OrnsteinUhlenbeckNoise", "random_steps": 0}
RENORM = {"fcnet_hiddens": [8], "normalization": "batch_renorm"}
BLOCKS = {"fcnet_hiddens": [8], "residual_blocks": True, "normalization": "layer", "normalize_observations": True}
DROPPING = {"fcnet_hiddens": [8], "normalization": "layer", "dropout": 0.2}
RAINBOW_KEYS = {key: value for key, value in DQN_KEYS.items() if key != "epsilon_timesteps"}
RAINBOW_KEYS |= {"prioritized_replay": False, "num_atoms": 5, "v_min": 0.0, "v_max": 9.0}
FLASH_SAC_KEYS = {**SAC_KEYS, "actor_hiddens": [8], "random_steps": 8, "env_config": {"max_episode_steps": 7}}


class Walk(JaxEnv):
    """Two steps left or right and the episode is truncated; the observation becomes NaN after some steps of a seed."""

    observation_space = spaces.Box(-10.0, 10.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, broken="", after=1000):
        self.broken, self.after = broken, after

    def reset(self, key):
        return jnp.zeros(2), jnp.zeros(1)

    def step(self, state, action, key):
        place, steps = state[0] + 2.0 * action - 1.0, state[1] + 1
        broken = steps >= self.after
        obs = jnp.where(broken & (self.broken == "obs"), jnp.nan, place)[None]
        reward = jnp.where(broken & (self.broken == "reward"), jnp.nan, place)
        return Outcome(jnp.stack([place, steps]), obs, reward, jnp.bool_(False), steps >= 6)


CASES = {
    "DQN": (DQNTrainer, "jax:CartPole-v1", DQN_KEYS),
    "DQN, priorities": (DQNTrainer, "jax:CartPole-v1", {**DQN_KEYS, **PRIORITIES}),
    "Rainbow": (rollax.RainbowTrainer, "jax:CartPole-v1", RAINBOW_KEYS),
    "SAC": (SACTrainer, "jax:Pendulum-v1", SAC_KEYS),
    "TD3": (rollax.TD3Trainer, "jax:Pendulum-v1", TD3_KEYS),
    "TD7": (rollax.TD7Trainer, "jax:Pendulum-v1", {**TD3_KEYS, "embedding_dim": 8, "prioritized_replay": False}),
    "DDPG": (rollax.DDPGTrainer, "jax:Pendulum-v1", {**TD3_KEYS, **OU_NOISE}),
    "TQC": (rollax.TQCTrainer, "jax:Pendulum-v1", {**SAC_KEYS, "num_quantiles": 5}),
    "CrossQ": (rollax.CrossQTrainer, "jax:Pendulum-v1", {**SAC_KEYS, "model": RENORM, "critic_model": RENORM}),
    "DroQ": (SACTrainer, "jax:Pendulum-v1", {**SAC_KEYS, "critic_model": DROPPING}),
    "SimBa": (SACTrainer, "jax:Pendulum-v1", {**SAC_KEYS, "model": BLOCKS}),
    "FlashSAC": (FlashSACTrainer, "jax:Pendulum-v1", FLASH_SAC_KEYS),
    # With plain layers, a bias before a normalization has a gradient of rounding errors alone.
    # Adam with a small epsilon would scale it up.
    "XQC": (
        FlashSACTrainer,
        "jax:Pendulum-v1",
        {**FLASH_SAC_KEYS, "residual_blocks": False, "policy_delay": 3, "longest_repeat": 1, "adam_epsilon": 1e-3},
    ),
}
UNIFORM = [name for name in CASES if "priorities" not in name]


def maker(name):
    """A function, keys -> trainer on an environment in JAX."""
    trainer, env, config = CASES[name]
    return lambda **keys: trainer(env, {**config, **keys})


@pytest.fixture(params=long_except({"DQN, priorities"}, [*CASES]))
def make(request):
    return maker(request.param)


@pytest.fixture(params=long_except({"DQN"}, UNIFORM))
def make_uniform(request):
    return maker(request.param)


@pytest.fixture
def make_dqn():
    return maker("DQN")


@pytest.mark.long
def test_many_rounds_in_a_call_are_those_of_single_calls(make, monkeypatch):
    with make() as together, make(timesteps_per_iteration=8) as alone:
        assert type(together.optimizer) is CompiledReplayOptimizer
        for _ in range(2):
            result = together.train()
            for _ in range(5):
                last = alone.train()
        assert_same_weights(together, alone, rtol=1e-5, atol=1e-6)
        for key in ("timesteps_total", "num_episodes_total", "episode_reward_mean"):
            assert result.get(key) == last.get(key)
        learner, other = (one["info"]["learner"]["default_policy"] for one in (result, last))
        assert learner.keys() == other.keys()
        for name, value in learner.items():
            assert value == (None if other[name] is None else pytest.approx(other[name], rel=1e-3, abs=1e-4))
        assert result["info"]["replay"] == last["info"]["replay"]
        # 80 steps, of which the first 24 make no update due.
        assert result["info"]["replay"]["num_updates"] == 14


def test_updates_are_those_of_replay_on_the_host(make_uniform):
    """The same rows, loss noise and coefficients give the same weights as `learn_on_batch`."""
    single = make_uniform(timesteps_per_iteration=8, learning_starts=0)
    with single as trainer, make_uniform(learning_starts=0) as other:
        optimizer, policy, twin = trainer.optimizer, trainer.get_policy(), other.get_policy()
        rounds, batches, draw = optimizer.rounds, [], optimizer.rounds.draw
        rounds.draw = lambda updates, number: batches.append(draw(updates, number)) or batches[-1]
        while not optimizer.num_updates:  # the first rows of several steps are complete after more than one round
            trainer.train()
        batches.clear()
        for _ in range(4):
            twin.set_state(policy.get_state())
            twin.timestep = optimizer.steps
            trainer.train()
            other.worker.set_filters(trainer.worker.get_filters())
            found = batches.pop()
            updates, _, columns = found.learning
            count = int(updates) * 16
            assert count == 32
            batch, _ = rounds._batch(rounds._stored, found.learning, rounds.taken)
            rows = {name: column[:count] for name, column in batch.items() if name not in columns}
            noise = {name: column[:count] for name, column in columns.items()}
            twin.algorithm = _WithNoise(twin.algorithm, noise)
            rows = jax.tree.map(np.array, rows)
            twin.learn_on_batch(SampleBatch({**rows, "indices": np.zeros((count, 2), np.int64)}))
            twin.algorithm = twin.algorithm.inner
            assert_same_weights(trainer, other, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_priorities_are_the_errors_of_the_rows():
    """Weights stay as they are, so that the errors of all rows can be computed afterwards."""
    with maker("DQN, priorities")(lr_schedule=[[0, 0.0], [1000, 0.0]], learning_starts=0, buffer_size=64) as trainer:
        trainer.train()
        trainer.train()
        rounds, policy = trainer.optimizer.rounds, trainer.get_policy()
        kept, ring = rounds._stored, rounds._ring
        steps, places = np.divmod(np.arange(len(rounds)), 4)
        steps += ring.first_drawable(rounds.taken)
        errors = policy.td_errors(SampleBatch(jax.tree.map(np.array, ring.transitions(kept.rows, steps, places))))
        powers = np.asarray(kept.priorities.powers)[steps % ring.steps, places]
        drawn = np.isclose(powers, (np.abs(errors) + 1e-3) ** 0.7, rtol=1e-4)
        assert 0.4 < drawn.mean() <= 1
        assert (powers[~drawn] >= 1).all()  # the largest priority so far
        assert float(kept.priorities.largest) > np.abs(errors).max()


class _WithNoise:
    """An algorithm whose loss has given noise."""

    def __init__(self, inner, noise):
        self.inner, self.noise = inner, noise

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def loss_columns(self, batch, rng):
        return {**self.inner.loss_columns(batch, rng), **self.noise}


@pytest.mark.parametrize(
    ("case", "keys"),
    [
        ("DQN", {"epsilon_timesteps": 1}),
        pytest.param("FlashSAC", {"clip_rewards": 5.0, "longest_repeat": 3}, marks=pytest.mark.long),
    ],
)
def test_the_stored_rows_and_statistics_are_what_sampling_yields(case, keys, monkeypatch):
    make_one, keys = maker(case), {**keys, "learning_starts": 1000}
    with make_one(**keys) as trainer:
        trainer.train()
        rows = trainer.optimizer.rounds._stored.rows
        kept = {**rows._asdict(), **rows.observations._asdict()}
        filters, acting = trainer.worker.get_filters(), trainer.get_policy().get_acting_state()
    monkeypatch.setattr(compiled_replay, "why_not", lambda worker: "a test")
    with make_one(**keys) as other:
        assert type(other.optimizer) is SyncReplayOptimizer
        found: dict[str, list[np.ndarray]] = {}
        for number in range(5):  # an iteration above
            other.optimizer.local_worker.set_timestep(8 * number)
            [rollout] = other.optimizer.local_worker.sample_fragments()
            fragment = rollout.batch["default_policy"]
            flags = {"terminated": fragment["terminateds"], "truncated": fragment["truncateds"]}
            columns = {name: fragment[name] for name in ("obs", "actions", "rewards")} | flags
            columns["new_obs"] = fragment.following("obs")
            for name, column in columns.items():  # [N T, ...] -> [T, N, ...]
                found.setdefault(name, []).append(np.swapaxes(column.reshape(4, 2, *column.shape[1:]), 0, 1))
        expected, expected_acting = other.worker.get_filters(), other.get_policy().get_acting_state()
    for name, parts in found.items():
        np.testing.assert_allclose(
            np.asarray(kept[name])[:10], np.concatenate(parts), rtol=1e-5, atol=1e-6, err_msg=name
        )
    assert jax.tree.structure((filters, acting)) == jax.tree.structure((expected, expected_acting))
    numbers = (filters, acting.get("running_returns")), (expected, expected_acting.get("running_returns"))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6), *numbers)


@pytest.mark.parametrize("name", long_except({"DQN, priorities"}, [*CASES]))
def test_exact_resume_with_the_buffer(name, tmp_path):
    with maker(name)(store_buffer_in_checkpoints=True, buffer_size=96) as trainer:
        trainer.train()
        folder = trainer.save(tmp_path, exact=True)
        trainer.train()
        weights, steps = weights_of(trainer), trainer.optimizer.num_updates
        with type(trainer).from_checkpoint(folder) as again:
            assert len(again.optimizer.rounds) == len(trainer.optimizer.rounds) - 40
            again.train()
            assert_same_weights(again, weights)
            assert again.optimizer.num_updates == steps


def test_a_state_with_damaged_counts_changes_nothing(make_dqn):
    with make_dqn(store_buffer_in_checkpoints=True) as trainer:
        trainer.train()
        optimizer = trainer.optimizer
        state, rows = optimizer.get_state(), len(optimizer.rounds)
        of_host = ({"rows": {}, "buffers": buffers} for buffers in ([1], {"default_policy": np.ones(2)}))
        for damaged in ({"due": {}}, {"rows": {}, "due": {}}, *of_host):
            refused(CheckpointError, optimizer.set_state, {**state, **damaged})
            assert len(optimizer.rounds) == rows


@pytest.fixture
def store(monkeypatch):
    """A function that sets whether trainers store each observation once."""
    return lambda once: monkeypatch.setattr(replay_rounds, "LARGE_OBSERVATION", 0 if once else 10**9)


@pytest.mark.long
@pytest.mark.parametrize("keys", [{}, {"frame_stack": 3, "n_step": 2}, {"frame_stack": 2, **PRIORITIES}])
def test_observations_that_are_stored_once_give_the_same_run(make_dqn, store, tmp_path, keys):
    keys = {**keys, "store_buffer_in_checkpoints": True, "buffer_size": 96, "learning_starts": 8}
    found = []
    for once in (False, True):
        store(once)
        with make_dqn(**keys) as trainer:
            assert type(trainer.optimizer) is CompiledReplayOptimizer
            trainer.train()
            folder = trainer.save(tmp_path / str(once), exact=True)
            trainer.fit(stop={"training_iteration": 4}, evaluate=False)
            assert len(trainer.optimizer.rounds) == 96 - 4 * (keys.get("n_step", 1) - 1)
            found.append(weights_of(trainer))
        with DQNTrainer.from_checkpoint(folder) as again:
            again.fit(stop={"training_iteration": 4}, evaluate=False)
            found.append(weights_of(again))
    for other in found[1:]:
        assert_same_weights(found[0], other)


@pytest.mark.long
def test_a_buffer_fits_by_the_size_of_its_frames(make_dqn, store, monkeypatch):
    """6000 stacks of 3 observations of 16 bytes need 576 kB in pairs, 120 kB as frames, and 90 kB beside them."""
    monkeypatch.setattr("rollax.core.memory.available_memory_bytes", lambda: 300_000)
    with make_dqn(frame_stack=3, buffer_size=6000) as trainer, pytest.raises(ConfigError):
        trainer.train()
    store(True)
    with make_dqn(frame_stack=3, buffer_size=6000) as trainer:
        trainer.train()


@pytest.mark.long
@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("call", [RolloutWorker.sample_fragments, RolloutWorker.restart_episodes])
def test_steps_of_another_caller_and_restarts_end_windows(make_dqn, store, once, call):
    store(once)
    with make_dqn(n_step=3) as trainer:
        trainer.train()
        rounds = trainer.optimizer.rounds
        ninth = np.full(4, 9), np.full(4, 9), np.arange(4)
        last = np.asarray(rounds._observed(rounds._stored.rows, *ninth)[1])
        call(trainer.workers.local)
        trainer.train()
        rows = rounds._stored.rows
        assert np.asarray(rows.truncated)[9].all()
        _, after = rounds._observed(rows, *ninth)
        np.testing.assert_array_equal(after, last)


@pytest.mark.long
def test_rows_of_other_rounds_are_refused(make_dqn, tmp_path):
    with make_dqn(store_buffer_in_checkpoints=True, timesteps_per_iteration=24) as trainer:
        trainer.train()
        folder, rows = trainer.save(tmp_path), len(trainer.optimizer.rounds)  # 6 steps of each of 4 sub-environments
    refused(CheckpointError, DQNTrainer.from_checkpoint, folder, rollout_fragment_length=4)
    with DQNTrainer.from_checkpoint(folder, rollout_fragment_length=1) as again:
        assert len(again.optimizer.rounds) == rows


@pytest.mark.long
def test_a_checkpoint_without_the_buffer_begins_with_an_empty_one(make_dqn, tmp_path):
    with make_dqn() as trainer:
        trainer.train()
        folder = trainer.save(tmp_path)
        with type(trainer).from_checkpoint(folder) as again:
            assert len(again.optimizer.rounds) == 0
            made = again.optimizer.num_updates
            assert made == trainer.optimizer.num_updates
            again.train()
            assert again.optimizer.num_updates == made + 4  # again 24 steps make no update due


@pytest.mark.long
@pytest.mark.parametrize("first", ["device", "host"])
def test_a_checkpoint_of_the_other_kind_of_buffer_is_continued(make_dqn, tmp_path, monkeypatch, caplog, first):
    def on(kind):
        monkeypatch.setattr(compiled_replay, "why_not", lambda worker: "" if kind == "device" else "a test")

    on(first)
    with make_dqn(store_buffer_in_checkpoints=True) as trainer:
        trainer.train()
        folder, weights = trainer.save(tmp_path), weights_of(trainer)
    on("host" if first == "device" else "device")
    with DQNTrainer.from_checkpoint(folder) as again:
        assert ("rollax.optimizers", logging.WARNING) in [(one.name, one.levelno) for one in caplog.records]
        assert_same_weights(again, weights)
        result = again.train()
        assert result["timesteps_total"] == 80
        assert result["info"]["replay"].get("on_device", False) == (first == "host")


@pytest.mark.long
def test_a_run_ends_at_its_number_of_steps(make_dqn):
    with make_dqn() as trainer:
        trainer.fit(stop={"timesteps_total": 56}, evaluate=False)
        assert trainer.optimizer.steps == 56
        assert trainer.optimizer._due.stored == 56
        assert trainer.optimizer.num_updates == 8


@pytest.mark.long
@pytest.mark.parametrize("broken", ["obs", "reward"])
def test_an_environment_with_nan_is_named(broken):
    keys = {**DQN_KEYS, "learning_starts": 0, "env_config": {}}
    with DQNTrainer(lambda _: Walk(broken, after=5), keys) as trainer:
        assert type(trainer.optimizer) is CompiledReplayOptimizer
        refused(EnvError, trainer.train)
        assert all(np.isfinite(value).all() for value in weights_of(trainer).values())


@pytest.mark.long
def test_updates_that_are_not_finite_are_refused(make_dqn):
    with make_dqn(lr_schedule=[[0, 1e-3], [40, 1e-3], [48, 1e38], [10**6, 1e38]]) as trainer:
        trainer.train()
        refused(NonFiniteError, trainer.fit, stop={"training_iteration": 4}, evaluate=False)
        assert all(np.isfinite(value).all() for value in weights_of(trainer).values())
        assert trainer.optimizer.steps > 40
        # Each round of 8 steps from 24 on makes 2 updates; those of the round that fails are not counted, as elsewhere.
        assert trainer.optimizer.num_updates == (trainer.optimizer.steps - 8 - 24) // 4


@pytest.mark.long
def test_an_interrupt_empties_the_buffer_and_training_goes_on(make_dqn, caplog):
    with make_dqn() as trainer:
        trainer.train()
        rounds = trainer.optimizer.rounds
        call = rounds.call
        rounds.call = lambda *args: (_ for _ in ()).throw(KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        assert (len(rounds), trainer.optimizer.steps) == (0, 40)
        assert caplog.records
        rounds.call = call
        made = trainer.optimizer.num_updates
        assert trainer.train()["timesteps_total"] == 80
        assert trainer.optimizer.num_updates == made + 4  # the first 24 of these 40 steps make no update due


@pytest.mark.long
def test_an_iteration_of_several_calls_makes_no_round_too_many(make_dqn, monkeypatch):
    monkeypatch.setattr(compiled_replay, "_MOST_ROUNDS", 2)
    with make_dqn(learning_starts=16, training_intensity=1 / 16) as trainer:
        result = trainer.train()
        assert result["timesteps_total"] == 40
        # The only update was in the second of three calls.
        assert trainer.optimizer.num_updates == 1
        assert result["info"]["learner"]["default_policy"]["q_loss"] is not None


class _Rewarding(DQN):
    def postprocess(self, fragment, values):
        return super().postprocess(fragment, values)


class _Moments(DQN):
    def make_running_statistics(self):
        return {"rows": RunningMoments()}


class _OwnSums(DQN):
    """Its own code adds rewards to the sums."""

    def make_running_statistics(self):
        return {"returns": RunningReturns(0.9)}


class _Listening(rollax.Callbacks):
    def on_sample_end(self, *, worker, samples):
        pass


@pytest.mark.short("DQNTrainer-keys0", "DQNTrainer-keys3")
@pytest.mark.parametrize(
    ("trainer", "keys"),
    [
        (DQNTrainer, {"n_step": None}),
        (DQNTrainer, {"frame_stack_axis": 0}),
        (DQNTrainer, {"observation_filter": "MeanStdFilter"}),
        (DQNTrainer, {"exploration_bonus": "rnd"}),
        (DQNTrainer, {"callbacks": _Listening}),
        (DQNTrainer, {"model": {"fcnet_hiddens": [8], "use_lstm": True}}),
        (DQNTrainer, {"exploration": "ParameterNoise"}),
        (DQNTrainer, {"multiagent": {"policies": {"p": PolicySpec(config={"n_step": None})}}}),
        (trainer_of(_Rewarding, DQNTrainer), {}),
        (trainer_of(_Moments, DQNTrainer), {}),
        (trainer_of(_OwnSums, DQNTrainer), {}),
    ],
)
def test_otherwise_the_rows_are_on_the_host(trainer, keys):
    with trainer("jax:CartPole-v1", {**DQN_KEYS, **keys}) as made:
        assert type(made.optimizer) is SyncReplayOptimizer


@pytest.mark.long
@pytest.mark.parametrize(("keys", "alpha"), [({}, None), (PRIORITIES, 0.7)])
def test_the_run_decides_on_priorities_and_the_policy_on_its_steps(keys, alpha):
    spec = PolicySpec(Rainbow, config={"n_step": 2})  # whose own config has priorities with α = 0.5
    with DQNTrainer("jax:CartPole-v1", {**DQN_KEYS, **keys, "multiagent": {"policies": {"p": spec}}}) as trainer:
        rounds = trainer.optimizer.rounds
        assert rounds._ring.n_step == 2
        assert (rounds._priorities and rounds._priorities.alpha) == alpha
