"""External environments and the sampler: complete trajectories of several policies, and training."""

import threading
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollax import Callbacks, EnvError, ExternalEnv, Policy, PPOTrainer, RolloutWorker
from tests.env.external.worlds import Scripted, ScriptedAgents, in_threads
from tests.env.refused import refused
from tests.env.worlds import ACTION_SPACE, OBS_SPACE, action_for
from tests.waiting import until

THREADS, EPISODES = 6, 5


class NumberedPolicy(Policy):
    """The policy of all tests, which also stores what follows each action."""

    batch_columns = frozenset({"new_obs"})

    def compute_actions(self, obs_batch):  # type: ignore[override]
        return np.array([action_for(obs) for obs in obs_batch]), [], {}


class Steps(NumberedPolicy):
    """As `NumberedPolicy`, with the step of each row."""

    batch_columns = frozenset({"agent_id", "t"})


class RecordedPlay:
    """Plays random episodes, and records the decisions that the sampler should return.

    Attributes:
        trajectories: (thread, episode, agent, trajectory) -> decisions as (observation, action, reward, terminated,
            truncated, next observation or None, logged).
    """

    def __init__(self, env, agents: str | None, episodes: int = EPISODES) -> None:
        self.env, self.agents, self.episodes = env, agents, episodes
        self.trajectories: dict[tuple, list[list]] = defaultdict(list)

    def play(self, thread: int) -> None:
        random = np.random.default_rng(thread)
        for episode in range(self.episodes):
            served = bool(random.random() < 0.3)
            played = _Episode(self.env, random, thread, episode, self.agents)
            played.id = self.env.start_episode(training_enabled=not served)
            played.play()
            if not served:
                self.trajectories.update(played.trajectories)


class _Episode:
    def __init__(self, env, random, thread, number, agents) -> None:
        self.env, self.random, self.place = env, random, (thread, number)
        self.single, self.agents = agents is None, agents or "x"
        self.trajectories: dict[tuple, list[list]] = {}
        self.starts: dict[str, int] = dict.fromkeys(self.agents, 0)
        self.alive: dict[str, list[list]] = {}
        self.count = 0

    def observe(self, agent: str) -> np.ndarray:
        self.count += 1
        code = 1000 * self.place[0] + 100 * self.place[1] + self.count
        obs = np.array([code, ord(agent), self.random.random()], np.float32)
        if self.alive.get(agent):
            self.alive[agent][-1][5] = obs
        return obs

    def plain(self, by_agent: dict) -> object:
        return by_agent["x"] if self.single else by_agent

    def play(self) -> None:
        for step in range(int(self.random.integers(1, 8))):
            chosen = [agent for agent in self.agents if self.single or self.random.random() < 0.6]
            obs = {agent: self.observe(agent) for agent in chosen}
            if obs:
                self.act(obs)
            self.reward()
            if not self.single and step and self.random.random() < 0.4 and self.alive:
                self.end_one()
        if not self.starts["x"] and not any(self.starts.values()):
            self.act({self.agents[0]: self.observe(self.agents[0])})
        cut = bool(self.random.random() < 0.5)
        last = {agent: self.observe(agent) for agent in self.alive if self.single or self.random.random() < 0.7}
        self.env.end_episode(self.id, self.plain(last), truncated=cut)
        for agent in list(self.alive):
            self.close(agent, cut)

    def act(self, obs: dict) -> None:
        logged = bool(self.random.random() < 0.3)
        if logged:
            actions = {agent: int(self.random.integers(5)) for agent in obs}
            self.env.log_action(self.id, self.plain(obs), self.plain(actions))
        else:
            answer = self.env.get_action(self.id, self.plain(obs))
            actions = {"x": answer} if self.single else answer
        for agent, action in actions.items():
            if agent not in self.alive:
                self.starts[agent] += 1
                self.alive[agent] = []
                self.trajectories[(*self.place, agent, self.starts[agent])] = self.alive[agent]
            self.alive[agent].append([obs[agent], action, 0.0, False, False, None, logged])

    def reward(self) -> None:
        for agent, decisions in self.alive.items():
            if self.random.random() < 0.7:
                amount = float(self.random.integers(-4, 9)) / 4
                decisions[-1][2] += amount
                self.env.log_returns(self.id, amount if self.single else {agent: amount})

    def end_one(self) -> None:
        agent, cut = str(self.random.choice(sorted(self.alive))), bool(self.random.random() < 0.5)
        last = self.observe(agent) if self.random.random() < 0.7 else None
        self.env.end_agents(self.id, {agent: last}, truncated=cut)
        self.close(agent, cut)

    def close(self, agent: str, cut: bool) -> None:
        self.alive.pop(agent)[-1][3:5] = not cut, cut


def decisions(batch) -> list[list]:
    """The decisions in a batch, without those of the last episodes."""
    names = ("obs", "actions", "rewards", "terminateds", "truncateds", "new_obs", "off_policy")
    return [list(row) for row in zip(*map(batch.get, names), strict=True) if row[0][0] >= 0]


def recorded_play(agents: str | None, episodes: int = EPISODES) -> tuple[Any, dict[tuple, list], threading.Event]:
    """A script that plays, its decisions by observation, and what is set when it has played them all."""
    expected: dict[tuple, list] = {}
    played = threading.Event()

    def script(env):
        plays = RecordedPlay(env, agents, episodes)
        in_threads(THREADS, plays.play)
        expected.update((tuple(row[0].tolist()), row) for rows in plays.trajectories.values() for row in rows)
        played.set()
        obs: Any = np.full(3, -1, np.float32)
        while True:  # fills the last fragments
            episode = env.start_episode()
            env.get_action(episode, obs if agents is None else {"x": obs})
            env.end_episode(episode, obs if agents is None else {"x": obs})

    return script, expected, played


def worker_of(env: Any, agents: str | None, policy: type = NumberedPolicy, **config: Any) -> RolloutWorker:
    """A worker with one policy, or two for several agents."""
    return RolloutWorker(
        lambda context: env,
        policy if agents is None else dict.fromkeys("pq", policy),
        policy_mapping_fn=None if agents is None else lambda agent: "p" if agent == "x" else "q",
        config={"accept_off_policy_actions": True, **config},
    )


@pytest.mark.parametrize("agents", [None, "xyz"])
@pytest.mark.parametrize("mode", ["complete_episodes", "truncate_episodes"])
@pytest.mark.parametrize("fragment", [4, 25])
def test_every_decision_with_its_outcome_is_sampled_once(agents, mode, fragment):
    """Of episodes with training enabled; with rewards that come while other agents act, ends, and truncated ends."""
    script, expected, played = recorded_play(agents)
    env = (Scripted if agents is None else ScriptedAgents)(script)
    worker = worker_of(env, agents, batch_mode=mode, rollout_fragment_length=fragment)
    sampled: dict[tuple, list] = {}
    count = 0
    while not (played.is_set() and count >= len(expected)):
        samples = worker.sample()
        batches = [samples] if agents is None else samples.policy_batches.values()
        for batch in batches:
            found = decisions(batch)
            count += len(found)
            sampled.update((tuple(row[0].tolist()), row) for row in found)
    worker.stop()
    assert sampled.keys() == expected.keys()
    assert count == len(expected)
    for key, (_, action, reward, terminated, truncated, following, logged) in expected.items():
        assert sampled[key][1:5] == [action, reward, terminated, truncated]
        assert sampled[key][6] == logged
        if following is not None:
            np.testing.assert_array_equal(sampled[key][5], following)
    assert len(worker.get_metrics()) >= THREADS * EPISODES


class GuessingEnv(ExternalEnv):
    """Three threads of episodes of five steps; the reward is 1 for the action that the observation shows."""

    def __init__(self, context=None):
        super().__init__(OBS_SPACE, ACTION_SPACE)

    def run(self):
        in_threads(3, self.play)

    def play(self, number):
        random = np.random.default_rng(number)
        while True:
            episode = self.start_episode()
            for _ in range(5):
                obs = np.array([number, 0, random.random()], np.float32)
                action = self.get_action(episode, obs)
                self.log_returns(episode, float(action == action_for(obs)))
            self.end_episode(episode, obs)


CONFIG = {"train_batch_size": 60, "sgd_minibatch_size": 30, "model": {"fcnet_hiddens": [8]}, "seed": 0}


def test_ppo_trains_and_evaluates_and_leaves_no_thread():
    before = threading.active_count()
    with PPOTrainer(env=GuessingEnv, config=CONFIG) as trainer:
        for iteration in range(3):
            result = trainer.train()
            assert result["timesteps_total"] >= 60 * (iteration + 1)
            assert result["episode_len_mean"] == 5
        # Running episodes continue and are counted from there: none is longer than a whole one.
        assert trainer.evaluate(num_episodes=7)["episode_len_mean"] <= 5
        assert trainer.train()["episode_len_mean"] <= 5
    until(lambda: threading.active_count() <= before)


def test_each_worker_plays_its_own_copy():
    """A creator partitions a log by its worker's index."""

    def make(context):
        env = Scripted(lambda env: None)
        env.mine = list(range(7))[context.worker_index - 1 :: context.num_workers]
        return env

    for index, mine in ((1, [0, 3, 6]), (2, [1, 4]), (3, [2, 5])):
        config = {"num_envs_per_worker": 2}  # which counts for no external environment
        worker = RolloutWorker(make, NumberedPolicy, config=config, worker_index=index, num_workers=3)
        assert worker.foreach_env(lambda env: env.mine) == [mine]
        worker.stop()


@pytest.mark.parametrize("shapes", [{"x": 3, "y": 3}, {"x": 3, "y": 5}], ids=["equal spaces", "different spaces"])
def test_values_are_checked_in_the_calling_thread_where_policies_define_the_spaces(shapes):
    """The sampler continues, and gets none of the wrong values."""
    checked = threading.Event()

    def script(env):
        obs, action = {agent: np.zeros(n) for agent, n in shapes.items()}, {"x": 1, "y": 1}
        nan = {**obs, "y": np.full(shapes["y"], np.nan)}
        env.start_episode("e")
        env.log_action("e", obs, action)
        refused(EnvError, env.get_action, "e", {"y": np.zeros(4)}, says="wrong shape...'e', agent 'y'...(4,)")
        refused(EnvError, env.log_action, "e", nan, action, says="NaN...'e', agent 'y'")
        refused(EnvError, env.log_action, "e", obs, {"x": 1, "y": 5}, says="not in the action space...agent 'y'")
        refused(EnvError, env.end_agents, "e", {"y": np.zeros(4)}, says="wrong shape...agent 'y'")
        refused(EnvError, env.end_episode, "e", nan, says="NaN...agent 'y'")
        env.end_episode("e", {**obs, "of no policy": None})
        checked.set()
        while True:
            env.start_episode("e")
            env.get_action("e", obs)
            env.end_episode("e", {})

    policies = {agent: (NumberedPolicy, spaces.Box(-9, 9, (n,)), ACTION_SPACE, {}) for agent, n in shapes.items()}
    worker = RolloutWorker(
        lambda context: ScriptedAgents(script, None, None),
        policies,
        policy_mapping_fn=lambda agent: {"x": "x", "y": "y"}[agent],
        config={"rollout_fragment_length": 6, "accept_off_policy_actions": True},
    )
    assert worker.sample()["y"]["obs"].shape == (6, shapes["y"])
    assert checked.is_set()
    worker.stop()


def test_the_end_of_an_agent_is_a_part_of_the_step_that_follows():
    """Agents act three times in each episode: it has three steps, as in a `MultiAgentEnv`."""

    def script(env):
        while True:
            episode = env.start_episode()
            env.get_action(episode, {"x": np.zeros(3), "y": np.zeros(3)})
            env.end_agents(episode, {"y": np.ones(3)})
            env.get_action(episode, {"x": np.zeros(3)})
            env.end_agents(episode, {"x": np.ones(3)})
            env.get_action(episode, {"x": np.zeros(3), "z": np.zeros(3)})
            env.end_agents(episode, {"x": None})
            env.end_agents(episode, {"z": np.ones(3)}, truncated=True)
            env.end_episode(episode, {})

    worker = worker_of(ScriptedAgents(script), None, Steps, rollout_fragment_length=9)
    batch = worker.sample()
    rows = sorted(zip(batch["eps_id"].tolist(), batch["agent_id"].tolist(), batch["t"].tolist(), strict=True))
    assert rows == [(e, *row) for e in range(3) for row in (("x", 0), ("x", 1), ("x", 2), ("y", 0), ("z", 2))]
    assert batch.env_steps == 9
    assert [episode.length for episode in worker.get_metrics()] == [3, 3, 3]
    worker.stop()


def test_the_info_of_an_agents_end_is_not_replaced_by_its_return_in_the_same_step():
    def script(env):
        while True:
            episode = env.start_episode()
            env.get_action(episode, {"x": np.zeros(3)})
            env.log_returns(episode, {"x": 1.0}, {"x": {"score": 7}})
            env.end_agents(episode, {"x": None})
            env.get_action(episode, {"x": np.zeros(3)})
            env.end_episode(episode, {})

    infos = []

    class Keep(Callbacks):
        def on_episode_step(self, *, worker, base_env, episode):
            infos.append(dict(episode.last_infos))

    worker = worker_of(ScriptedAgents(script), None, rollout_fragment_length=2, callbacks=Keep)
    worker.sample()
    worker.stop()
    assert infos == [{"x": {"score": 7}}, {"x": {}}]
