"""Every row of every fragment, compared with the environments' own logs."""

from collections import deque

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rollax import RolloutWorker
from rollax.policy.policy import Policy
from rollax.rollout.row_sampler import RowSampler
from tests.env.worlds import Counting
from tests.rollout.reference import Auditor, histories
from tests.rollout.worlds import ALL, Asynchronous, Columnar, Encode, Line, Scripted, native_lines, scripted

TRUNCATE, COMPLETE = "truncate_episodes", "complete_episodes"
SIZES = pytest.mark.parametrize(("num_envs", "fragment"), [(1, 1), (1, 4), (3, 1), (4, 7)])
MODES = pytest.mark.parametrize("mode", [TRUNCATE, COMPLETE])

# What each agent gets at each step: o observation, r reward, T termination, C truncation.
TURNS = [{"a": "o"}, {"b": "o"}, {"a": "or"}, {"b": "or"}, {"a": "orT", "b": "r", ALL: "T"}]
# b's rewards come late; a ends, returns, ends without a last observation; b ends and returns; c joins late.
AGENTS_JOIN_AND_LEAVE = [
    {"a": "o", "b": "o"},
    {"a": "or"},
    {"a": "or", "b": "r"},
    {"b": "or", "a": "or"},
    {"a": "oT", "b": "or"},
    {"b": "orC", "c": "o"},
    {"a": "o", "c": "o"},
    {"a": "or", "c": "r"},
    {"a": "o", "c": "r"},
    {"c": "or", "a": "rC"},
    {"c": "o", "b": "o"},
    {ALL: "C", "b": "r"},
]
SEEN_AT_THE_END = [{"a": "o"}, {"a": "or"}, {"a": "or", "b": "o", ALL: "T"}]
BOTH_FLAGS = [{"b": "", "a": ""}, {"b": "orTC", "a": "or"}, {"a": "or", ALL: "TC"}]
SCRIPTS = [TURNS, AGENTS_JOIN_AND_LEAVE, SEEN_AT_THE_END, BOTH_FLAGS]
# No agent acts for a while, which is allowed only in a BaseEnv, whose other sub-environments continue.
WAITING = [
    [{"a": "o"}, {"a": "r"}, {"a": "r"}, {"a": "or"}, {"a": "r"}, {"a": "r", ALL: "C"}],
    [{"a": "o", "b": "o"}, {"a": "oT", "b": "r"}, {"b": "orC"}, {"c": "o"}, {"c": "r"}, {"c": "orC", ALL: "T"}],
]
ONE_OR_TWO = pytest.mark.parametrize("policies", [1, 2])


def make_worker(env, num_envs=1, policies=1, **config) -> RolloutWorker:
    specs = Encode if policies == 1 else {"x": Encode, "y": Encode, "idle": Encode}
    mapping = None if policies == 1 else lambda agent: "x" if agent in "ac" else "y"
    config = {"num_envs_per_worker": num_envs, "seed": 3, **config}
    return RolloutWorker(env, specs, policy_mapping_fn=mapping, config=config)


def audit(worker: RolloutWorker, mode: str, fragments: int = 8) -> None:
    auditor = Auditor(worker.env.get_sub_environments(), whole_episodes=mode == COMPLETE)
    for _ in range(fragments):
        auditor.check(worker.sampler.sample()[0])
    assert len(auditor.seen) > 2


class TestSingleAgent:
    @SIZES
    @MODES
    def test_auto_vectorized(self, num_envs, fragment, mode):
        audit(make_worker(Line, num_envs, rollout_fragment_length=fragment, batch_mode=mode), mode)

    @pytest.mark.short(every=3)
    @SIZES
    @MODES
    @pytest.mark.parametrize("autoreset", AutoresetMode)
    def test_native_vector(self, num_envs, fragment, mode, autoreset):
        env = native_lines(autoreset, num_envs)
        audit(make_worker(env, rollout_fragment_length=fragment, batch_mode=mode), mode)

    @SIZES
    @MODES
    def test_columns_of_ready_sub_environments_in_any_order(self, num_envs, fragment, mode):
        env = Columnar([Line(i) for i in range(num_envs)])
        audit(make_worker(lambda _: env, rollout_fragment_length=fragment, batch_mode=mode), mode, 20)

    @pytest.mark.parametrize("autoreset", AutoresetMode)
    def test_native_vector_that_overwrites_its_arrays(self, autoreset):
        audit(make_worker(native_lines(autoreset, copy=False), rollout_fragment_length=4), TRUNCATE)


class TestMultiAgent:
    @pytest.mark.short(every=3)
    @SIZES
    @MODES
    @ONE_OR_TWO
    def test_multi_agent_env(self, num_envs, fragment, mode, policies):
        config = {"rollout_fragment_length": fragment, "batch_mode": mode}
        audit(make_worker(scripted(*SCRIPTS), num_envs, policies, **config), mode, -(-40 // fragment))

    @pytest.mark.short(every=7)
    @SIZES
    @MODES
    @pytest.mark.parametrize("scripts", [SCRIPTS, WAITING], ids=["all", "waiting"])
    @ONE_OR_TWO
    @pytest.mark.parametrize("restarts_itself", [False, True])
    def test_base_env_with_other_ready_agents_at_every_poll(
        self, num_envs, fragment, mode, scripts, policies, restarts_itself
    ):
        base = Asynchronous([Scripted(scripts, i) for i in range(num_envs)], restarts_itself)
        config = {"rollout_fragment_length": fragment, "batch_mode": mode}
        audit(make_worker(lambda _: base, policies=policies, **config), mode, -(-40 // fragment))

    def test_polls_without_ready_agents(self):
        base = Asynchronous([Scripted([TURNS])], sleeps=True)
        audit(make_worker(lambda _: base, rollout_fragment_length=2), TRUNCATE)

    def test_the_dict_view_gets_the_actions_of_all_policies_in_one_call(self):
        base = Asynchronous([Scripted([AGENTS_JOIN_AND_LEAVE])])
        calls, send = [], base.send_actions

        def send_actions(actions):
            calls.append(base.polls)
            send(actions)

        base.send_actions = send_actions  # type: ignore[method-assign]
        audit(make_worker(lambda _: base, policies=2, rollout_fragment_length=5), TRUNCATE)
        assert len(set(calls)) == len(calls)

    @ONE_OR_TWO
    def test_more_agents_than_the_initial_capacity(self, policies):
        # 26 letters x 9 sub-environments use all slots at once, and new agents appear during an episode.
        everyone = {chr(ord("a") + i): "or" for i in range(26)}
        half = dict(list(everyone.items())[:13])
        script = [half, everyone, half, everyone, {**everyone, ALL: "T"}]
        audit(make_worker(scripted(script), 9, policies, rollout_fragment_length=3), TRUNCATE)


class TestFragments:
    @pytest.mark.parametrize("autoreset", [None, *AutoresetMode])
    def test_the_number_of_steps_is_the_configured_one(self, autoreset):
        env, copies = (Line, 3) if autoreset is None else (native_lines(autoreset), 1)
        worker = make_worker(env, copies, rollout_fragment_length=5)
        for _ in range(6):
            batch = worker.sample()
            # Where a reset takes a poll of its own, the last poll can add a few steps.
            slack = 2 if autoreset is AutoresetMode.NEXT_STEP else 0
            assert 15 <= len(batch) <= 15 + slack
            assert batch.env_steps == batch.agent_steps == len(batch)

    def test_complete_episodes_count_the_steps_of_finished_episodes(self):
        worker = make_worker(Line, 4, rollout_fragment_length=5, batch_mode=COMPLETE)
        for _ in range(6):
            batch = worker.sample()
            assert len(batch) == batch.env_steps >= 20
            ends = batch["terminateds"] | batch["truncateds"]
            assert np.count_nonzero(ends) == len(np.unique(batch["eps_id"]))

    @pytest.mark.parametrize("policies", [1, 2])
    def test_a_fragment_without_a_complete_row_is_followed_by_the_next(self, policies):
        # a's first row is complete after three steps, when a acts again; the other three with the last step.
        script = [{"a": "o"}, {"b": "o"}, {"c": "o"}, {"a": "or"}, {"a": "r", "b": "r", "c": "r", ALL: "T"}]
        worker = make_worker(lambda _: Scripted([script]), policies=policies, rollout_fragment_length=1)
        batches = [worker.sample() for _ in range(4)]
        assert [(batch.env_steps, batch.agent_steps) for batch in batches] == [(3, 1), (1, 3)] * 2

    def test_automatic_fragment_length_counts_the_sub_environments(self):
        assert len(make_worker(native_lines(AutoresetMode.SAME_STEP, 4), train_batch_size=20).sample()) == 20

    def test_restart_drops_only_running_episodes(self):
        worker = make_worker(scripted(*SCRIPTS), 3, rollout_fragment_length=5)
        worker.sample()
        worker.sampler.restart()
        finished = worker.get_metrics()
        assert finished
        for env in worker.env.get_sub_environments():
            env.log.clear()
            env.episode = -1
        audit(worker, TRUNCATE)
        for metrics in (*finished, *worker.get_metrics()):
            assert sum(metrics.policy_rewards["default_policy"]) == metrics.reward


class TestMemory:
    @pytest.mark.long
    @MODES
    def test_arrays_stop_growing(self, mode):
        worker = make_worker(scripted(*SCRIPTS), 3, rollout_fragment_length=10, batch_mode=mode)

        def size() -> int:
            return sum(_bytes_held(part) for part in vars(worker.sampler).values())

        def run(fragments: int) -> int:
            for _ in range(fragments):
                worker.sample()
                worker.get_metrics()
            return size()

        warm = run(20)
        assert warm > 10_000
        assert run(100) == pytest.approx(warm, rel=0.01)  # the number of running trajectories varies

    @pytest.mark.parametrize("sampler", [None, RowSampler])
    def test_evaluation_keeps_no_rows(self, sampler):
        worker = make_worker(Line, 2, sampler=sampler)

        def held() -> int:
            return sum(_bytes_held(part) for name, part in vars(worker.sampler).items() if name != "env")

        worker.evaluate(2)
        before = held()
        worker.evaluate(50)
        assert held() == before


def _bytes_held(thing, seen: set[int] | None = None) -> int:
    """Bytes of all reachable arrays plus lengths of all reachable containers, without those of environments."""
    seen = set() if seen is None else seen
    if id(thing) in seen or type(thing).__name__ in ("MultiAgentBaseEnv", "Rows", "_Turn"):
        return 0
    seen.add(id(thing))
    if isinstance(thing, np.ndarray):
        return thing.nbytes
    if isinstance(thing, dict):
        return len(thing) + sum(_bytes_held(value, seen) for value in thing.values())
    if isinstance(thing, list | tuple | set | frozenset | deque):
        return len(thing) + sum(_bytes_held(value, seen) for value in thing)
    return sum(_bytes_held(value, seen) for value in vars(thing).values()) if hasattr(thing, "__dict__") else 0


def test_metrics_agree_with_the_logs():
    worker = make_worker(scripted(*SCRIPTS), 3, policies=2, rollout_fragment_length=40)
    worker.sample()
    metrics = worker.get_metrics()
    for history in histories(worker.env.get_sub_environments()):
        mine = [m for m in metrics if m.env_index == history.index]
        assert [(m.reward, m.length) for m in mine] == [(reward, length) for reward, length, _ in history.episodes]
        for found, (_, _, trajectories) in zip(mine, history.episodes, strict=True):
            for policy_id, agents in (("x", "ac"), ("y", "b"), ("idle", "")):
                rewards = [reward for agent in agents for reward in trajectories.get(agent, [])]
                assert sorted(found.policy_rewards.get(policy_id, [])) == sorted(rewards)


def test_infos_are_correct_if_the_environment_reuses_its_dict_and_what_is_in_it():
    class ReusesInfo(Counting):
        length = 5

        def reset(self, *, seed=None, options=None):
            self.info = {"t": 0, "array": np.zeros(1), "nested": {"list": [0], "tuple": (np.zeros(1),)}}
            return super().reset()[0], self.info

        def step(self, action):
            *outcome, _ = super().step(action)
            self.info["t"] = self.count
            for part in (self.info["array"], self.info["nested"]["list"], self.info["nested"]["tuple"][0]):
                part[0] = self.count
            return *outcome, self.info

    class Reads(Policy):
        @property
        def sampled_columns(self):
            return frozenset({"obs", "infos"})

        def compute_actions(self, obs_batch):
            return np.zeros(len(obs_batch), np.int64), [], {}

    worker = RolloutWorker(ReusesInfo, Reads, config={"rollout_fragment_length": 7})
    batch = worker.sample()
    seen = batch["obs"][:, 0].tolist()
    assert [info["t"] for info in batch["infos"]] == [info["array"][0] for info in batch["infos"]] == seen
    nested = [info["nested"] for info in batch["infos"]]
    assert [part["list"][0] for part in nested] == [part["tuple"][0][0] for part in nested] == seen
    worker.stop()
