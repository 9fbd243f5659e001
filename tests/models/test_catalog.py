import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces
from pydantic import ValidationError

from rollax.core.importing import ImportPath, named_by_caller
from rollax.core.spaces import stack, zeros
from rollax.errors import ConfigError, PolicyError, SpaceError
from rollax.models.catalog import make_model
from rollax.models.config import ModelConfig
from rollax.models.networks import ActorCritic
from rollax.models.outputs import Outputs
from tests.policy.small_ppo import Stateful

BOX = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (7, 7, 3), np.uint8)


class TwoLinears(nnx.Module):
    """A custom model that breaks its interface in the way `how`."""

    def __init__(self, observation_space, num_outputs, *, rngs, width=4, how="right"):
        self.width, self.how = width, how
        self.space = observation_space  # users keep it; a Box cannot be hashed
        self.policy = nnx.Linear(observation_space.shape[0], num_outputs, rngs=rngs)
        self.value = nnx.Linear(observation_space.shape[0], 1, rngs=rngs)

    def __call__(self, obs):
        dist_inputs, values = self.policy(obs), self.value(obs)[:, 0]
        wrong = {
            "column of values": lambda: Outputs(dist_inputs, values[:, None]),
            "dist_inputs alone": lambda: dist_inputs,
            "no names": lambda: (dist_inputs, values),
            "no value": lambda: Outputs(dist_inputs),
            "too narrow": lambda: Outputs(dist_inputs[:, 1:], values),
            "mean over the batch": lambda: Outputs(dist_inputs, values.mean()),
            "integers": lambda: Outputs(dist_inputs, values.astype(jnp.int32)),
            "a dict": lambda: Outputs(dist_inputs, {"values": values}),
            "aux without names": lambda: Outputs(dist_inputs, values, aux=[values]),
            "numpy": lambda: Outputs(np.asarray(dist_inputs), values),
            "missing key": lambda: obs["camera"],
        }
        return wrong[self.how]() if self.how in wrong else Outputs(dist_inputs, values)


def custom(model: Any, **custom_model_config: Any) -> nnx.Module:
    config = ModelConfig(custom_model=named_by_caller(model), custom_model_config=custom_model_config)
    return make_model(BOX, spaces.Discrete(5), 5, config, nnx.Rngs(0))


class TestNestings:
    @pytest.mark.short(every=3)
    @pytest.mark.parametrize(
        "space",
        [
            BOX,
            spaces.Box(-1, 1, (), np.float32),
            spaces.Box(-1, 1, (2, 3), np.float64),
            spaces.Box(-1, 1, (2, 3, 2, 2), np.float32),
            spaces.Box(0, 255, (128,), np.uint8),
            IMAGE,
            spaces.Box(0, 255, (3, 7, 7), np.uint8),
            spaces.Box(0, 1, (10, 10, 1), np.float32),
            spaces.Box(0, 255, (84, 84, 4), np.uint8),
            spaces.Box(0, 255, (4, 84, 84), np.uint8),
            spaces.Box(0, 255, (2, 36, 36, 3), np.uint8),
            spaces.Discrete(4),
            spaces.Discrete(4, start=-2),
            spaces.MultiDiscrete([3, 2]),
            spaces.MultiDiscrete(np.array([[3, 2], [2, 2]]), start=np.array([[1, 1], [0, 0]])),
            spaces.MultiBinary(3),
            spaces.MultiBinary([2, 3]),
            spaces.Tuple([BOX]),
            spaces.Tuple([spaces.Discrete(2), IMAGE]),
            spaces.Dict(x=BOX),
            spaces.Dict(x=spaces.Discrete(3), camera=IMAGE, action_mask=spaces.MultiBinary(2)),
            spaces.Dict(x=BOX, avail_actions=spaces.Box(-1, 1, (5, 4)), action_mask=spaces.MultiBinary(5)),
            spaces.Dict(
                a=spaces.Tuple(
                    [spaces.Dict(b=spaces.MultiBinary(2), c=spaces.Tuple([BOX, spaces.MultiDiscrete([2, 2])]))]
                ),
                d=spaces.Dict(e=spaces.Dict(f=IMAGE, g=spaces.Box(0, 1, (6, 8, 1), np.float32))),
            ),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("share", [False, True])
    def test_every_space_gives_outputs_of_the_right_shape(self, space, share):
        config = ModelConfig(vf_share_layers=share, fcnet_hiddens=(8,))
        model = nnx.eval_shape(lambda: make_model(space, spaces.Discrete(5), 5, config, nnx.Rngs(0)))
        dist_inputs, values, *_ = nnx.eval_shape(lambda model: model(zeros(space, 3)), model)
        assert (dist_inputs.shape, dist_inputs.dtype) == ((3, 5), jnp.float32)
        assert (values.shape, values.dtype) == ((3,), jnp.float32)

    def test_samples_of_a_nested_space_give_finite_outputs(self):
        x = spaces.Tuple([spaces.Discrete(3, start=2), BOX])
        space = spaces.Dict(x=x, camera=IMAGE, y=spaces.MultiDiscrete([2, 3]))
        space.seed(0)
        config = ModelConfig(conv_filters=((2, 3, 2),), conv_dense=4)
        model = make_model(space, spaces.Discrete(5), 5, config, nnx.Rngs(0))
        graphdef, state = nnx.split(model)
        forward = jax.jit(lambda state, obs: nnx.merge(graphdef, state)(obs))
        dist_inputs, values, *_ = forward(state, stack(space, [space.sample() for _ in range(4)]))
        assert np.isfinite(dist_inputs).all()
        assert np.isfinite(values).all()
        # The policy head's gain of 0.01 makes the first policy almost uniform.
        assert np.abs(dist_inputs).max() < 0.1 < np.abs(values).max()

    def test_default_is_actor_critic(self):
        model = make_model(BOX, spaces.Discrete(5), 5, ModelConfig(fcnet_hiddens=()), nnx.Rngs(0))
        assert isinstance(model, ActorCritic)

    def test_unsupported_space(self):
        with pytest.raises(SpaceError):
            make_model(spaces.Text(3), spaces.Discrete(5), 5, ModelConfig(), nnx.Rngs(0))


class TestCustomModel:
    def test_class_and_arguments(self):
        model = custom(TwoLinears, width=7)
        assert isinstance(model, TwoLinears)
        assert model.width == 7

    def test_import_path(self):
        # A path in the package, since the name of a test module depends on how the tests are run.
        config = ModelConfig(
            custom_model=ImportPath("rollax.models.networks:ActorCritic"),
            custom_model_config={"config": ModelConfig(fcnet_hiddens=())},
        )
        assert type(make_model(BOX, spaces.Discrete(5), 5, config, nnx.Rngs(0))) is ActorCritic

    @pytest.mark.parametrize(
        ("how", "message"),
        [
            ("column of values", r"returns value of the wrong(.|\n)*got: +value float32\[13, 1\](.|\n)*squeeze"),
            ("dist_inputs alone", r"not return Outputs(.|\n)*got: +float32\[13, 5\]\n"),
            ("no names", r"not return Outputs(.|\n)*got: +tuple of 2(.|\n)*import Outputs"),
            ("no value", r"value of the wrong(.|\n)*return state values too"),
            ("too narrow", r"policy of the wrong(.|\n)*float32\[13, 4\](.|\n)*policy=\[13, 5\]"),
            ("mean over the batch", r"value of the wrong(.|\n)*float32\[\](.|\n)*one row per observation"),
            ("integers", r"value of the wrong(.|\n)*int32\[13\](.|\n)*return floats"),
            ("a dict", r"value of the wrong(.|\n)*got: +value dict"),
            ("aux without names", r"outputs have no names(.|\n)*list of 1"),
            ("numpy", r"failed on a batch(.|\n)*TracerArrayConversionError"),
            ("missing key", r"^The model failed on a batch(.|\n)*where:.*TwoLinears"),
        ],
    )
    def test_broken_interfaces_are_named(self, how, message):
        with pytest.raises(PolicyError, match=message):
            custom(TwoLinears, how=how)

    def test_the_original_error_is_kept(self):
        with pytest.raises(PolicyError) as caught:
            custom(TwoLinears, how="missing key")
        assert isinstance(caught.value.__cause__, TypeError | IndexError)

    @pytest.mark.parametrize(
        ("model", "message"),
        [
            (dict, "The custom model is not a class of Flax NNX modules"),
            ("json:JSONDecoder", "The custom model is not a class of Flax NNX modules"),
            (ImportPath("no colon"), "cannot be imported"),
            ("no_such_module:Model", r"cannot be imported(.|\n)*no_such_module"),
            ("rollax.models.networks:ActorCritik", r"cannot be imported(.|\n)*did you mean 'ActorCritic'"),
        ],
    )
    def test_other_objects_are_refused_as_models(self, model, message):
        with pytest.raises(ConfigError, match=message):
            custom(model)

    def test_unknown_constructor_arguments_are_refused(self):
        with pytest.raises(ConfigError, match=r"cannot be built(.|\n)*'wdith'"):
            custom(TwoLinears, wdith=7)

    def test_errors_inside_the_constructor_are_not_changed(self):
        class Broken(nnx.Module):
            def __init__(self, observation_space, num_outputs, *, rngs):
                raise TypeError("mine")

        with pytest.raises(TypeError, match=r"^mine$"):
            custom(Broken)


def test_checking_does_not_change_the_model():
    model, fresh = custom(Stateful), Stateful(BOX, 5, rngs=nnx.Rngs(0))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), nnx.state(model), nnx.state(fresh)))


class TestConfig:
    @pytest.mark.parametrize(
        "data",
        [
            {"fcnet_hidens": [64]},
            {"fcnet_hiddens": [0]},
            {"fcnet_hiddens": 64},
            {"fcnet_activation": "swish"},
            {"conv_filters": [[32, 8]]},
            {"conv_filters": [[32, [8, 8, 8], 4]]},
            {"conv_filters": [[32, 8, 0]]},
            {"conv_dense": 0},
            {"vf_share_layers": "perhaps"},
            {"custom_model": 3},
            {"use_lstm": True, "use_gru": True},
            {"use_gru": True, "use_attention": True},
            {"use_attention": True, "custom_model": "my.module:Model"},
            {"use_attention": True, "attention_memory": 0},
            {"use_lstm": True, "custom_model": "my.module:Model"},
            {"use_gru": True, "custom_model": "my.module:Model"},
            {"lstm_use_prev_action": True},
            {"lstm_use_prev_reward": True},
            {"use_gru": True, "max_seq_len": 0},
            {"use_lstm": True, "lstm_cell_size": 0},
        ],
        ids=str,
    )
    def test_wrong_keys_and_values_are_refused(self, data):
        with pytest.raises(ValidationError):
            ModelConfig(**data)

    def test_through_json(self):
        config = ModelConfig(conv_filters=((8, (3, 5), 2), (4, 3, 1)), fcnet_hiddens=(), custom_model=ActorCritic)
        data = json.loads(config.model_dump_json())
        assert data["custom_model"] == "rollax.models.networks:ActorCritic"
        assert ModelConfig(**data) == config.model_copy(update={"custom_model": data["custom_model"]})
