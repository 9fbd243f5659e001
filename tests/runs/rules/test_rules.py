"""Each rule about logged statistics, on a run that is ill in its way, and on one that is well."""

import pytest
from gymnasium import spaces

from rollax.runs.rules.finding import Finding, findings_of, name_of
from rollax.runs.rules.table import RULES
from tests.runs.rules.runs import each_case, made

BY_NAME = {name_of(rule): rule for rule in RULES}
LEVEL = {"score": 20.0}
ENDLESS = {"score": None, "episode_len_mean": None}
EPSILON = {"epsilon_timesteps": 20_000, "initial_epsilon": 1.0}
FALLING = [[0, 1], [1, 0]]
SAMPLES, LEARNS = {"sample_s": 9.5, "learn_s": 0.5}, {"sample_s": 0.5, "learn_s": 9.5}
UNEXPLAINED = {"vf_explained_var": 0.1}
UPDATES = {"num_updates": lambda i: i}
SEVERAL_BATCHES = {"train_batch_size": 500, "timesteps_per_iteration": 10_000}


def large(i):
    return 1e4 + i


BOX = {"default_policy": spaces.Box(-1, 1, (2,))}
DISCRETE = {"default_policy": spaces.Discrete(8)}
MIXED = {"default_policy": spaces.Dict({"move": spaces.Box(-1, 1, (2,)), "jump": spaces.Discrete(2)})}

# rule -> (ill, severity, config key), and runs that are well, the last of them near the limit
CASES = {
    "explained-variance": [
        # values of 20 to 50, with an error of 10
        (made(30, {"vf_explained_var": -0.1, "vf_loss": 100.0}), "note", "vf_loss_coeff"),
        (made(30, {"vf_explained_var": -0.1, "vf_loss": 100.0}, **LEVEL), "warning", "vf_loss_coeff"),
        (made(30, {"vf_explained_var": -0.1, "vf_loss": 100.0}, config={"gamma": 0.0}, **LEVEL), "warning", "gamma"),
        (made(30, {"vf_explained_var": -0.1, "vf_loss": 100.0}, config={"lr": 0.1}, **LEVEL), "warning", "lr"),
        (made(30, {"vf_explained_var": -0.1, "vf_loss": 100.0}, config={"lr": 1e-7}, **LEVEL), "warning", "lr"),
        made(30, {"vf_explained_var": 0.1, "vf_loss": 100.0}),
        made(30, {"vf_explained_var": -0.1, "vf_loss": 0.01}),  # returns that hardly vary
        made(12, {"vf_explained_var": -0.1, "vf_loss": 100.0}),  # still early
        made(30, {"vf_explained_var": lambda i: -1.0 if i < 15 else 0.5, "vf_loss": 100.0}),
    ],
    "kl-divergence": [
        (made(10, {"kl": 0.2}), "warning", "lr"),
        (made(10, {"kl": 0.2}, config={"target_kl": None}), "warning", "target_kl"),
        (made(10, {"kl": 2.0}), "problem", "lr"),
        (made(6, {"kl": lambda i: 50.0 if i == 1 else 0.0}), "problem", "lr"),
        (made(60, {"kl": lambda i: 5.0 if i in (30, 40, 50) else 0.01}), "warning", "lr"),
        made(60, {"kl": lambda i: 5.0 if i in (30, 40) else 0.01}),
        made(10, {"kl": 0.09}),
        made(10, {"entropy": 1.0}),
    ],
    "kl-target": [
        (made(10, {"kl": 0.06}, config={"kl_coeff": 0.2, "kl_target": 0.01}), "warning", "lr"),
        made(10, {"kl": 0.04}, config={"kl_coeff": 0.2, "kl_target": 0.01}),
        made(10, {"kl": 0.06}, config={"kl_coeff": 0.0, "kl_target": 0.01}),
        made(10, {"kl": 0.06}, config={"kl_coeff": 1.0, "kl_target": 0.01, "use_kl_loss": False}),  # APPO without it
    ],
    "clipped-share": [
        (made(10, {"clip_fraction": 0.5}), "warning", "lr"),
        made(10, {"clip_fraction": 0.3}),
    ],
    "entropy-collapsed": [
        (made(10, {"entropy": lambda i: 0.7 if i < 4 else 0.01}, **LEVEL), "problem", "lr"),
        # log 8 = 2.08 is the entropy of random actions; the first update has left 0.05 of it
        (made(10, {"entropy": 0.05}, action_spaces=DISCRETE, **LEVEL), "problem", "lr"),
        # two standard deviations of a hundredth: 2 log 0.01 = -9.2
        (made(10, {"entropy": lambda i: 2.8 - 9.2 * (i > 5)}, action_spaces=BOX, **LEVEL), "problem", "lr"),
        made(10, {"entropy": lambda i: 2.8 - 5 * (i > 5)}, action_spaces=BOX, **LEVEL),
        (made(10, {"entropy": lambda i: 3.5 - 10 * (i > 5)}, action_spaces=MIXED, **LEVEL), "problem", "lr"),
        made(10, {"entropy": lambda i: 3.5 - 5 * (i > 5)}, action_spaces=MIXED, **LEVEL),
        made(10, {"entropy": -6.2}, action_spaces=BOX, **LEVEL),  # small standard deviations, as at the beginning
        made(10, {"entropy": lambda i: 0.7 if i < 4 else 0.01}),  # the score rises
        made(10, {"entropy": lambda i: 0.7 if i < 4 else 0.1}, **LEVEL),
        made(10, {"entropy": lambda i: 0.7 if i < 4 else 0.01, "alpha": 0.1}, **LEVEL),  # as the temperature wants it
    ],
    "entropy-stays": [
        (made(30, {"entropy": 0.693}, **LEVEL), "warning", "lr"),
        (made(30, {"entropy": 0.693}, config={"entropy_coeff": 1.0}, **LEVEL), "warning", "entropy_coeff"),
        (made(30, {"entropy": lambda i: 2.8 + 0.3 * i}, action_spaces=BOX, **LEVEL), "warning", "lr"),
        made(30, {"entropy": lambda i: 2.8 - 0.1 * i}, action_spaces=BOX, **LEVEL),
        made(30, {"entropy": 0.693}),
        made(30, {"entropy": lambda i: 0.693 - 0.01 * i}, **LEVEL),
        made(12, {"entropy": 0.693}, **LEVEL),
        made(30, {"entropy": 0.693}, episodes_this_iter=1, **LEVEL),  # still early
    ],
    "value-loss": [
        # episodes of at most 60: errors of 1000 are impossible, errors of 100 are large
        (made(30, {"vf_loss": 1e6}), "problem", "lr"),
        (made(30, {"critic_loss": 1e6}, config={"critic_lr": 1e-3}), "problem", "critic_lr"),
        made(30, {"vf_loss": 1e4}),
        made(30, {"vf_loss": 1e6}, config={"normalize_rewards": True}),
    ],
    "action-values": [
        (made(30, {"mean_q": 500.0}), "problem", "lr"),
        (made(30, {"mean_q": -500.0}, config={"tau": 0.5}), "problem", "tau"),
        made(30, {"mean_q": 100.0}),
        made(30, {"mean_q": 500.0, "alpha": 1.0, "entropy": 2.0}),  # entropy of 2 for 100 steps
        made(30, {"mean_q": 500.0, "reward_scale": 0.01}),
    ],
    "not-finite": [
        (made(30, {"total_loss": lambda i: None if i > 9 else 1}, config={"grad_clip": 0.5}), "problem", "grad_clip"),
        made(30, {"total_loss": lambda i: None if i < 5 else 1.0}),  # before the first update
        made(  # continued after 10 iterations, with an empty buffer
            30,
            {"total_loss": lambda i: None if 10 < i < 20 else 1.0},
            replay={"num_updates": lambda i: min(i, 10) + max(i - 19, 0)},
        ),
        made(30, {"total_loss": 1.0}),
    ],
    "reward-scale": [
        (made(30, UNEXPLAINED, score=large, config={"normalize_rewards": False}), "warning", "normalize_rewards"),
        (made(30, {"mean_q": 1e6}, score=lambda i: 1e6 + i), "warning", None),
        made(30, {"vf_explained_var": 0.9}, score=large),
        made(30, UNEXPLAINED, score=large, config={"normalize_rewards": True}),
        made(30, UNEXPLAINED),
    ],
    "learning-rate-zero": [
        (made(30, {"cur_lr": 0.0}), "problem", "lr"),
        (made(30, {"cur_lr": lambda i: max(0, 20 - i)}, config={"lr_schedule": FALLING}), "problem", "lr_schedule"),
        made(30, {"cur_lr": lambda i: 30 - i}),  # 0 in the last one alone
        made(30, {"cur_lr": 1e-9}),
    ],
    "short-discount": [
        (made(5, {}, config={"gamma": 0.0}), "warning", "gamma"),
        (made(5, {}, episode_len_mean=10_000.0), "note", "gamma"),
        made(5, {}, episode_len_mean=1000.0),
        made(5, {}, config={"gamma": 0.0}, episode_len_mean=1.0),  # a bandit
    ],
    "exploration-goes-on": [
        # 10,000 steps of the 20,000 in which ε falls from 1 to 0
        (made(10, {}, config={**EPSILON, "final_epsilon": 0.0}), "note", "epsilon_timesteps"),
        made(10, {}, config=EPSILON, ended=False),
        made(10, {}, config={**EPSILON, "epsilon_timesteps": 5000, "final_epsilon": 0.02}),
        made(10, {}, config={**EPSILON, "exploration": "SoftQ"}),
        made(10, {}, score=None, config={**EPSILON, "final_epsilon": 0.0, "input": "data"}),
        made(10, {}, config={**EPSILON, "final_epsilon": 0.0, "worker_epsilon": 0.4}),  # Ape-X
    ],
    "no-updates": [
        (made(10, {}, replay={"num_updates": 0}), "problem", "learning_starts"),
        made(10, {}, replay={"num_updates": 0}, ended=False),
        made(10, {}, replay={"num_updates": 1}),
        made(10, {}),
    ],
    "updates-per-step": [
        (made(20, {}, replay={"num_updates": lambda i: 8000 * i}, **LEVEL), "warning", "training_intensity"),
        (made(20, {}, replay={"num_updates": lambda i: 8000 * i}), "note", "training_intensity"),
        (made(20, {}, replay=UPDATES), "note", "training_intensity"),
        made(20, {}, replay={"num_updates": lambda i: 8000 * i}, config={"critic_model": {"normalization": "layer"}}),
        made(20, {}, replay={"num_updates": lambda i: 8000 * i}, config={"num_critics": 10}),
        made(20, {}, replay={"num_updates": lambda i: 1000 * i}),
        made(20, {}, replay=UPDATES, config={"input": "data"}),
    ],
    "small-replay": [
        (made(20, {}, replay=UPDATES, config={"buffer_size": 400}), "warning", "buffer_size"),
        (made(20, {}, replay=UPDATES, config={"buffer_size": 400}, episode_len_mean=9.0), "warning", "buffer_size"),
        made(20, {}, replay=UPDATES, config={"buffer_size": 600}),
        made(20, {}, replay=UPDATES, config={"buffer_size": 100_000}, episode_len_mean=50_000.0),
    ],
    "old-samples": [
        (made(20, {}, queue={"dropped_steps": 500}), "warning", "num_workers"),
        (made(20, {}, queue={"dropped_steps": 500}, config={"max_policy_lag": 2}), "warning", "max_policy_lag"),
        (made(20, {}, queue={"policy_lag_mean": 12.0}), "note", "num_workers"),
        made(20, {}, queue={"dropped_steps": 200, "policy_lag_mean": 3.0}),
    ],
    "score-fell": [
        # from 20 to 220, and back to 100 for 20 iterations
        (made(60, {}, score=lambda i: 20 + 5 * i if i <= 40 else 100.0), "warning", "lr"),
        made(60, {}, score=lambda i: 20 + 5 * i if i <= 40 else 150.0),
        made(42, {}, score=lambda i: 20 + 5 * i if i <= 40 else 100.0),  # for two iterations
        made(60, {}, score=lambda i: 20.0 + i % 2),
    ],
    "evaluation-is-worse": [
        (made(30, {}, evaluation=lambda i: 20.0 if i % 5 == 0 else None), "warning", "evaluation_config"),
        made(30, {}, evaluation=lambda i: 15.0 + i if i % 5 == 0 else None),
        made(30, {}, evaluation=500.0),
        made(30, {}, evaluation=lambda i: 0.0 if i > 28 else None),
    ],
    "no-episodes": [
        (made(11, {}, **ENDLESS), "warning", None),
        (made(10, {}, **ENDLESS), "note", None),
        (made(11, {}, **ENDLESS, config={"num_envs_per_worker": 2}), "note", None),
        (made(11, {}, **ENDLESS, config={"num_envs_per_worker": 2}, env="Pendulum-v1"), "warning", None),
        made(11, {}, score=lambda i: 1.0 if i == 10 else None),
        made(11, {}, score=None, config={"input": "data"}),
    ],
    "few-episodes": [
        (made(20, {}, episodes_this_iter=lambda i: i % 2, config={"train_batch_size": 64}), "note", "train_batch_size"),
        (made(20, {}, episodes_this_iter=0.5, config={"buffer_size": 100}), "note", "timesteps_per_iteration"),
        (made(20, {}, episodes_this_iter=0.5, config=SEVERAL_BATCHES), "note", "timesteps_per_iteration"),
        made(20, {}, episodes_this_iter=1),
    ],
    "score-flat": [
        (made(40, {}, score=lambda i: 20.0 + i % 2), "note", "lr"),
        made(40, {}),
        made(20, {}, score=20.0),
        made(40, {}, score=20.0, stop={"episode_reward_mean": 20.0}),  # as good as it was meant to be
    ],
    "one-part-takes-the-time": [
        (made(20, {}, timers=SAMPLES), "note", "num_envs_per_worker"),
        (made(20, {}, timers=SAMPLES, config={"num_envs_per_worker": 8}), "note", "num_workers"),
        (made(20, {}, timers=LEARNS, config={"sgd_minibatch_size": 64}), "note", "sgd_minibatch_size"),
        (made(20, {}, timers=LEARNS, config={"training_intensity": 1.0}), "note", "training_intensity"),
        (made(20, {}, timers=LEARNS), "note", None),  # as A2C
        made(20, {}, timers={"sample_s": 1.0, "learn_s": lambda i: 1000.0 if i == 1 else 1.0}),  # compilation
        made(20, {}, timers={"sample_s": 0.0, "learn_s": 1.0}),  # compiled rounds, or recorded data
    ],
}


def test_every_rule_has_cases():
    assert set(CASES) == set(BY_NAME)


@pytest.mark.parametrize(("name", "run", "severity", "key"), each_case(CASES, 3))
def test_a_rule_finds_what_it_is_about(name, run, severity, key):
    (finding,) = findings_of([BY_NAME[name]], run)
    assert (finding.rule, finding.severity, finding.key) == (name, severity, key)


@pytest.mark.parametrize(("name", "run"), each_case(CASES, 1))
def test_a_rule_is_quiet_on_a_run_that_is_well(name, run):
    assert findings_of([BY_NAME[name]], run) == []


def test_a_solved_environment_needs_no_better_value_function():
    """Gymnasium's threshold of CartPole is 475."""
    run = made(30, {"vf_explained_var": -0.1, "vf_loss": 1e4}, score=480.0)
    assert findings_of([BY_NAME["explained-variance"]], run)
    run = made(30, {"vf_explained_var": -0.1, "vf_loss": 1e4}, score=480.0, env="CartPole-v1")
    assert not findings_of([BY_NAME["explained-variance"]], run)


def test_the_number_of_a_flat_score_is_the_one_that_was_compared():
    """The first of 40 scores is 0, the others are 20: the mean of the first tenth is 15."""
    (finding,) = findings_of([BY_NAME["score-flat"]], made(40, {}, score=lambda i: 20.0 if i > 1 else 0.0, spread=80.0))
    assert finding.number == 5.0 < finding.limit


def test_each_policy_makes_the_updates_of_a_run():
    run = made(20, {}, replay={"num_updates": lambda i: 6000 * i}, **LEVEL)
    for result in run.results:
        result["info"]["learner"]["other"] = {}
    (finding,) = findings_of([BY_NAME["updates-per-step"]], run)
    assert finding.number == 6.0


def test_rules_say_nothing_about_a_run_without_numbers():
    assert findings_of(RULES, made(0, {})) == []
    assert findings_of(RULES, made(1, {})) == []


def test_the_worst_findings_come_first():
    found = findings_of(RULES, made(40, {"kl": 0.2, "cur_lr": 0.0}, score=20.0))
    assert [finding.severity for finding in found] == ["problem", "warning", "note"]


def test_a_finding_names_its_policy_unless_there_is_one_only():
    values = {"severity": "note", "what": "", "quantity": "", "number": 1.0, "limit": 2.0, "where": "here"}
    rest = {"key": None, "change": None, "remedy": ""}
    assert "'left', here" in str(Finding(**values, **rest, policy="left"))
    assert "policy" not in str(Finding(**values, **rest, policy="default_policy"))


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_every_rule_names_the_source_of_its_limit(rule):
    assert "\n    Source: " in rule.__doc__
