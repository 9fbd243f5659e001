"""Parameter noise: acting parameters, new directions, and adaptation of σ; numbers by hand."""

import math

import numpy as np
import pytest
from gymnasium import spaces

from rollax import CheckpointError, Fragment, SampleBatch
from rollax.algorithms.dqn import DQN
from rollax.policy.exploration.epsilon_greedy import ValueExploration
from rollax.policy.exploration.parameter_noise import (
    ParameterNoise,
    action_distance,
    epsilon_distance,
    softmax_distance,
)

PARAMS = {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.zeros(3, np.float32)}


def noise_with(distance=0.0, limit=1.0, sigma=0.1):
    greedy = ValueExploration(spaces.Discrete(3))
    return ParameterNoise(greedy, lambda values, perturbed: distance, lambda timestep: limit, sigma)


def rows(count, trajectories=1, ended=0):
    over = np.zeros(count, bool)
    over[:ended] = True
    columns = {"terminateds": over, "truncateds": np.zeros(count, bool)}
    return SampleBatch({"trajectory_id": np.arange(count) % trajectories, **columns})


def acted(noise, seed=0, params=None):
    found = noise.acting_params(PARAMS if params is None else params, np.random.default_rng(seed))
    return {name: np.asarray(value) for name, value in found.items()}


class TestDistances:
    def test_softmax(self):
        # Row 0: p = (¼, ¾), q = (½, ½): ¼ ln ½ + ¾ ln 3/2. Row 1: the same values moved by 5: 0.
        values = np.log(np.array([[1.0, 3.0], [2.0, 2.0]]))
        perturbed = np.log(np.array([[1.0, 1.0], [2.0, 2.0]])) + np.array([[0.0], [5.0]])
        expected = (0.25 * math.log(0.5) + 0.75 * math.log(1.5)) / 2
        assert softmax_distance(values, perturbed) == pytest.approx(expected)

    @pytest.mark.parametrize("masked", [-1e30, -math.inf])
    def test_invalid_actions_are_excluded(self, masked):
        values = np.array([[0.0, 1.0, masked]], np.float32)
        perturbed = np.array([[1.0, 0.0, masked]], np.float32)
        assert softmax_distance(values, perturbed) == pytest.approx(softmax_distance(values[:, :2], perturbed[:, :2]))

    def test_limit(self):
        assert epsilon_distance(0.0, 4) == 0.0
        assert epsilon_distance(1.0, 4) == pytest.approx(math.log(4))
        assert epsilon_distance(0.5, 2) == pytest.approx(-math.log(0.75))

    def test_actions(self):
        # Differences 3 and 4, and none: √((9 + 16 + 0 + 0) / 4)
        assert action_distance(np.zeros((2, 2)), np.array([[3.0, 4.0], [0.0, 0.0]])) == pytest.approx(2.5)


class TestAdaptation:
    @pytest.mark.parametrize(("distance", "factor"), [(0.5, 1.01), (1.0, 1.01), (1.5, 1 / 1.01)])
    def test_sigma_follows_the_distance_every_50_steps(self, distance, factor):
        noise = noise_with(distance)
        acted(noise)
        noise.after_fragment(rows(120), PARAMS, lambda params: None, 0)
        assert noise.sigma == pytest.approx(0.1 * factor**2)  # 20 steps remain
        noise.after_fragment(rows(29), PARAMS, lambda params: None, 0)
        assert noise.sigma == pytest.approx(0.1 * factor**2)
        noise.after_fragment(rows(1), PARAMS, lambda params: None, 0)
        assert noise.sigma == pytest.approx(0.1 * factor**3)

    def test_distance_uses_the_acting_parameters(self):
        seen = []
        noise = noise_with()
        perturbed = acted(noise)
        noise.after_fragment(rows(50), PARAMS, lambda params: seen.append(params), 0)
        np.testing.assert_array_equal(seen[0]["kernel"], PARAMS["kernel"])
        np.testing.assert_allclose(seen[1]["kernel"], perturbed["kernel"])

    def test_limit_depends_on_the_timestep(self):
        noise = ParameterNoise(noise_with().inner, lambda a, b: 0.5, lambda timestep: 1.0 - timestep / 100, 0.1)
        acted(noise)
        noise.after_fragment(rows(50), PARAMS, lambda params: None, 0)
        noise.after_fragment(rows(50), PARAMS, lambda params: None, 80)
        assert noise.sigma == pytest.approx(0.1)

    def test_greedy_actions_do_not_change_sigma(self):
        noise = noise_with()
        noise.after_fragment(rows(500), PARAMS, lambda params: None, 0)
        assert noise.sigma == 0.1


class TestDirection:
    def test_direction_is_normal_and_scaled(self):
        params = {"kernel": np.full((200, 300), 7.0, np.float32)}
        off = (acted(noise_with(sigma=0.5), params=params)["kernel"] - 7.0) / 0.5
        assert abs(off.mean()) < 0.02
        assert abs(off.std() - 1.0) < 0.02

    def test_direction_is_constant_while_parameters_change(self):
        noise = noise_with()
        first = acted(noise)
        moved = {name: value + 1.0 for name, value in PARAMS.items()}
        second = acted(noise, seed=1, params=moved)
        for name in PARAMS:
            np.testing.assert_allclose(second[name] - moved[name], first[name] - PARAMS[name], atol=1e-6)

    @pytest.mark.parametrize(
        ("fragments", "changes"), [([(3, 0)], False), ([(3, 1)], False), ([(4, 1), (3, 1)], True), ([(2, 1)], True)]
    )
    def test_direction_changes_when_as_many_trajectories_have_ended_as_continue(self, fragments, changes):
        # Of 3 trajectories with one that ended two continue, of 4 with one that ended three, of 2 one.
        noise = noise_with()
        first = acted(noise)
        for trajectories, ended in fragments:
            noise.after_fragment(rows(12, trajectories, ended), PARAMS, lambda params: None, 0)
        assert np.array_equal(acted(noise, seed=5)["kernel"], first["kernel"]) != changes

    def test_state_is_restored(self):
        noise, other = noise_with(), noise_with(sigma=3.0)
        acted(noise)
        noise.after_fragment(rows(170, 9, 2), PARAMS, lambda params: None, 0)
        other.set_state(noise.get_state())
        assert other.get_state() == noise.get_state()
        np.testing.assert_array_equal(acted(other, seed=8)["kernel"], acted(noise)["kernel"])
        for each in (noise, other):
            each.after_fragment(rows(30, 9, 5), PARAMS, lambda params: None, 0)
        assert other.get_state() == noise.get_state()

    @pytest.mark.parametrize("forged", [{"steps": 2**62}, {"steps": 50}, {"sigma": float("inf")}])
    def test_a_forged_state_is_refused(self, forged):
        noise = noise_with()
        before = noise.get_state()
        with pytest.raises(CheckpointError):
            noise.set_state({**before, **forged})
        assert noise.get_state() == before

    def test_an_integer_as_sigma_is_a_number_of_any_size(self):
        noise = noise_with()
        noise.set_state({**noise.get_state(), "sigma": 2**62})
        assert abs(acted(noise)["kernel"]).max() > 2.0**60


class TestPolicy:
    def make(self, **options):
        config = {"exploration": "ParameterNoise", "seed": 0, **options}
        if config["exploration"] == "ParameterNoise":
            config.setdefault("parameter_noise", 0.5)
        return DQN.make_policy(spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4), config)

    def test_acts_greedily_with_perturbed_parameters(self):
        policy = self.make()
        obs = np.random.default_rng(0).uniform(-1, 1, (64, 3)).astype(np.float32)
        actions = [policy.compute_actions(obs)[0] for _ in range(2)]
        greedy = policy.compute_actions(obs, explore=False)[0]
        np.testing.assert_array_equal(*actions)
        assert np.count_nonzero(actions[0] != greedy) > 0
        perturbed = policy.exploration.acting_params(policy.params, policy.acting_rng)
        values = policy.split.merge(perturbed, policy.extra)(obs).policy
        np.testing.assert_array_equal(actions[0], np.argmax(values, axis=1))

    def test_scale_is_part_of_the_state(self):
        policy, other = self.make(), self.make(seed=9, parameter_noise=0.1)
        obs = np.random.default_rng(0).uniform(-1, 1, (64, 3)).astype(np.float32)
        policy.compute_actions(obs)
        policy.postprocess_rows(Fragment({**rows(64).to_dict(), "obs": obs}, np.array([63]), {}))
        assert policy.exploration.sigma != 0.5
        other.set_state(policy.get_state())
        assert other.exploration.sigma == policy.exploration.sigma
        np.testing.assert_array_equal(other.compute_actions(obs)[0], policy.compute_actions(obs)[0])

    def test_state_of_another_exploration_is_ignored(self):
        policy, plain = self.make(), self.make(exploration="EpsilonGreedy")
        policy.set_state(plain.get_state())
        plain.set_state(policy.get_state())
        assert policy.exploration.sigma == 0.5
