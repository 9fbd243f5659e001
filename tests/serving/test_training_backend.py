"""A server that learns from the episodes of its clients."""

import itertools
import threading
from functools import partial

import gymnasium as gym
import numpy as np
import onnx
import pytest

from rollax import DQNTrainer, ExternalEnv, ExternalMultiAgentEnv, MultiAgentError, PPOTrainer, RequestError
from rollax.env.external import queue as external_queue
from rollax.rollout.given_actions import MOST_LOGP_CHANGE, with_given_actions
from rollax.serving.learning_curve import LearningCurve
from rollax.serving.pending import as_request_error
from rollax.serving.protocol import Episode, StartEpisode
from rollax.serving.service import Service
from rollax.serving.training_backend import TrainingBackend
from rollax.serving.weights import policy_from_bytes
from tests.serving.learning_runs import TINY, Answers, ask, episode, trajectory
from tests.serving.service_session import refused
from tests.waiting import meanwhile

OBS = np.zeros(4, np.float32)
CARTPOLE = gym.make("CartPole-v1")


class WithoutServer:
    """Has no server: the tests call the backend."""

    samples_in_background = True

    def __init__(self, env_config):
        self.end = threading.Event()
        super().__init__(CARTPOLE.observation_space, CARTPOLE.action_space)

    def run(self):
        self.end.wait()

    def close(self):
        self.end.set()

    def sampled_by(self, worker):
        several = isinstance(self, ExternalMultiAgentEnv)
        self.backend = TrainingBackend(self._external_episodes, worker, multi_agent=several)


class OneAgent(WithoutServer, ExternalEnv):
    pass


class SeveralAgents(WithoutServer, ExternalMultiAgentEnv):
    pass


def backend_of(trainer):
    (env,) = trainer.worker.env.get_sub_environments()
    return env.backend


class Learning:
    """Trains in a thread, as a run does."""

    def __init__(self, trainer):
        self.trainer, self.backend, self.worker = trainer, backend_of(trainer), trainer.worker

    def train_while(self, play):
        """Runs one iteration, during which `play` is called in another thread."""
        return meanwhile(play, self.trainer.train)


CONFIG = {"train_batch_size": 8, "sgd_minibatch_size": 8, "num_sgd_iter": 1, "model": TINY, "seed": 0}


@pytest.fixture(scope="module")
def ppo():
    with PPOTrainer(env=OneAgent, config=CONFIG) as trainer:
        yield Learning(trainer)


@pytest.fixture(scope="module")
def dqn():
    config = {"model": TINY, "learning_starts": 8, "rollout_fragment_length": 4, "timesteps_per_iteration": 8}
    with DQNTrainer(env=OneAgent, config=config) as trainer:
        yield Learning(trainer)


def recorded_batches(run, monkeypatch):
    """The list of the batches from which the policy learns from now on."""
    seen, policy = [], run.trainer.get_policy()
    learn = policy.learn_on_batch
    monkeypatch.setattr(policy, "learn_on_batch", lambda batch: seen.append(batch) or learn(batch))
    return seen


def submit(run, **agents):
    """Submits an episode of these trajectories with the current weights."""
    return run.backend.submit([Episode(agents=agents, policy_version=run.backend.version)])


def play(backend, name, steps):
    backend.start_episode(name, True)
    for _ in range(steps):
        assert ask(backend, {name: OBS}).actions[name] in (0, 1)
        backend.log_returns(name, 1.0, {"note": 1})
    backend.end_episode(name, OBS, truncated=False)


class TestRequests:
    @pytest.mark.long
    def test_episodes_are_answered_and_learned_from(self, ppo):
        result = ppo.train_while(lambda: play(ppo.backend, "whole", 9))
        assert result["timesteps_this_iter"] == 8
        assert result["info"]["learner"]["default_policy"]["total_loss"] is not None
        assert ppo.backend.version == ppo.trainer.optimizer.version >= 1
        statistics = ppo.backend.statistics()
        assert (statistics["episodes_total"], statistics["steps_total"]) == (1, 9)
        assert statistics["episode_reward_mean"] == 9.0
        assert statistics["curve"][-1]["reward"] == 9.0

    @pytest.mark.long
    def test_a_lost_episode_is_not_learned_from(self, ppo, monkeypatch):
        def lose():
            ppo.backend.start_episode("lost", True)
            for _ in range(3):
                ask(ppo.backend, {"lost": OBS})
                ppo.backend.log_returns("lost", 1e6, None)
            ppo.backend.drop_episode("lost")
            play(ppo.backend, "kept", 12)

        seen = recorded_batches(ppo, monkeypatch)
        ppo.train_while(lose)
        assert max(np.abs(batch["advantages"]).max() for batch in seen) < 100
        assert ppo.backend.statistics()["episodes_dropped"] == 1

    def test_stopping_fails_pending_and_later_requests_with_503(self):
        with PPOTrainer(env=OneAgent, config=CONFIG) as trainer:
            backend, answers = backend_of(trainer), Answers()
            backend.start_episode("a", True)
            backend.request_actions({"a": OBS}, answers.append)
        (error,) = answers
        assert as_request_error(error, 422).status == 503
        backend.drop_episode("a")
        refused(503, Service(backend).call, "start_episode", StartEpisode(), "client", says="shutting down")


class TestHello:
    def test_hello_describes_the_server(self, ppo):
        hello = ppo.backend.hello()
        assert hello.learns
        assert not hello.multi_agent
        assert hello.policies["default_policy"].observation_space["type"] == "Box"
        assert not hello.policies["default_policy"].recurrent

    def test_weights_are_those_of_the_acting_policy(self, ppo):
        runner = policy_from_bytes(ppo.backend.weights("default_policy"))
        assert runner.compute_single_action(OBS) == ppo.worker.runners["default_policy"].compute_single_action(OBS)

    def test_the_onnx_model(self, ppo):
        onnx.checker.check_model(onnx.load_model_from_string(ppo.backend.onnx("default_policy")))


class TestLoggedActions:
    def test_on_policy_algorithms_refuse_them(self, ppo):
        ppo.backend.start_episode("logged", True)
        refused(422, ppo.backend.log_action, "logged", OBS, 1, says="learns only from its own")
        ppo.backend.drop_episode("logged")

    def test_on_policy_algorithms_accept_them_with_training_disabled(self, ppo):
        def log():
            ppo.backend.start_episode("watched", False)
            ppo.backend.log_action("watched", OBS, 1)
            ppo.backend.end_episode("watched", OBS, truncated=True)
            play(ppo.backend, "other", 9)

        ppo.train_while(log)

    @pytest.mark.long
    def test_dqn_learns_from_them(self, dqn):
        def log():
            dqn.backend.start_episode("logged", True)
            for step in range(20):
                dqn.backend.log_action("logged", OBS, step % 2)
                dqn.backend.log_returns("logged", 1.0, None)
            dqn.backend.end_episode("logged", OBS, truncated=False)

        assert dqn.train_while(log)["timesteps_this_iter"] >= 8
        (buffer,) = dqn.trainer.optimizer.buffers.values()
        assert set(buffer.sample(32, np.random.default_rng(0), beta=0.0)["actions"].tolist()) == {0, 1}

    def test_a_full_queue_is_429(self, dqn, monkeypatch):
        monkeypatch.setattr(external_queue, "MOST_QUEUED", 0)
        dqn.backend.start_episode("full", True)
        assert refused(429, dqn.backend.log_action, "full", OBS, 1).retry_after_s > 0
        dqn.backend.drop_episode("full")


class TestSubmittedEpisodes:
    @pytest.mark.long
    def test_episodes_of_recent_weights_are_learned_from_with_their_probabilities(self, ppo, monkeypatch):
        seen, submitted = recorded_batches(ppo, monkeypatch), []

        def submit(version):
            submitted.append(ppo.backend.submit([episode(9, version, logp=-0.5)]))

        for _ in range(5):  # fragments of earlier tests may come first
            version = ppo.backend.version
            ppo.train_while(partial(submit, version))
            if any(np.isclose(batch["action_logp"], -0.5).any() for batch in seen):
                break
        assert (submitted[0].accepted, submitted[0].too_old) == (1, 0)
        assert any(np.isclose(batch["action_logp"], -0.5).any() for batch in seen)

    def test_episodes_of_old_weights_are_counted_and_dropped(self, ppo):
        submitted = ppo.backend.submit([episode(9, ppo.backend.version - 3, logp=-0.5)])
        assert (submitted.accepted, submitted.too_old) == (0, 1)
        assert ppo.train_while(lambda: play(ppo.backend, "fresh", 9))["info"]["queue"]["dropped_steps"] >= 9
        assert ppo.backend.statistics()["episodes_too_old"] >= 1

    def test_episodes_of_weights_lost_in_a_restart_are_dropped(self, ppo):
        assert ppo.backend.submit([episode(2, ppo.backend.version + 1, logp=-0.5)]).too_old == 1

    @pytest.mark.parametrize("values", [{"version": None, "logp": -0.5}, {"version": 0}])
    def test_on_policy_algorithms_refuse_episodes_of_other_policies(self, ppo, values):
        refused(422, ppo.backend.submit, [episode(2, **values)], says="action_logp")

    @pytest.mark.long
    def test_dqn_learns_from_all_episodes(self, dqn):
        submitted = []
        dqn.train_while(lambda: submitted.append(dqn.backend.submit([episode(9), episode(9, 0, logp=-0.1)])))
        assert submitted[0].accepted == 2


def test_an_invented_log_probability_is_limited(ppo):
    runner = ppo.worker.runners["default_policy"]
    actions, _, fetches = runner.act(np.zeros((2, 4), np.float32), True, 0, {})
    _, changed = with_given_actions(runner, actions, fetches, np.array([0, 1]), [0, 1], {0: -50.0})
    own = runner.policy.fetches_of(np.array([0, 1]), fetches)["action_logp"]
    np.testing.assert_allclose(changed["action_logp"], [own[0] - MOST_LOGP_CHANGE, own[1]], rtol=1e-5)


BOTH = {"policies": {"x": None, "y": None}, "policy_mapping_fn": {"x": "x", "y": "y"}.__getitem__}


class TestSeveralAgents:
    @pytest.fixture(scope="class")
    @staticmethod
    def run():
        with PPOTrainer(env=SeveralAgents, config={**CONFIG, "multiagent": BOTH}) as trainer:
            yield Learning(trainer)

    def test_each_agent_has_its_policy(self, run):
        def play_both():
            run.backend.start_episode("a", True)
            for _ in range(10):
                (actions,) = ask(run.backend, {"a": {"x": OBS, "y": OBS}}).actions.values()
                assert actions.keys() == {"x", "y"}
                run.backend.log_returns("a", {"x": 1.0, "y": 2.0}, None)
            run.backend.end_agents("a", {"x": OBS}, truncated=False)
            run.backend.end_episode("a", {"y": OBS}, truncated=True)

        assert run.train_while(play_both)["info"]["learner"].keys() == {"x", "y"}
        assert run.backend.statistics()["episode_reward_mean"] == 30.0

    def test_an_unknown_agent_is_refused(self, run):
        refused(422, run.backend.spaces_of, None, "z", says="The agent has no policy")

    def test_a_wrong_episode_refuses_the_whole_submission(self, run, monkeypatch):
        monkeypatch.setattr(run.backend._episodes, "_declared", frozenset("x"))
        monkeypatch.setattr(run.backend, "_play", pytest.fail)
        version = run.backend.version
        both = [Episode(agents={a: trajectory(2, logp=-0.5)}, policy_version=version) for a in "xy"]
        with pytest.raises(MultiAgentError, match=r"not declared by the environment(.|\n)*episodes\[1\], agent 'y'"):
            run.backend.submit(both)

    @pytest.mark.parametrize(("answers", "acted"), [("x", "y"), ("xy", "x")], ids=["another", "random"])
    def test_a_trajectory_of_another_policy_is_refused(self, run, monkeypatch, answers, acted):
        mapping = itertools.cycle(answers)
        run.backend._returned.cache_clear()  # of another mapping
        monkeypatch.setattr(run.backend.worker.policy_of, "_function", lambda agent: next(mapping))
        monkeypatch.setattr(run.backend, "_play", pytest.fail)
        one = trajectory(2, logp=-0.5)
        one.policy_id = acted
        refused(422, submit, run, x=one, says=r"another policy(.|\n)*episodes\[0\].agents.x.policy_id")

    @pytest.mark.parametrize("answers", ["yx", "yyy"], ids=["random", "changed"])
    def test_an_action_that_may_be_of_a_policy_that_learns_is_refused(self, run, monkeypatch, answers):
        """Also where the mapping has returned one that does not learn: the run would end when it is sampled."""
        mapping = itertools.cycle(answers)
        backend, policy_of = run.backend, run.backend.worker.policy_of
        monkeypatch.setattr(backend.worker.runners["y"], "accepts_off_policy", True)
        for known in (backend._returned, backend._runner_of):
            known.cache_clear()
        monkeypatch.setattr(policy_of, "_function", lambda agent: next(mapping))
        backend.start_episode("logged", True)
        if answers == "yyy":
            backend.log_action("logged", {"x": OBS}, {"x": 1})
            monkeypatch.setattr(policy_of, "_function", lambda agent: "x")
        says = "learns only from its own(.|\n)*policy 'x'"
        refused(422, backend.log_action, "logged", {"x": OBS}, {"x": 1}, says=says)
        refused(422, backend.submit, [Episode(agents={"x": trajectory(2)})], says=says)
        backend.drop_episode("logged")
        for known in (backend._returned, backend._runner_of):
            known.cache_clear()

    def test_the_mapping_is_called_once_for_each_further_trajectory(self, run, monkeypatch):
        run.backend._returned.cache_clear()
        calls = []
        monkeypatch.setattr(run.backend.worker.policy_of, "_function", lambda agent: calls.append(agent) or agent)
        monkeypatch.setattr(run.backend, "_play", lambda episode: None)
        one = trajectory(2, logp=-0.5)
        one.policy_id = "x"
        submit(run, x=one)
        first = len(calls)
        for _ in range(3):
            submit(run, x=one)
        assert len(calls) == first + 3
        monkeypatch.setattr(run.backend.worker.policy_of, "_function", lambda agent: "y")  # it changes
        with pytest.raises(RequestError, match="'x'; on the server 'y'"):
            submit(run, x=one)

    def test_submitted_agents_act_at_their_own_steps(self, run, monkeypatch):
        calls = []
        for name in ("log", "end_agents", "end"):
            monkeypatch.setattr(
                run.backend._episodes, name, lambda *given, name=name: calls.append((name, sorted(given[1])))
            )
        monkeypatch.setattr(run.backend._episodes, "add_returns", lambda *given: None)
        monkeypatch.setattr(run.backend._episodes, "start", lambda *given: None)
        x, y = trajectory(2, logp=-0.5, terminated=True), trajectory(2, logp=-0.5, truncated=True)
        x.t, y.t = [0, 1], [1, 3]
        submit(run, x=x, y=y)
        until_x_ends = [("log", ["x"]), ("log", ["x", "y"]), ("end_agents", ["x"])]
        assert calls == [*until_x_ends, ("log", ["y"]), ("end", ["y"])]

    def test_a_policy_that_does_not_learn_submits_actions_without_probabilities(self):
        """The actions of other agents keep their probabilities."""
        config = {**CONFIG, "multiagent": {**BOTH, "policies_to_train": ["x"]}}
        with PPOTrainer(env=SeveralAgents, config=config) as trainer:
            run = Learning(trainer)

            result = run.train_while(lambda: submit(run, x=trajectory(12, logp=-0.5), y=trajectory(12)))
            assert result["info"]["learner"].keys() == {"x"}


class TestLearningCurve:
    def test_the_number_of_points_is_limited(self):
        now = [0.0]
        curve = LearningCurve(10, clock=lambda: now[0])
        for number in range(1000):
            now[0] += 1.0
            curve.add(float(number), 1)
        assert 5 <= len(curve.points) <= 10
        assert curve.points[0]["time_s"] == 1.0
        times = [point["time_s"] for point in curve.points]
        assert times == sorted(times)
        assert curve.reward == sum(range(900, 1000)) / 100

    def test_a_long_run_that_continues_has_all_of_its_curve(self):
        now = [0.0]
        curve = LearningCurve(10, clock=lambda: now[0])
        names = ("time_total_s", "timesteps_total", "episode_reward_mean")
        curve.restore(dict.fromkeys(names, float(number)) for number in range(1, 1001))
        for _ in range(1000):
            now[0] += 1.0
            curve.add(1.0, 1)
        assert [point["time_s"] for point in curve.points] == list(range(1, 2000, 256))

    def test_restoring_continues_the_curve(self):
        now = [50.0]
        curve = LearningCurve(clock=lambda: now[0])
        first = {"time_total_s": 10.0, "timesteps_total": 100, "episode_reward_mean": 1.0, "episodes_this_iter": 2}
        second = {"time_total_s": 20.0, "timesteps_total": 200, "episode_reward_mean": None, "episodes_this_iter": 0}
        curve.restore([first, second])
        assert (curve.steps, curve.episodes) == (200, 2)
        now[0] += 5.0
        curve.add(3.0, 7)
        assert [point["time_s"] for point in curve.points] == [10.0, 25.0]
