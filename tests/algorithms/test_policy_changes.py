"""Policies that are added to a trainer and removed from it, while it runs and at a restore."""

import numpy as np
import pytest

from rollax import Callbacks, DQNTrainer, PolicySpec, PPOTrainer, Trainer
from rollax.algorithms.registry import get_trainer_class
from rollax.errors import CheckpointError, ConfigError, PolicyError, RollaxError
from tests.algorithms.checkpoints import CONFIG, PPO, check_continues_exactly, continue_training, to_plain
from tests.algorithms.envs import TwoAgents
from tests.env.refused import raised, refused
from tests.marks import long_except

TWO = {"policies": {"left": None, "right": None}, "policy_mapping_fn": lambda agent: agent}
ON_POLICY = {**PPO, "evaluation_interval": None, "multiagent": TWO}
REPLAY = {**CONFIG, "learning_starts": 32, "train_batch_size": 8, "rollout_fragment_length": 8, "multiagent": TWO}
REPLAY |= {"store_buffer_in_checkpoints": True}


def left_for_all(agent):
    return "left"


def third_for_right(agent):
    return "third" if agent == "right" else "left"


CODE = {"env": TwoAgents, "multiagent": {"policy_mapping_fn": third_for_right}}
"""What a checkpoint is opened with after `third` has been added."""


@pytest.fixture(params=long_except({"PPO"}, {"PPO": (PPOTrainer, ON_POLICY), "DQN": (DQNTrainer, REPLAY)}))
def trainer(request):
    trainer_class, config = request.param
    with trainer_class(TwoAgents, config) as made:
        for _ in range(2):
            made.train()
        yield made


def of(state, policy_id):
    """All that a trainer's state has of a policy, without the random numbers of its workers."""
    parts = [state["workers"][part][policy_id] for part in ("policies", "filters")]
    return to_plain([*parts, state["optimizer"].get("buffers", {}).get(policy_id)])


def test_the_other_policies_keep_their_state(trainer):
    before = trainer.get_state()
    trainer.add_policy("third", policy_mapping_fn=third_for_right)
    after = trainer.get_state()
    assert [of(after, name) for name in ("left", "right")] == [of(before, name) for name in ("left", "right")]
    counters = ("iteration", "env_steps", "agent_steps", "episodes", "time_total_s")
    assert [after[name] for name in counters] == [before[name] for name in counters]
    result = trainer.train()
    assert result["training_iteration"] == before["iteration"] + 1
    assert set(result["info"]["learner"]) == {"left", "right", "third"}
    assert result["policy_reward_mean"]["third"] == 50  # it acts for the agent "right"
    kept = trainer.get_state()
    trainer.remove_policy("right")
    assert of(trainer.get_state(), "third") == of(kept, "third")
    assert set(trainer.train()["info"]["learner"]) == set(trainer.worker.policies) == {"left", "third"}


@pytest.mark.long
@pytest.mark.parametrize("trained", [True, False])
def test_a_copy_has_the_state_of_its_source_and_other_random_numbers(trainer, trained):
    trainer.add_policy("third", copy_of="left", trained=trained, policy_mapping_fn=third_for_right)
    state = trainer.get_state()["workers"]
    left, third = (dict(to_plain(state["policies"][name])) for name in ("left", "third"))
    same = {str(name) for name in left if left[name] == third[name]}
    assert {"weights", "optimizer", "num_updates", "timestep"} <= same
    assert not {"acting", "learning_rng"} & same
    assert to_plain(state["filters"]["left"]) == to_plain(state["filters"]["third"])
    trainer.train()
    now = trainer.get_weights("third")["third"]
    moved = any(not np.array_equal(value, left["weights"][name]) for name, value in now.items())
    assert moved is trained


@pytest.mark.long
def test_exact_resume_after_an_addition_and_after_a_removal(trainer, tmp_path):
    trainer.add_policy("third", PolicySpec(config={"gamma": 0.5}), policy_mapping_fn=third_for_right)
    trainer.train()
    check_continues_exactly(trainer, tmp_path, **CODE)
    trainer.remove_policy("right")
    check_continues_exactly(trainer, tmp_path, **CODE)


@pytest.mark.long
def test_an_addition_goes_on_as_an_open_checkpoint(trainer, tmp_path):
    more = {**TWO, "policies": {**TWO["policies"], "third": None}, "policy_mapping_fn": third_for_right}
    path = trainer.save(tmp_path, exact=True)
    trainer.add_policy("third", policy_mapping_fn=third_for_right)
    with Trainer.from_checkpoint(path, env=TwoAgents, multiagent=more) as opened:
        assert continue_training(opened, 2) == continue_training(trainer, 2)


@pytest.mark.long
def test_a_restore_with_more_and_with_fewer_policies_says_so(trainer, tmp_path, caplog):
    path, before = trainer.save(tmp_path), trainer.get_state()
    others = {"policies": ["left", "third"], "policy_mapping_fn": third_for_right}
    with Trainer.from_checkpoint(path, env=TwoAgents, multiagent=others) as opened:
        assert "Policies ['third'] are not in the checkpoint" in caplog.text
        assert "Policies ['right'] of the checkpoint are dropped" in caplog.text
        assert of(opened.get_state(), "left") == of(before, "left")
        opened.train()
    with pytest.raises(CheckpointError, match=r"different set of policies"):
        Trainer.from_checkpoint(path, env=TwoAgents, multiagent={"policies": ["a"], "policy_mapping_fn": None})


def test_refused_changes_leave_the_trainer_as_it_was(trainer, monkeypatch):
    before = to_plain(trainer.get_state())
    for wrong in (
        {"policy_id": "left"},
        {"policy_id": ["third"]},
        {"policy_id": "third", "copy_of": "nobody"},
        {"policy_id": "third", "spec": "PPO"},
    ):
        raised(PolicyError, trainer.add_policy, **wrong)
    refused(PolicyError, trainer.remove_policy, "nobody")
    # A model that cannot be made, and one whose weights do not fit the copied ones: both fail half-way.
    refused(ConfigError, trainer.add_policy, "third", PolicySpec(config={"buffer_size": 3, "train_batch_size": 2}))
    with pytest.raises(PolicyError):
        trainer.add_policy("third", PolicySpec(config={"model": {"fcnet_hiddens": (3,)}}), copy_of="left")
    assert to_plain(trainer.get_state()) == before
    assert trainer.train()["training_iteration"] == before["iteration"] + 1


@pytest.mark.long
def test_the_only_policy_of_a_trainer():
    with PPOTrainer(TwoAgents, {**PPO, "evaluation_interval": None}) as trainer:
        refused(ConfigError, trainer.remove_policy, "default_policy", says="only policy")
        refused(ConfigError, trainer.add_policy, "other", says="policy_mapping_fn")
        trainer.add_policy("other", policy_mapping_fn=lambda agent: "other" if agent == "left" else "default_policy")
        assert set(trainer.train()["info"]["learner"]) == {"default_policy", "other"}
        trainer.remove_policy("default_policy", policy_mapping_fn=lambda agent: "other")
        assert trainer.train()["policy_reward_mean"].keys() == {"other"}


class Adds(Callbacks):
    """Adds a policy after each iteration, up to four, and counts the iterations that it has seen."""

    def __init__(self):
        self.seen = 0

    def on_train_result(self, *, trainer, result):
        self.seen += 1
        result["seen"] = self.seen
        if len(trainer.worker.policies) < 4:
            trainer.add_policy(f"policy{self.seen}", copy_of="left", trained=False)

    def on_save(self, *, trainer, state):
        state["seen"] = self.seen

    def on_restore(self, *, trainer, state):
        self.seen = state.get("seen", 0)


@pytest.mark.long
def test_callbacks_after_one_that_adds_a_policy_keep_what_they_count():
    class Counts(Callbacks):
        seen = 0

        def on_train_result(self, *, trainer, result):
            self.seen += 1
            result["counted"] = self.seen

        on_save, on_restore = Adds.on_save, Adds.on_restore

    with PPOTrainer(TwoAgents, {**ON_POLICY, "callbacks": [Adds, Counts]}) as trainer:
        results = [trainer.train() for _ in range(3)]
    assert [(result["seen"], result["counted"]) for result in results] == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.long
def test_callbacks_add_policies_in_a_run_and_keep_their_state(tmp_path):
    with PPOTrainer(TwoAgents, {**ON_POLICY, "callbacks": Adds}) as trainer:
        done = trainer.fit({"training_iteration": 4}, tmp_path / "run", evaluate=False, progress="none")
        assert done.last["training_iteration"] == done.last["seen"] == 4
        assert list(trainer.worker.policies) == ["left", "right", "policy1", "policy2"]
    code = {"env": TwoAgents, "callbacks": Adds, "multiagent": {"policy_mapping_fn": TWO["policy_mapping_fn"]}}
    with Trainer.from_checkpoint(done.checkpoint, **code) as fresh:
        assert fresh.train()["seen"] == 5


@pytest.mark.long
def test_replay_buffers_are_kept_where_checkpoints_do_not_store_them():
    with DQNTrainer(TwoAgents, {**REPLAY, "store_buffer_in_checkpoints": False}) as trainer:
        trainer.train()
        rows = len(trainer.optimizer.buffers["left"])
        trainer.add_policy("third", policy_mapping_fn=third_for_right)
        expected = {"left": rows, "right": rows, "third": 0}
        assert {name: len(buffer) for name, buffer in trainer.optimizer.buffers.items()} == expected
        assert not trainer.config.store_buffer_in_checkpoints
        trainer.train()


def test_after_a_change_that_failed_checkpoints_have_no_buffers():
    class Fails(Callbacks):
        def on_save(self, *, trainer, state):
            raise OSError("a callback that fails")

    with DQNTrainer(TwoAgents, {**REPLAY, "store_buffer_in_checkpoints": False, "callbacks": Fails}) as trainer:
        with pytest.raises(OSError):
            trainer.add_policy("third", policy_mapping_fn=third_for_right)
        assert "buffers" not in trainer.optimizer.get_state()


@pytest.mark.long
def test_with_a_replay_shard():
    with get_trainer_class("APEX")(TwoAgents, {**REPLAY, "num_workers": 0}) as trainer:
        trainer.train()
        rows = trainer.optimizer.shards.rows
        trainer.add_policy("third", policy_mapping_fn=third_for_right)
        assert trainer.optimizer.shards.rows == {**rows, "third": 0}
        trainer.train()
        trainer.remove_policy("right")
        trainer.train()


@pytest.mark.long
def test_in_other_processes(small_ray, tmp_path):
    with PPOTrainer(TwoAgents, {**ON_POLICY, "num_workers": 2}) as trainer:
        trainer.train()
        trainer.add_policy("third", copy_of="left", policy_mapping_fn=third_for_right)
        assert trainer.workers.foreach_worker(lambda worker: list(worker.policies)) == 2 * [["left", "right", "third"]]
        assert trainer.train()["policy_reward_mean"]["third"] == 50
        path = trainer.save(tmp_path, exact=True)
        expected = continue_training(trainer, 2)
    with Trainer.from_checkpoint(path, **CODE) as fresh:
        assert continue_training(fresh, 2) == expected


def test_changes_inside_of_an_iteration_are_refused():
    class Early(Callbacks):
        def on_sample_end(self, *, worker, samples):
            trainer.add_policy("third")

    with PPOTrainer(TwoAgents, {**ON_POLICY, "callbacks": Early}) as trainer:
        refused(RollaxError, trainer.train, says="add_policy() was called inside of an iteration")
