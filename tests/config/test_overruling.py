"""A key that is given and would have no effect is refused, however it is given; values from before may be overruled."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import Field

from rollax.algorithms.apex import ApexDQNConfig
from rollax.algorithms.dqn import DQNConfig, DQNPolicy
from rollax.algorithms.ppo import PPOConfig
from rollax.algorithms.rainbow import RainbowConfig
from rollax.algorithms.registry import ALGORITHMS, get_trainer_class
from rollax.algorithms.sac import SACConfig
from rollax.algorithms.td3 import TD3Config
from rollax.config import SchedulePoints, TrainerConfig, resolve_config
from rollax.config.overruling import refuse_first_values
from rollax.errors import ConfigError

POINTS = ((0, 0.5), (10, 0.25))


class OwnConfig(TrainerConfig):
    weight: float = Field(default=1.0, description="of a loss of one's own")
    weight_schedule: SchedulePoints | None = Field(default=None, description="[[timestep, weight], ...]")


CASES = [
    (PPOConfig, {"lr_schedule": POINTS}, {"lr": 1e-5}),
    (PPOConfig, {"clip_param_schedule": POINTS}, {"clip_param": 0.1}),
    (PPOConfig, {"entropy_coeff_schedule": POINTS}, {"entropy_coeff": 0.0}),  # its default is given too
    (DQNConfig, {"epsilon_schedule": POINTS}, {"initial_epsilon": 0.5}),
    (DQNConfig, {"epsilon_schedule": POINTS}, {"final_epsilon": 0.5}),
    (DQNConfig, {"epsilon_schedule": POINTS}, {"epsilon_timesteps": 5}),
    (DQNConfig, {"noisy": True}, {"epsilon_schedule": POINTS}),
    (RainbowConfig, {}, {"final_epsilon": 0.5}),  # it is noisy unless something else is said
    (ApexDQNConfig, {"noisy": True}, {"worker_epsilon": 0.5}),
    (TD3Config, {"noise_scale_schedule": POINTS}, {"noise_scale": 0.5}),
    (TD3Config, {"actor_lr": 0.1, "critic_lr": 0.1}, {"lr": 0.5}),
    (TD3Config, {"actor_lr": 0.1, "critic_lr": 0.1}, {"lr_schedule": POINTS}),
    (SACConfig, {"actor_lr": 0.1, "critic_lr": 0.1, "alpha_lr": 0.0}, {"lr": 0.5}),
    (OwnConfig, {"weight_schedule": POINTS}, {"weight": 0.5}),
]


@pytest.mark.parametrize(("config_class", "stronger", "weaker"), CASES)
def test_both_given(config_class: Any, stronger: dict[str, Any], weaker: dict[str, Any]):
    key, fix = next(iter(weaker)), "|".join(f"{name}=(None|False)" for name in stronger or ["noisy"])
    message = rf"^{key} has no effect(.|\n)*config key '{key}'(.|\n)*mend: +set .*({fix}) as well, or leave {key} out"
    before = config_class(**stronger)
    stored = json.loads(json.dumps(before.to_json()))
    for give in (
        lambda: config_class(**stronger, **weaker),
        lambda: resolve_config(config_class, {**stronger, **weaker}),
        lambda: before.changed(**weaker),
        lambda: config_class.from_json(stored, **weaker),
        lambda: config_class(**stronger, evaluation_config=weaker),
    ):
        with pytest.raises(ConfigError, match=message.replace("^", "")):
            give()
    unset = {name: None if value is not True else False for name, value in (stronger or {"noisy": True}).items()}
    assert getattr(before.changed(**unset, **weaker), key) == next(iter(weaker.values()))


def test_what_is_given_later_overrules_what_was_given_before():
    config = PPOConfig(lr=0.25)
    scheduled = config.changed(lr_schedule=POINTS)
    assert scheduled.schedule("lr")(0) == 0.5
    stored = PPOConfig.from_json(json.loads(json.dumps(scheduled.to_json())))
    # The value from before is kept, and has an effect again where the schedule goes.
    assert [c.changed(lr_schedule=None).schedule("lr")(0) for c in (scheduled, stored)] == [0.25, 0.25]
    assert stored.changed(gamma=0.5).for_evaluation().lr_schedule == POINTS
    assert TD3Config(lr=0.5, actor_lr=0.1).lr == 0.5  # the critics' still


def test_in_the_spec_of_a_policy():
    with pytest.raises(ConfigError, match="lr has no effect"):
        PPOConfig(lr_schedule=POINTS).for_policy(PPOConfig, lr=0.5)
    with pytest.raises(ConfigError, match="lr has no effect"):
        PPOConfig(lr_schedule=POINTS).for_policy(DQNConfig, lr=0.5)
    for_policy = PPOConfig(lr=0.5).changed(lr_schedule=POINTS).for_policy(DQNConfig, gamma=0.5)
    assert (for_policy.schedule("lr")(0), for_policy.gamma) == (0.5, 0.5)


def test_a_restored_config_gives_policies_of_other_algorithms_what_it_gave_them():
    config = PPOConfig(gamma=0.5)
    restored = PPOConfig.from_json(json.loads(json.dumps(config.to_json())), seed=1)
    assert restored.model_fields_set == {"gamma", "seed"}
    for one in (config, restored, restored.changed(explore=False)):
        of_policy = one.for_policy(DQNPolicy.config_class)
        assert (of_policy.gamma, of_policy.lr) == (0.5, DQNConfig().lr)


def test_a_custom_model_overrules_the_default_layers():
    model = {"custom_model": "a:Model", "fcnet_hiddens": (8,)}
    with pytest.raises(ConfigError, match=r"fcnet_hiddens has no effect(.|\n)*'model.fcnet_hiddens'(.|\n)*a:Model"):
        PPOConfig(model=model)  # pyright: ignore[reportArgumentType]
    PPOConfig(model=model, centralized_critic=True)  # pyright: ignore[reportArgumentType]  whose layers they are
    PPOConfig(model={"custom_model": "a:Model", "max_seq_len": 5})  # pyright: ignore[reportArgumentType]


def test_first_values():
    refuse_first_values(PPOConfig(kl_coeff=0.5), ("kl_coeff",), PPOConfig().to_json(), "")  # which was 0
    changed = DQNConfig(exploration="ParameterNoise", parameter_noise=0.5)
    refuse_first_values(changed, ("exploration", "parameter_noise"), DQNConfig().to_json(), "")
    with pytest.raises(ConfigError, match="parameter_noise has no effect"):
        refuse_first_values(changed, ("parameter_noise",), changed.changed(parameter_noise=0.1).to_json(), "")
    stored = SACConfig().to_json()
    refuse_first_values(SACConfig(initial_alpha=1.0), ("initial_alpha",), stored, "here")
    refuse_first_values(SACConfig(initial_alpha=0.5), (), stored, "here")
    with pytest.raises(ConfigError, match=r"initial_alpha has no effect(.|\n)*for here\n.*0.5\n.*1.0"):
        refuse_first_values(SACConfig(initial_alpha=0.5), ("initial_alpha",), stored, "here")


def test_every_rule_names_fields():
    for name in ALGORITHMS:
        config_class = get_trainer_class(name).config_class
        for base in config_class.__mro__:
            for stronger, weaker in vars(base).get("overrules", {}).items():
                assert {*stronger, *weaker} <= config_class.model_fields.keys()
            assert {*vars(base).get("first_values", {})} <= config_class.model_fields.keys()
