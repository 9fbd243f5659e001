"""`BatchReplayOptimizer`: learning from recorded data, alone, beside fresh experience, and before it."""

import gc

import gymnasium as gym
import numpy as np
import pytest

from rollax import SAC, CheckpointError, ConfigError, DQNConfig, DQNTrainer, SACConfig, SampleBatch
from rollax.algorithms.apex import ApexDQNTrainer
from rollax.algorithms.trainer import Trainer
from rollax.offline.batch_replay import BatchReplayOptimizer
from rollax.policy.exploration.action_noise import RandomAtFirst
from tests.env.refused import refused
from tests.offline.data_runs import TINY, reader, same_weights
from tests.offline.recorded import ACTIONS, OBSERVATIONS, ListReader, trajectory, written


class TestAlone:
    @pytest.mark.long
    def test_rows_count_as_steps_and_no_environment_is_stepped(self, line):
        with DQNTrainer(line, {**TINY, "input": reader()}) as trainer:
            result = trainer.train()
            assert isinstance(trainer.optimizer, BatchReplayOptimizer)
            assert (line.resets, line.steps) == (0, 0)
            assert result["timesteps_total"] == result["agent_timesteps_total"] == 5 * 4
            assert result["info"]["replay"] == {"rows": {"default_policy": 30}, "num_updates": 5}
            rows = {"default_policy": 30}
            assert result["info"]["data"] == {"rows": rows, "trajectories": 6, "epochs": 20 / 30, "offline": True}
            assert result["episode_reward_mean"] is None
            assert trainer.evaluate(2)["episode_reward_mean"] == 4.0
            assert line.steps == 8

    def test_keys_of_fresh_experience_are_named_as_without_effect(self, line, tmp_path, caplog):
        given = {"learning_starts": 5, "batch_mode": "complete_episodes", "output": str(tmp_path / "out")}
        trainer = DQNTrainer(line, {**TINY, **given, "input": reader()})
        assert "keys without effect: batch_mode, learning_starts, output. This run" in caplog.text
        del trainer
        gc.collect()
        assert "were dropped without stop()" not in caplog.text
        assert not (tmp_path / "out").exists()
        caplog.clear()
        DQNTrainer(line, {**TINY, "input": reader()}).stop()
        DQNTrainer(line, {**TINY, **given, "input": reader(), "then_online": True}).stop()
        assert "no effect" not in caplog.text

    @pytest.mark.long
    def test_without_an_environment_spaces_come_from_the_data(self):
        with DQNTrainer(config={**TINY, "input": reader()}) as trainer:
            assert trainer.get_policy().action_space == ACTIONS
            assert trainer.train()["timesteps_total"] == 20
            with trainer.stopping_at(26):  # two of the five updates of four rows
                assert trainer.train()["timesteps_total"] == 28
            assert trainer.train()["timesteps_total"] == 48
            refused(ConfigError, trainer.evaluate, says="No environment is given")

    def test_a_given_reader_stays_open(self):
        # It is read for spaces, rows and estimates.
        data = ListReader([trajectory(number, 5) for number in range(6)])
        data.close = lambda: pytest.fail("closed")
        more = [trajectory(number, 5) for number in range(6, 8)]
        estimates = {"off_policy_estimation_methods": ["dm"], "evaluation_interval": 1}
        with DQNTrainer(config={**TINY, "input": [data, lambda: ListReader(more)], **estimates}):
            assert data.opened == 2

    def test_apex_learns_from_data_alone(self, line):
        settings = {**TINY, "input": reader(), "buffer_size": 100, "n_step": 1}
        with ApexDQNTrainer(line, settings) as trainer:
            assert trainer.train()["info"]["replay"]["num_updates"] == 5
        with pytest.raises(ConfigError, match="APEX cannot learn from recorded data"):
            ApexDQNTrainer(line, {**settings, "input": {"sampler": 1, "x": 1}, "updates_per_step": 200})


class TestSaved:
    @pytest.mark.long
    @pytest.mark.parametrize("settings", [{}, {"prioritized_replay": True, "store_buffer_in_checkpoints": True}])
    @pytest.mark.parametrize("exact", [False, True])
    def test_restoring_continues_exactly(self, line, tmp_path, exact, settings):
        config = {**TINY, **settings, "input": reader(), "observation_filter": "MeanStdFilter"}
        with DQNTrainer(line, config) as trainer, DQNTrainer(line, {**config, "seed": 1}) as other:
            trainer.train()
            path = trainer.save(tmp_path, exact=exact)
            result = trainer.train()
            other.restore(path)
            assert other.train()["info"] == result["info"]
            assert same_weights(trainer, other)

    def test_priorities_are_updated_and_those_that_are_not_stored_are_the_initial_ones(self, line, tmp_path):
        with DQNTrainer(line, {**TINY, "input": reader(), "prioritized_replay": True}) as trainer:
            buffer = trainer.optimizer.data.parts["default_policy"][0].buffer
            initial = buffer.get_priorities()
            refused(ConfigError, trainer.save, tmp_path, says="cannot be saved exactly", exact=True)
            path = trainer.save(tmp_path)
            trainer.train()
            assert (buffer.get_priorities()["priorities"] != initial["priorities"]).any()
            trainer.restore(path)
            restored = buffer.get_priorities()
            np.testing.assert_array_equal(restored.pop("priorities"), initial.pop("priorities"))
            assert restored == initial

    @pytest.mark.short("forged0")
    @pytest.mark.parametrize(
        "forged",
        [
            *({"drawn": []}, {"drawn": {"default_policy": 3}}, {"drawn": {"default_policy": [10**400]}}),
            *({"drawn": {"default_policy": [-1]}}, {"priorities": {"default_policy": {}}}),
            {"priorities": {"default_policy": [3]}},
            {"priorities": {"default_policy": [{"largest_priority": -1.0}]}},
        ],
    )
    def test_a_forged_position_is_refused_and_changes_nothing(self, line, forged):
        settings = {"input": reader(), "prioritized_replay": True, "store_buffer_in_checkpoints": True}
        with DQNTrainer(line, {**TINY, **settings}) as trainer:
            trainer.train()
            buffer = trainer.optimizer.data.parts["default_policy"][0].buffer
            state = trainer.optimizer.get_state()
            before, updates = buffer.total_priority, state["num_updates"]
            state = {**state, "num_updates": 7, "data": {**state["data"], **forged}}
            refused(CheckpointError, trainer.optimizer.set_state, state)
            assert buffer.total_priority == before
            assert trainer.optimizer.num_updates == updates != 7

    @pytest.mark.long
    def test_other_data_after_a_restore_logs_a_warning(self, line, tmp_path, caplog):
        with DQNTrainer(line, {**TINY, "input": reader()}) as trainer:
            trainer.train()
            path = trainer.save(tmp_path)
        with Trainer.from_checkpoint(path, input=reader(3), env=line) as other:
            assert "not that of the checkpoint" in caplog.text
            assert other.train()["info"]["data"]["epochs"] == 20 / 15


class TestWithFreshExperience:
    settings = {"learning_starts": 8, "rollout_fragment_length": 4, "training_intensity": 0.5, "buffer_size": 100}

    @pytest.mark.long
    def test_rows_are_drawn_by_weight(self, line, tmp_path):
        for name, first in (("one", 100), ("two", 200)):
            written(tmp_path / name, [trajectory(first + number, 5) for number in range(3)])
        sources = {"sampler": 1, str(tmp_path / "one"): 1, str(tmp_path / "two"): 2}
        config = {**TINY, **self.settings, "input": sources, "train_batch_size": 50, "updates_per_step": 200}
        with DQNTrainer(line, config) as trainer:
            results = [trainer.train() for _ in range(4)]
            assert [result["info"]["replay"]["num_updates"] for result in results] == [0, 0, 2, 4]
            assert results[0]["info"]["data"]["offline"] is False
            batch = trainer.optimizer.drawn_from["default_policy"].sample(4000, np.random.default_rng(0))
        source = np.digitize(batch[SampleBatch.OBS][:, 0], [100, 200])
        np.testing.assert_allclose(np.bincount(source) / 4000, [1 / 4, 1 / 4, 2 / 4], atol=0.03)

    @pytest.mark.long
    def test_offline_first_and_then_online(self, line, tmp_path):
        config = {**TINY, **self.settings, "input": reader(), "then_online": True, "offline_timesteps": 40}
        config["store_buffer_in_checkpoints"] = True
        with DQNTrainer(line, config) as trainer:
            results = [trainer.train() for _ in range(2)]
            assert [result["timesteps_total"] for result in results] == [20, 40]
            assert [result["info"]["data"]["offline"] for result in results] == [True, False]
            assert line.steps == 0
            results = [trainer.train() for _ in range(4)]
            # Four steps each. The first eight steps make no updates due, each later one makes half an update due.
            assert [result["timesteps_total"] for result in results] == [44, 48, 52, 56]
            assert [result["info"]["replay"]["num_updates"] for result in results] == [10, 10, 12, 14]
            assert line.steps == 16
            assert len(trainer.optimizer.buffers["default_policy"]) == 16
            data, sampled = trainer.optimizer.drawn_from["default_policy"].parts
            assert data.drawn + sampled.drawn == 14 * 4
            assert sampled.drawn > 0
            path = trainer.save(tmp_path, exact=True)
            with DQNTrainer(line, config) as other:
                other.restore(path)
                assert not other.optimizer.is_offline
                assert other.train()["info"] == trainer.train()["info"]
                assert same_weights(trainer, other)

    @pytest.mark.short("3-4")
    @pytest.mark.parametrize(("offline_timesteps", "at_the_switch"), [(20, 20), (22, 24), (3, 4)])
    def test_learning_goes_online_after_exactly_offline_timesteps(self, line, offline_timesteps, at_the_switch):
        # Up to five updates of four rows in a step, but no more than remain.
        config = {**TINY, **self.settings, "input": reader(), "then_online": True}
        with DQNTrainer(line, {**config, "offline_timesteps": offline_timesteps}) as trainer:
            while trainer.optimizer.is_offline:
                result = trainer.train()
            assert result["timesteps_total"] == at_the_switch

    def test_q_learning_goes_online_with_the_final_epsilon(self):
        config = {"input": "data", "then_online": True, "final_epsilon": 0.125}
        assert DQNConfig(**config).epsilon()(0) == 0.125
        assert DQNConfig(**config | {"then_online": False}).epsilon()(0) == 1.0
        schedule = [[0, 0.5], [100, 0.25]]
        assert DQNConfig(input="data", then_online=True, epsilon_schedule=schedule).epsilon()(50) == 0.375
        with pytest.raises(ConfigError, match=r"initial_epsilon has no effect(.|\n)*then_online"):
            DQNConfig(**config, initial_epsilon=0.5)

    def test_actors_go_online_without_random_actions(self):
        spaces = OBSERVATIONS, gym.spaces.Box(-1, 1, (1,), np.float32)
        for then_online in (False, True):
            policy = SAC.make_policy(*spaces, {"input": {"sampler": 1, "data": 1}, "then_online": then_online})
            assert isinstance(policy.exploration, RandomAtFirst) == (not then_online)
        with pytest.raises(ConfigError, match=r"random_steps has no effect(.|\n)*then_online"):
            SACConfig(input="data", then_online=True, random_steps=5)


class TestRefused:
    def test_an_optimizer_of_another_kind(self, line):
        class Own(DQNTrainer.optimizer_class):
            pass

        class OwnTrainer(DQNTrainer):
            optimizer_class = Own

        refused(ConfigError, OwnTrainer, line, {**TINY, "input": reader()}, says="DQN cannot learn from recorded data")

    def test_data_without_a_row_for_a_policy(self, line):
        with pytest.raises(ConfigError, match="The recorded data has no row for a policy"):
            DQNTrainer(line, {**TINY, "input": ListReader([])})

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({}, "No environment"),
            ({"input": reader(), "then_online": True}, "No environment"),
            ({"input": reader(), "evaluation_interval": 1}, "There is no environment to evaluate in"),
        ],
    )
    def test_a_missing_environment(self, config, message):
        refused(ConfigError, DQNTrainer, says=message, config=config)


def test_batches_have_the_returns_of_the_data(line):
    with DQNTrainer(line, {**TINY, "input": reader(), "n_step": None, "gamma": 0.5}) as trainer:
        batch = trainer.optimizer.drawn_from["default_policy"].sample(100, np.random.default_rng(0))
    numbers, t = batch[SampleBatch.OBS].T
    assert set(numbers) == set(range(6))
    np.testing.assert_array_equal(batch[SampleBatch.ACTIONS], t % 3)
    # G_t = Σ_k 2^-k (t + k + 1) over the five steps; all trajectories terminate
    returns = [sum(0.5**k * (step + k + 1) for k in range(5 - step)) for step in range(5)]
    np.testing.assert_allclose(batch[SampleBatch.REWARDS], np.array(returns)[t.astype(int)])
    assert not batch[SampleBatch.DISCOUNTS].any()


class TestSeveralPolicies:
    mapping = {"left": "one", "right": "two"}

    def multiagent(self, **changes):
        multiagent = {"policies": {"one": None, "two": None}, "policy_mapping_fn": self.mapping.__getitem__}
        return {**TINY, "multiagent": multiagent, **changes}

    @pytest.mark.long
    def test_each_policy_learns_from_rows_of_its_agents(self):
        agents = enumerate(("left", "right", "left"))
        parts = [trajectory(i, 3 + i, agent_id=agent, policy_id=self.mapping[agent]) for i, agent in agents]
        # Without an environment the spaces are those of the recorded policies.
        with DQNTrainer(config=self.multiagent(input=ListReader(parts), count_steps_by="agent_steps")) as trainer:
            result = trainer.train()
            assert result["info"]["data"]["rows"] == {"one": 3 + 5, "two": 4}
            assert result["timesteps_total"] == 2 * 5 * 4
            assert trainer.optimizer.env_steps == 5 * 4
            first = trainer.optimizer.drawn_from["two"].sample(50, np.random.default_rng(0))
        assert set(first[SampleBatch.OBS][:, 0]) == {1}

    def test_a_policy_without_recorded_data_has_no_spaces(self):
        with pytest.raises(ConfigError, match=r"spaces are not known(.|\n)*data from the policies \['one'\]"):
            DQNTrainer(config=self.multiagent(input=ListReader([trajectory(0, 3, policy_id="one")])))
