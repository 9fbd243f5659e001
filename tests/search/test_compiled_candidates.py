"""Candidates that one compiled call plays for many steps beside those of single steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from rollax import Callbacks, EnvError, JaxEnv, NonFiniteError, Outcome, RolloutWorker
from rollax.rollout.row_sampler import RowSampler
from rollax.search.candidates import CandidatePlayer
from rollax.search.compiled_candidates import CompiledCandidates, candidate_player
from rollax.search.es import ES
from tests.env.jax.worlds import Both, JaxClock
from tests.marks import long_except
from tests.search.search_worlds import StepCounter
from tests.search.searches import assert_same_candidates, request


def worker_of(env, **config) -> RolloutWorker:
    settings = {"num_envs_per_worker": 5, "model": {"fcnet_hiddens": (4,)}, "observation_filter": "NoFilter", "seed": 0}
    return RolloutWorker(env, ES, config={**settings, **config})


def playing(worker: RolloutWorker) -> type:
    return type(candidate_player(worker))


class Walk(JaxEnv):
    """A masked walk of 3 to 99 steps, by the seed, which ends in NaN: nothing after an end may count."""

    observation_space = spaces.Dict(
        {"place": spaces.Box(-np.inf, np.inf, (2,), np.float32), "action_mask": spaces.Box(0, 1, (3,), np.int8)}
    )
    action_space = spaces.Discrete(3)
    broken = "nothing"

    def __init__(self, context):
        self.broken = context.get("broken", self.broken)

    def reset(self, key):
        first, second = jax.random.split(key)
        left = jax.random.randint(first, (), 3, 100)
        state = left, jax.random.normal(second, (2,))
        return state, self._observed(*state)

    def step(self, state, action, key):
        left, place = state
        left, place = left - 1, place + (action - 1) * 0.1 + 0.1 * jax.random.normal(key, (2,))
        over = left == 0
        place = jnp.where(left < 0, jnp.nan, place)
        reward = jnp.where((self.broken == "reward") & (left == 2), jnp.nan, place.sum())
        if self.broken == "obs":
            place = jnp.where(left == 2, jnp.nan, place)
        return Outcome((left, place), self._observed(left, place), reward, terminated=over)

    def _observed(self, left, place):
        mask = jnp.stack([left % 2 == 0, left % 3 != 0, left % 2 == 1])
        if self.broken == "mask":
            mask = mask & (left != 2)
        return {"place": place, "action_mask": mask.astype(jnp.int8)}


CASES = {
    "linear": (Walk, {"model": {"fcnet_hiddens": ()}}, {}),
    "filter": (Walk, {"observation_filter": "MeanStdFilter"}, {"episodes": 2, "shared_starts": False}),
    "nested": (Both, {}, {"sign_rewards": True, "reward_offset": 0.1}),
    "clipped rewards": (JaxClock, {"clip_rewards": 1.5}, {}),
    "noise": ("jax:Pendulum-v1", {"env_config": {"max_episode_steps": 70}}, {"action_noise": 0.3}),
}


@pytest.mark.short("nested")
@pytest.mark.parametrize("case", long_except({"filter", "nested"}, CASES))
def test_returns_lengths_metrics_and_statistics_are_those_of_single_steps(case):
    env, config, settings = case
    compiled, stepped = worker_of(env, **config), worker_of(env, **config, sampler=RowSampler)
    assert (playing(compiled), playing(stepped)) == (CompiledCandidates, CandidatePlayer)
    for _ in range(2):
        ours, theirs = (worker.perform(request(4, **settings)) for worker in (compiled, stepped))
        np.testing.assert_allclose(ours.returns, theirs.returns, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(ours.lengths, theirs.lengths)
        for mine, other in zip(ours.episodes, theirs.episodes, strict=True):
            assert mine.length == other.length
            assert mine.reward == pytest.approx(other.reward, rel=1e-4, abs=1e-4)
        for mine, other in zip(ours.filters, theirs.filters, strict=True):
            assert mine.keys() == other.keys()
            for name in mine:
                np.testing.assert_allclose(mine[name], other[name], rtol=1e-4, atol=1e-5)
    assert bool(ours.filters) == ("observation_filter" in config)


@pytest.mark.long
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_the_number_of_slots_does_not_matter(noise):
    config = {"env_config": {"max_episode_steps": 70}, "observation_filter": "MeanStdFilter"}
    results = []
    for slots in (1, 5, 40):
        worker = worker_of("jax:Pendulum-v1", num_envs_per_worker=slots, **config)
        results.append(worker.perform(request(6, episodes=2, action_noise=noise)))
    for other in results[1:]:
        assert_same_candidates(other, results[0])


class Ends(Callbacks):
    def on_episode_end(self, *, worker, base_env, episode):
        episode.custom_metrics["steps"] = episode.length


@pytest.mark.short("StepCounter-CandidatePlayer")
@pytest.mark.parametrize(("callbacks", "player"), [(Ends, CompiledCandidates), (StepCounter, CandidatePlayer)])
def test_callbacks(callbacks, player):
    worker = worker_of(JaxClock, callbacks=callbacks)
    assert playing(worker) is player
    episodes = worker.perform(request(4)).episodes
    assert [e.custom_metrics["steps"] for e in episodes] == [e.length for e in episodes]


@pytest.mark.long
def test_sampling_and_evaluation_begin_fresh_episodes_afterwards():
    worker, fresh = worker_of(JaxClock), worker_of(JaxClock)
    worker.perform(request(4))
    assert sum(episode.length for episode in worker.evaluate(5)) >= 5
    np.testing.assert_array_equal(worker.perform(request(4)).returns, fresh.perform(request(4)).returns)


@pytest.mark.long
def test_metrics_of_sampling_are_kept():
    worker = worker_of(JaxClock, callbacks=Ends)
    batch = worker.sample()
    worker.perform(request(4))
    metrics = worker.get_metrics()
    assert len(metrics) == np.count_nonzero(batch["terminateds"] | batch["truncateds"]) > 0
    assert [m.custom_metrics["steps"] for m in metrics] == [m.length for m in metrics]


class TestRefused:
    @pytest.mark.short(every=5)
    @pytest.mark.parametrize(
        ("broken", "message"),
        [
            ("obs", r"observation contains NaN or infinity(.|\n)*sub-environment \d"),
            ("mask", "allows no action"),
            ("reward", r"reward(.|\n)*sub-environment \d"),
        ],
    )
    def test_what_is_broken_before_the_end(self, broken, message):
        worker = worker_of(Walk, env_config={"broken": broken})
        with pytest.raises(EnvError, match=message):
            worker.perform(request(4))

    def test_outputs_that_are_not_finite(self):
        worker = worker_of("jax:Pendulum-v1", model={"fcnet_hiddens": ()})
        worker.get_policy().set_weights({"head.kernel": np.full((3, 1), np.inf)})
        with pytest.raises(NonFiniteError, match=r"sub-environment 0, direction 0 of generation 2"):
            worker.perform(request(4))
