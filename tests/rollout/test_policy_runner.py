"""`PolicyRunner`, between a policy and an environment: checks, filters, action maps."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from rollax import EnvError, NonFiniteError, Policy, PolicyError, RolloutWorker, TrainerConfig
from rollax.rollout.block_sampler import BlockSampler
from rollax.rollout.row_sampler import RowSampler
from rollax.rollout.worker_policies import make_runner
from tests.env.refused import refused
from tests.rollout.reference import histories
from tests.rollout.worlds import ALL, OBS_SPACE, Asynchronous, Encode, Line, Scripted, a_by_x, native_lines

FILTER, WHOLE = {"observation_filter": "MeanStdFilter"}, {"batch_mode": "complete_episodes"}
BOX = spaces.Box(np.array([-2, 0, -np.inf], np.float32), np.array([2, 10, np.inf], np.float32))


class RecordsActions(gym.Env):
    """Records the actions that it gets."""

    observation_space, action_space = OBS_SPACE, BOX

    def __init__(self) -> None:
        self.actions: list[np.ndarray] = []

    def reset(self, *, seed=None, options=None):
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.actions.append(action)
        return np.zeros(4, np.float32), 0.0, False, False, {}


def returning(result) -> type[Policy]:
    """A policy class whose `compute_actions` returns `result`, or `result(observations)` if it is a function."""

    class Returning(Policy):
        def compute_actions(self, obs_batch):  # type: ignore[override]
            return result(obs_batch) if callable(result) else result

    return Returning


def worker(result, env=Line, num_envs=2, mapping=None, **config) -> RolloutWorker:
    """A worker with a policy that returns a result, or with given policies."""
    config = {"num_envs_per_worker": num_envs, "rollout_fragment_length": 3, **config}
    policies = result if isinstance(result, type | dict) else returning(result)
    return RolloutWorker(env, policies, policy_mapping_fn=mapping, config=config)


class TestReturnValues:
    @pytest.mark.parametrize(
        "actions", [[3, 4], np.array([3, 4]), np.array([3, 4], np.int32), [np.int64(3), np.int8(4)]]
    )
    def test_lists_and_arrays(self, actions):
        made = worker((actions, [], {}))
        batch = made.sample()
        # Sorted by trajectory: the only ones of sub-environments 0 and 1, then the second of 0 in the slot of its
        # first.
        assert batch["actions"].tolist() == [3, 4, 4, 4, 3, 3]
        for env in made.env.get_sub_environments():
            taken = [event[1]["agent0"] for event in env.log if event[0] == "step"]
            assert all(isinstance(action, int) for action in taken)

    def test_fetches_become_columns(self):
        rows = {"score": [0.5, 0.25], "parts": {"left": np.zeros((2, 3)), "right": np.array([1, 2])}}
        batch = worker(([0, 0], [], rows)).sample()
        assert batch["score"].tolist() == [0.5, 0.25, 0.25, 0.25, 0.5, 0.5]
        assert batch["parts"]["left"].shape == (6, 3)
        assert batch["parts"]["right"].tolist() == [1, 2, 2, 2, 1, 1]

    @pytest.mark.parametrize(
        ("result", "says"),
        [
            *[
                (result, "three values(.|\n)*'default_policy', class Returning")
                for result in ([0, 0], ([0, 0], []), np.zeros(2), None, [[0, 0], [], {}], ([0, 0], [], {}, 1))
            ],
            *[
                ((actions, [], {}), "wrong number of actions")
                for actions in ([0], [0, 0, 0], np.zeros(3, int), np.int64(0), np.zeros((1, 2), int), (0, 0), [])
            ],
            *[
                ((actions, [], {}), "cannot be stacked")
                for actions in ([None, 1], ["left", 1], [[0], [0, 1]], [float("nan"), 0])
            ],
            *[
                (([0, 0], [], {"score": score}), r"extra_fetches\['score'\]")
                for score in ([1.0], 3.0, np.zeros((3, 2)), {"a": [1.0, 2.0], "b": [1.0]})
            ],
        ],
    )
    def test_refused(self, result, says):
        with pytest.raises(PolicyError, match=says):
            worker(result).sample()

    def test_changing_fetches(self):
        calls = iter(range(100))
        changing = lambda obs: ([0] * len(obs), [], {} if next(calls) else {"score": [1.0] * len(obs)})  # noqa: E731
        refused(PolicyError, worker(changing).sample, says="columns of a policy differ")

    @pytest.mark.parametrize("sampler", [BlockSampler, RowSampler])
    def test_fractions_in_a_column_that_began_with_integers(self, sampler):
        calls = iter(range(100))

        def acting(obs):
            actions = np.full((len(obs), 3), 0.5) if next(calls) else np.zeros((len(obs), 3), int)
            return actions, [], {}

        made = worker(acting, RecordsActions, sampler=sampler)
        assert type(made.sampler) is sampler
        refused(PolicyError, made.sample)


class TestActions:
    @pytest.mark.parametrize(
        ("normalize", "clip", "expected"),
        [
            # [-1, 1] is mapped to [-2, 2] and [0, 10]; the third element has no bounds.
            (True, True, [[2, 0, 7], [-2, 10, -7], [1, 7.5, 0]]),
            (True, False, [[2, 0, 7], [-2, 10, -7], [1, 7.5, 0]]),
            (False, True, [[2, 0, 7], [-2, 5, -7], [0.5, 0.5, 0]]),
            (False, False, [[3, -5, 7], [-3, 5, -7], [0.5, 0.5, 0]]),
        ],
    )
    def test_the_environment_gets_them_inside_its_bounds(self, normalize, clip, expected):
        chosen = iter(np.array([[3, -5, 7], [-3, 5, -7], [0.5, 0.5, 0]], np.float64))
        env = RecordsActions()
        made = worker(
            lambda _: (next(chosen)[None], [], {}), lambda _: env, 1, normalize_actions=normalize, clip_actions=clip
        )
        batch = made.sample()
        assert np.array(env.actions).tolist() == expected
        assert all(action.dtype == np.float32 for action in env.actions)
        # The batch has the actions in the policy's own units.
        assert batch["actions"].tolist() == [[3, -5, 7], [-3, 5, -7], [0.5, 0.5, 0]]

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    @pytest.mark.parametrize("as_list", [False, True])
    def test_not_finite(self, bad, as_list):
        actions = np.array([[0, 0, 0], [0, bad, 0]], np.float32)
        with pytest.raises(NonFiniteError, match="row 1 of 2") as caught:
            worker((list(actions) if as_list else actions, [], {}), lambda _: RecordsActions()).sample()
        assert "'default_policy'" in str(caught.value)

    def test_the_error_names_one_policy_of_several(self):
        script = [{"a": "o", "b": "o"}, {"a": "or", "b": "or", ALL: "T"}]
        policies = {"x": Encode, "y": returning((np.array([np.nan]), [], {}))}
        made = worker(policies, lambda _: Scripted([script]), 1, a_by_x)
        refused(NonFiniteError, made.sample, says="policy 'y', row 0 of 1")


class TestSingleAction:
    @pytest.mark.parametrize("raw", [True, False])
    def test_an_observation_that_does_not_fit(self, raw):
        made = worker(([0], [], {}), num_envs=1)
        act = (made.runners["default_policy"] if raw else made.get_policy()).compute_single_action
        refused(EnvError, act, np.zeros((2, 4)), says="for policy 'default_policy'...got:...shape (2, 4)")
        refused(NonFiniteError, act, [0.0, np.nan, 0.0, 0.0], says="observation contains NaN or infinity")

    def test_a_policy_with_state(self):
        class Recurrent(Policy):
            def get_initial_state(self):
                return [np.zeros(2)]

            def compute_actions(self, obs_batch, state_batches, explore):  # type: ignore[override]
                (state,) = state_batches
                return [int(explore)] * len(obs_batch), [state + 1], {"score": state[:, 0]}

        runner = RolloutWorker(Line, Recurrent).runners["default_policy"]
        action, (state,), fetches = runner.compute_single_action(np.zeros(4))
        assert (action, state.tolist(), fetches) == (0, [1.0, 1.0], {"score": 0.0})
        action, (state,), fetches = runner.compute_single_action(np.zeros(4), [np.full(2, 5.0)], explore=True)
        assert (action, state.tolist(), fetches) == (1, [6.0, 6.0], {"score": 5.0})


class TestManyActions:
    """One call for any number of raw observations."""

    def test_raw_observations_in_environment_actions_out(self):
        seen = []

        def act(obs):
            seen.append(obs.tolist())
            return np.tile(np.array([[1.0, 1.0, 5.0]]), (len(obs), 1)), [], {"score": np.arange(len(obs))}

        made = worker(act, lambda _: RecordsActions(), 1, **FILTER)
        runner, before = made.runners["default_policy"], made.get_filters()["default_policy"]["count"]
        rows = [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]
        for given in (rows, [np.array(row) for row in rows], np.array(rows), np.array(rows, np.float16)):
            actions, states, fetches = runner.compute_actions(given)
            assert actions.tolist() == [[2.0, 10.0, 5.0]] * 2
            assert (states, fetches["score"].tolist(), seen.pop()) == ([], [0, 1], rows)
        action = runner.compute_single_action(rows[0])
        assert (action.tolist(), BOX.contains(action), seen.pop()) == ([2.0, 10.0, 5.0], True, rows[:1])
        assert made.get_filters()["default_policy"]["count"] == before

    @pytest.mark.parametrize(
        ("given", "error", "said"),
        [
            (np.zeros(4), EnvError, r"policy 'default_policy'\n +got: +shape \(4,\).*\n.*rows of shape \(4,\)"),
            ([[0] * 4, [0] * 3], EnvError, r"row 1\n +got: +shape \(3,\)"),
            ([], EnvError, "no observation"),
            (np.zeros((0, 4)), EnvError, "no observation"),
            (np.array([[0] * 4, [0, np.nan, 0, 0]]), NonFiniteError, "row 1"),
        ],
    )
    def test_observations_that_do_not_fit(self, given, error, said):
        with pytest.raises(error, match=said):
            worker(([0], [], {}), num_envs=1).runners["default_policy"].compute_actions(given)

    def test_states_and_previous_rewards_and_actions(self):
        seen = []

        class Recurrent(Policy):
            def get_initial_state(self):
                return [np.zeros(2), np.ones(())]

            def compute_actions(self, obs_batch, state_batches, prev_action_batch, prev_reward_batch):  # type: ignore[override]
                seen.append((np.asarray(prev_action_batch).tolist(), prev_reward_batch.tolist()))
                return [1] * len(obs_batch), [part + 1 for part in state_batches], {}

        runner = RolloutWorker(Line, Recurrent, config={"clip_rewards": 1.0}).runners["default_policy"]
        actions, states, _ = runner.compute_actions(np.zeros((3, 4)))
        assert [part.tolist() for part in states] == [[[1, 1]] * 3, [2] * 3]
        _, states, _ = runner.compute_actions(np.zeros((3, 4)), states, prev_actions=actions, prev_rewards=[1, 5, -5])
        assert [part.tolist() for part in states] == [[[2, 2]] * 3, [3] * 3]
        assert seen == [([0, 0, 0], [0, 0, 0]), ([1, 1, 1], [1, 1, -1])]

    def test_columns_of_nested_spaces(self):
        space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple([OBS_SPACE])})

        class Choosing(Policy):
            def compute_actions(self, obs_batch):  # type: ignore[override]
                return {"x": obs_batch["a"], "y": obs_batch["b"][0][:, 0]}, [], {}

        policy = Choosing(space, spaces.Dict({"x": spaces.Discrete(3), "y": spaces.Box(-1, 1, (), np.float32)}))
        runner = make_runner(policy, TrainerConfig(clip_actions=True))
        rows = [{"a": i, "b": (np.full(4, float(i)),)} for i in range(3)]
        columns = {"a": [0, 1, 2], "b": (np.array([row["b"][0] for row in rows]),)}
        for given in (rows, columns):
            actions = runner.compute_actions(given)[0]
            assert {key: column.tolist() for key, column in actions.items()} == {"x": [0, 1, 2], "y": [0, 1, 1]}
        refused(EnvError, runner.compute_actions, {**columns, "a": [0, 1]}, says="columns of [2, 3] rows")


class TestFilter:
    """Each observation is counted once, when it arrives, including an episode's last."""

    @pytest.mark.parametrize("autoreset", [None, *AutoresetMode])
    def test_each_observation_once(self, autoreset):
        env, copies = (Line, 3) if autoreset is None else (native_lines(autoreset), 1)
        made = worker(Encode, env, copies, rollout_fragment_length=9, **FILTER)
        made.sample()
        logs = [env.log for env in made.env.get_sub_environments()]
        shown = [obs for log in logs for event in log for obs in event[1 if event[0] == "reset" else 2].values()]
        state = made.get_filters()["default_policy"]
        assert state["count"] == len(shown)
        np.testing.assert_allclose(state["mean"], np.mean(shown, axis=0), rtol=1e-6)

    def test_each_policy_has_its_own_filter(self):
        script = [{"a": "o", "b": "o"}, {"a": "or"}, {"a": "or", "b": "r"}, {"a": "r", "b": "or"}, {ALL: "T", "a": "o"}]
        policies = {"x": Encode, "y": Encode}
        made = worker(policies, lambda _: Scripted([script]), 1, a_by_x, rollout_fragment_length=4, **FILTER, **WHOLE)
        made.sample()
        (env,) = made.env.get_sub_environments()
        assert len(histories([env])[0].episodes) == 1
        counts = {policy_id: state["count"] for policy_id, state in made.get_filters().items()}
        assert counts == {"x": 4 + 1, "y": 2 + 1}  # including the first observations of the next episode

    def test_rows_without_an_observation(self):
        script = [{"a": "o", "b": "o"}, {"a": "r"}, {"b": "r", "a": "or"}, {"b": "T"}, {"a": "rC", ALL: "T"}]
        base = Asynchronous([Scripted([script])])
        batch = worker(Encode, lambda _: base, 1, rollout_fragment_length=4, **FILTER, **WHOLE).sample()
        assert batch["agent_id"].tolist() == ["a", "a", "b"]

    def test_rows_have_the_filtered_observations(self):
        seen = []

        class Watching(Policy):
            batch_columns = frozenset({"new_obs"})

            def compute_actions(self, obs_batch):  # type: ignore[override]
                seen.append(obs_batch.copy())
                return [0] * len(obs_batch), [], {}

        batch = worker(Watching, Line, 1, rollout_fragment_length=12, **FILTER).sample()
        np.testing.assert_array_equal(batch["obs"], np.concatenate(seen))
        running = ~(batch["terminateds"] | batch["truncateds"])[:-1]
        np.testing.assert_array_equal(batch["new_obs"][:-1][running], batch["obs"][1:][running])
        assert batch["obs"].max() < 10  # roughly standardized


class TestActionsOutOfTheirSpace:
    """Of a user's policy; the actions of built-in policies are always in the space."""

    @pytest.mark.parametrize(
        ("space", "actions", "says"),
        [
            (spaces.Discrete(3), [2, 3], "row 1...got:      np.int64(3)...Discrete(3)"),
            (spaces.Discrete(3, start=5), np.array([5, 4]), "row 1...Discrete(3, start=5)"),
            (spaces.Discrete(3), np.array([0.0, 1.0]), "row 0...got:      float64 of shape ()...Discrete(3)"),
            (spaces.Discrete(3), [0, 1.5], "cannot represent these float64 values"),
            (spaces.Discrete(3), np.zeros((2, 1), int), "row 0...got:      int64 of shape (1,)"),
            (spaces.MultiDiscrete([3, 2]), np.array([[2, 1], [2, 2]]), "row 1...MultiDiscrete([3 2])"),
            (spaces.MultiBinary(2), np.array([[0, 1], [-1, 0]]), "row 1...MultiBinary(2)"),
            (spaces.Dict(a=BOX, b=spaces.Discrete(2)), {"a": np.zeros((2, 3)), "b": np.array([0, 2])}, "row 1"),
            (spaces.Tuple([spaces.Discrete(2)] * 2), (np.array([0, 0]), np.array([0, 2])), "row 1"),
            (spaces.Tuple([spaces.Discrete(2)] * 2), (np.array([0, 0]),), "the structure of the action space"),
        ],
    )
    def test_are_refused(self, space, actions, says):
        class Acting(RecordsActions):
            action_space = space

        unreadable = "cannot represent these" in says or "structure" in says
        where = "" if unreadable else "not in the action space...'default_policy'..."
        refused(PolicyError, worker((actions, [], {}), lambda context: Acting()).sample, says=where + says)

    def test_box_actions_are_left_to_the_action_map(self):
        plain = {"clip_actions": False, "normalize_actions": False}
        made = worker((np.full((2, 3), 99.0), [], {}), lambda context: RecordsActions(), **plain)
        made.sample()
        assert made.env.get_sub_environments()[0].actions[0].tolist() == [99.0, 99.0, 99.0]
