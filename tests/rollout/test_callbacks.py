"""Callbacks: each is called at the right moment, and only if it is overridden."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rollax import Callbacks, MultiAgentEnv, PGTrainer, RolloutWorker, SampleBatch
from rollax.errors import BatchError, ConfigError
from rollax.rollout.callbacks import restore_states, states_of
from rollax.rollout.episode import Episode
from rollax.rollout.own_callbacks import make_callbacks
from tests.env.refused import refused
from tests.rollout import worlds
from tests.rollout.worlds import ALL, OBS_SPACE, Asynchronous, Encode, Line, Scripted, native_lines, scripted

TURNS = [{"a": "o"}, {"b": "o"}, {"a": "or"}, {"b": "or"}, {"a": "orT", "b": "r", ALL: "T"}]


class CallRecorder(Callbacks):
    """Records its calls."""

    def __init__(self) -> None:
        self.lines: list[tuple] = []

    def _note(self, what, worker, base_env, episode):
        assert base_env is worker.env
        self.lines.append((what, episode.episode_id, episode.env_index, episode.length, episode.total_reward))

    def on_episode_start(self, **known):
        self._note("start", **known)

    def on_episode_step(self, **known):
        self._note("step", **known)

    def on_episode_end(self, **known):
        self._note("end", **known)

    def on_sample_end(self, *, worker, samples):
        self.lines.append(("sample", samples))


ENVIRONMENTS = {
    "in turn": (Line, 2),
    **{mode.name: (native_lines(mode, 2), 1) for mode in AutoresetMode},
    "multi-agent": (scripted(TURNS), 2),
    "asynchronous": (lambda _: Asynchronous([Scripted([TURNS], i) for i in range(2)]), 1),
    "restarts itself": (lambda _: Asynchronous([Scripted([TURNS], i) for i in range(2)], restarts_itself=True), 1),
}


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_calls_of_every_episode(environment):
    creator, num_envs = ENVIRONMENTS[environment]
    config = {"num_envs_per_worker": num_envs, "rollout_fragment_length": 8, "callbacks": CallRecorder}
    worker = RolloutWorker(creator, Encode, config=config)
    batches = [worker.sample() for _ in range(3)]
    lines = worker.callbacks.lines  # type: ignore[attr-defined]
    assert [line[1] for line in lines if line[0] == "sample"] == batches
    metrics = iter(worker.get_metrics())
    running: dict[int, tuple] = {}
    seen: set[int] = set()
    for what, *values in (line for line in lines if line[0] != "sample"):
        episode_id, env_index, length, reward = values
        if what == "start":
            assert (env_index, episode_id) not in running.items()
            assert episode_id not in seen
            assert (length, reward) == (0, 0)
            running[env_index] = (episode_id, 0)
            seen.add(episode_id)
        else:
            before = running[env_index][1]
            assert running[env_index][0] == episode_id
            if what == "step":
                assert length == before + 1
                running[env_index] = (episode_id, length)
            else:
                found = next(metrics)
                assert (length, reward, env_index) == (found.length, found.reward, found.env_index)
                assert length == before
                del running[env_index]
    assert next(metrics, None) is None
    counts = Counter(line[0] for line in lines)
    assert counts["start"] == counts["end"] + len(running) > 5
    assert counts["step"] == sum(batch.env_steps for batch in batches)
    assert seen >= {int(i) for batch in batches for i in batch["eps_id"]}


def test_infos_of_the_last_step():
    infos = []

    class Reader(Callbacks):
        def on_episode_step(self, *, worker, base_env, episode):
            infos.append(episode.last_infos["agent0"])

    RolloutWorker(Line, Encode, config={"rollout_fragment_length": 4, "callbacks": Reader}).sample()
    assert infos == [{"count": 1}, {"count": 1}, {"count": 2}, {"count": 3}]


class Leaves(MultiAgentEnv):
    """Agent "b" ends in the first step; one dict has the info of the agents that act."""

    observation_space, action_space = OBS_SPACE, worlds.ACTION_SPACE

    def reset(self, *, seed=None, options=None):
        self.step_count, self.info = 0, {"step": 0, "array": np.zeros(1)}
        return dict.fromkeys("ab", OBS_SPACE.low), {}

    def step(self, actions):
        self.step_count += 1
        self.info["step"], self.info["array"][0] = self.step_count, self.step_count
        over = {"b": True, "__all__": self.step_count == 3} if "b" in actions else {"__all__": self.step_count == 3}
        values = (OBS_SPACE.low, 0.0, self.info)
        obs, rewards, infos = (dict.fromkeys(actions, value) for value in values)
        return obs, rewards, over, {"__all__": False}, infos


def test_infos_of_an_agent_that_has_ended_stay_as_they_were():
    seen = []

    class AtTheEnd(Callbacks):
        def on_episode_end(self, *, worker, base_env, episode):
            seen.append({agent: (info["step"], info["array"][0]) for agent, info in episode.last_infos.items()})

        def on_episode_step(self, *, worker, base_env, episode): ...

    RolloutWorker(Leaves, Encode, config={"rollout_fragment_length": 3, "callbacks": AtTheEnd}).sample()
    assert seen == [{"a": (3, 3), "b": (1, 1)}]


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_on_episode_end_has_the_last_infos_without_on_episode_step(environment):
    class AtTheEnd(Callbacks):
        def __init__(self) -> None:
            self.infos: list[dict] = []

        def on_episode_end(self, *, worker, base_env, episode):
            self.infos.append(dict(episode.last_infos))

    class AtEveryStep(AtTheEnd):
        def on_episode_step(self, *, worker, base_env, episode):
            pass

    creator, num_envs = ENVIRONMENTS[environment]
    workers = [
        RolloutWorker(creator, Encode, config={"num_envs_per_worker": num_envs, "callbacks": callbacks})
        for callbacks in (AtTheEnd, AtEveryStep)
    ]
    for worker in workers:
        worker.sample()
    at_the_end, at_every_step = (worker.callbacks.infos for worker in workers)
    assert at_the_end == at_every_step
    assert len(at_the_end) > 5
    assert all(at_the_end)


def test_an_episode_keeps_user_data():
    class WithUserData(Callbacks):
        def on_episode_start(self, *, worker, base_env, episode):
            episode.user_data["name"] = episode.episode_id

        def on_episode_end(self, *, worker, base_env, episode):
            assert episode.user_data == {"name": episode.episode_id}
            episode.custom_metrics["id"] = episode.episode_id

    config = {"rollout_fragment_length": 20, "num_envs_per_worker": 2, "callbacks": WithUserData}
    worker = RolloutWorker(Line, Encode, config=config)
    worker.sample()
    ids = [m.custom_metrics["id"] for m in worker.get_metrics()]
    assert len(set(ids)) == len(ids) > 5


def hooks(**methods):
    return type("Mine", (Callbacks,), methods)


class TestRefused:
    @pytest.mark.parametrize(
        ("name", "fix"),
        [
            ("on_episode_finish", "rename it to on_episode_end"),
            ("on_episode_begin", "rename it to on_episode_start"),
            ("on_episode_steps", "rename it to on_episode_step"),
            ("on_learn_on_batch", "rename it to on_sample_end"),
            ("on_something_else", "rename it to one of these"),
        ],
    )
    def test_unknown_methods(self, name, fix):
        config = {"callbacks": hooks(**{name: lambda self, **known: None})}
        refused(ConfigError, RolloutWorker, Line, Encode, config=config, says=f"class Mine, method {name}...{fix}")

    @pytest.mark.parametrize("base", [Callbacks, object])
    def test_wrong_parameters(self, base):
        refused = {
            "on_episode_end": lambda self, episode: None,
            "on_episode_step": lambda self, *, worker, base_env, episode, more: None,
            "on_sample_end": lambda self, worker, samples, /: None,
            "on_train_result": lambda self: None,
            "on_episode_start": 3,
        }
        for name, method in refused.items():
            with pytest.raises(ConfigError, match=f"class Mine, method {name}"):
                make_callbacks(type("Mine", (base,), {name: method}))
        with pytest.raises(ConfigError, match=r"expected: def on_train_result\(self, \*, trainer, result\)"):
            make_callbacks(hooks(on_train_result=lambda self, algorithm, result: None))
        with pytest.raises(ConfigError, match=r"class Mine(.|\n)*missing a required argument: 'path'"):
            make_callbacks(hooks(__init__=lambda self, path: None))

    def test_accepted_methods_and_attributes(self):
        accepted = {
            "on_episode_start": lambda self, **known: None,
            "on_episode_step": lambda self, worker, base_env, episode, more=None: None,
            "on_episode_end": staticmethod(lambda *, episode, **known: None),
            "on_cpu": True,
            "count": lambda self: None,
        }
        make_callbacks(hooks(**accepted))

    @pytest.mark.parametrize(
        ("noted", "where"),
        [
            ({"x": "3"}, r"custom_metrics\['x'\]"),
            ({"good": 1, "x": None}, r"custom_metrics\['x'\]"),
            ({"x": [1, 2]}, r"custom_metrics\['x'\]"),
            ({3: 1.0}, r"custom_metrics\[3\]"),
            ({"x": 10**400}, r"custom_metrics\['x'\]"),
            (7, r"episode.custom_metrics\n"),
        ],
    )
    def test_a_custom_metric_that_is_no_number(self, noted, where):
        def note(self, *, worker, base_env, episode):
            episode.custom_metrics = noted

        config = {"rollout_fragment_length": 20, "callbacks": hooks(on_episode_end=note)}
        with pytest.raises(ConfigError, match=f"A custom metric is not a number(.|\n)*{where}"):
            RolloutWorker(Line, Encode, config=config).sample()

    @pytest.mark.parametrize("method", ["on_episode_start", "on_episode_step", "on_episode_end"])
    @pytest.mark.parametrize("kind", ["value", "async", "generator"])
    @pytest.mark.filterwarnings("ignore:coroutine")
    def test_a_returned_value_of_an_episode(self, method, kind):
        async def waits(self, *, worker, base_env, episode):
            episode.custom_metrics["x"] = 1.0

        def yields(self, *, worker, base_env, episode):
            episode.custom_metrics["x"] = 1.0
            yield

        hook = {"value": lambda self, worker, base_env, episode: {"x": 1.0}, "async": waits, "generator": yields}[kind]
        config = {"rollout_fragment_length": 20, "callbacks": hooks(**{method: hook})}
        with pytest.raises(ConfigError, match=rf"returns has no effect(.|\n)*class Mine, method {method}"):
            RolloutWorker(Line, Encode, config=config).sample()

    def test_rows_of_a_policy_that_are_no_batch(self):
        def replace(self, *, worker, samples):
            samples.policy_batches["b"] = {"obs": np.zeros(3)}

        config = {"rollout_fragment_length": 10, "callbacks": hooks(on_sample_end=replace)}
        policies = {"policy_cls_or_specs": dict.fromkeys("ab", Encode), "policy_mapping_fn": lambda agent: agent}
        with pytest.raises(BatchError, match=r"not a SampleBatch.\n +where: +MultiAgentBatch, policy 'b'"):
            RolloutWorker(scripted(TURNS), config=config, **policies).sample()

    def test_a_returned_value(self):
        def sample(returned):
            callbacks = hooks(on_sample_end=lambda self, worker, samples: returned(samples))
            RolloutWorker(Line, Encode, config={"rollout_fragment_length": 20, "callbacks": callbacks}).sample()

        with pytest.raises(ConfigError, match=r"returns has no effect(.|\n)*class Mine, method on_sample_end"):
            sample(lambda samples: SampleBatch(samples))
        sample(lambda samples: samples)
        callbacks = hooks(on_train_result=lambda self, trainer, result: {**result, "done": True})
        with PGTrainer("CartPole-v1", {"callbacks": callbacks, "train_batch_size": 8}) as trainer:
            refused(ConfigError, trainer.train, says="returns has no effect...on_train_result...result['name']")

    def test_numbers_of_any_kind_are_metrics(self):
        episode = Episode(0, 0, {"reward": np.zeros(1), "length": np.zeros(1)})
        episode.custom_metrics = {"a": True, "b": np.float32(0.5), "c": np.array(2), "d": Fraction(1, 4)}
        assert episode.noted_metrics() == {"a": 1.0, "b": 0.5, "c": 2.0, "d": 0.25}


class TestOverriding:
    def test_only_overridden_methods_are_called(self):
        class Ends(Callbacks):
            def on_episode_end(self, *, worker, base_env, episode):
                pass

        episodes = RolloutWorker(Line, Encode, config={"callbacks": Ends}).sampler.episodes
        assert (episodes._on_start, episodes._on_step) == (None, None)
        assert episodes._on_end is not None

    def test_without_callbacks_no_episode_object_is_made(self):
        worker = RolloutWorker(Line, Encode, config={"rollout_fragment_length": 20})
        worker.sample()
        assert not worker.sampler.episodes._running

    def test_a_class_that_is_not_a_subclass(self):
        batches = []

        class Own:
            def on_sample_end(self, *, worker, samples):
                batches.append(samples)

        worker = RolloutWorker(Line, Encode, config={"rollout_fragment_length": 4, "callbacks": Own})
        assert batches == [worker.sample()]
        assert isinstance(batches[0], SampleBatch)
        worker.callbacks.on_train_result(trainer=None, result={})


class TestSeveralClasses:
    def test_each_is_called_in_turn(self):
        order = []

        class Starts:
            def on_episode_start(self, *, worker, base_env, episode):
                order.append("first starts")

            def on_train_result(self, *, trainer, result):
                result["names"] = ["first"]

        class Ends(Callbacks):
            def on_episode_start(self, *, worker, base_env, episode):
                order.append("second starts")

            def on_episode_end(self, *, worker, base_env, episode):
                order.append("ends")
                episode.custom_metrics["ended"] = 1.0

            def on_train_result(self, *, trainer, result):
                result["names"].append("second")

        config = {"callbacks": [Starts, Ends], "train_batch_size": 8, "rollout_fragment_length": 8}
        with PGTrainer(Line, config) as trainer:
            result = trainer.train()
            assert trainer.worker.sampler.episodes._on_step is None
        assert result["names"] == ["first", "second"]
        assert result["custom_metrics"] == {"ended_mean": 1.0}
        assert order[:3] == ["first starts", "second starts", "ends"]

    def test_classes_of_one_name_keep_their_states_apart(self):
        """Also while the first one has none."""

        class Best(Callbacks):
            best = None

            def on_save(self, *, trainer, state):
                state |= {} if self.best is None else {"best": self.best}

            def on_restore(self, *, trainer, state):
                self.best = state.get("best")

        saved, restored = (make_callbacks([Best, Best]) for _ in range(2))
        saved.instances[1].best = 7
        restore_states(restored, None, states_of(saved, None))
        assert [one.best for one in restored.instances] == [None, 7]

    def test_mistakes_name_the_class(self):
        class Wrong:
            def on_sample_end(self, *, worker, samples):
                return 3

        with pytest.raises(ConfigError, match=r"has no effect(.|\n)*class Wrong, method on_sample_end"):
            RolloutWorker(Line, Encode, config={"callbacks": [CallRecorder, Wrong]}).sample()
        with pytest.raises(ConfigError, match=r"class Mine, method on_begin"):
            RolloutWorker(Line, Encode, config={"callbacks": [CallRecorder, hooks(on_begin=lambda self: None)]})
        wrong = {"callbacks": [CallRecorder, CallRecorder()]}
        says = "callbacks'...not an instance of it), or a list of classes or None"
        refused(ConfigError, RolloutWorker, Line, Encode, config=wrong, says=says)

    def test_no_class_is_called(self):
        RolloutWorker(Line, Encode, config={"callbacks": [], "rollout_fragment_length": 4}).sample()
