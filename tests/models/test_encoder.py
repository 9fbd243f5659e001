from collections import OrderedDict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax.core.spaces import stack, zeros
from rollax.errors import SpaceError
from rollax.models.config import ModelConfig
from rollax.models.encoder import Encoder, FlatEncoder, ImageLayout
from rollax.models.images import ImageEncoder

SMALL = ModelConfig(conv_filters=((2, 3, 1),), conv_dense=4)


def encoder_of(space: spaces.Space) -> Encoder:
    return Encoder(space, SMALL, rngs=nnx.Rngs(0))


def image(shape: tuple[int, ...], high: int = 255, dtype: Any = np.uint8) -> spaces.Box:
    return spaces.Box(0, high, shape, dtype)


class TestFeatures:
    def test_every_leaf_kind_by_hand(self):
        space = spaces.Dict(
            {
                "a": spaces.Box(-1, 1, (2,), np.float32),
                "b": spaces.Discrete(3, start=5),
                "c": spaces.MultiDiscrete([2, 3], start=[0, 10]),
                "d": spaces.MultiBinary(2),
                "e": spaces.Tuple([spaces.Box(0, 9, (), np.int64), spaces.Box(0, 100, (1, 2), np.uint8)]),
            }
        )
        arms, grips = np.array([[0.25, -0.5], [1, 2]], np.float32), np.array([[1, 0], [1, 1]], np.int8)
        values = [
            {"a": arms[0], "b": 6, "c": np.array([1, 10]), "d": grips[0], "e": (np.int64(7), np.uint8([[0, 50]]))},
            {"a": arms[1], "b": 5, "c": np.array([0, 12]), "d": grips[1], "e": (np.int64(-3), np.uint8([[100, 25]]))},
        ]
        # a: as it is. b: one-hot from start 5. c: one-hot of 2, then of 3 from start 10. d: as it is.
        # e: an int64 is only cast; uint8 is divided by its bound 100.
        expected = [
            [0.25, -0.5, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 7, 0, 0.5],
            [1, 2, 1, 0, 0, 1, 0, 0, 0, 1, 1, 1, -3, 1, 0.25],
        ]
        encoder = encoder_of(space)
        features = jax.jit(encoder)(stack(space, values))
        assert features.dtype == jnp.float32
        np.testing.assert_allclose(features, expected, rtol=1e-6)
        assert encoder.features == 15
        assert not encoder.images_only

    def test_a_single_flat_leaf_is_unchanged(self):
        obs = jnp.asarray([[1.0, 2.0]])
        assert encoder_of(spaces.Box(-1, 1, (2,), np.float32))(obs) is obs

    def test_discrete_outside_its_range_has_no_category(self):
        np.testing.assert_array_equal(encoder_of(spaces.Discrete(2, start=1))(jnp.asarray([0, 3])), np.zeros((2, 2)))

    def test_multi_discrete_of_any_shape(self):
        space = spaces.MultiDiscrete(np.array([[2, 1], [2, 2]]))
        features = encoder_of(space)(jnp.asarray([[[1, 0], [0, 1]]]))
        np.testing.assert_array_equal(features, [[0, 1, 1, 1, 0, 0, 1]])

    def test_float64_and_bool_become_float32(self):
        space = spaces.Tuple([spaces.Box(-1, 1, (1,), np.float64), image((2,), 1, np.bool_)])
        features = jax.jit(encoder_of(space))((np.array([[0.5]], np.float64), np.array([[True, False]])))
        assert features.dtype == jnp.float32
        np.testing.assert_array_equal(features, [[0.5, 1, 0]])

    def test_the_order_of_equal_dict_spaces_does_not_matter(self):
        parts: dict[str, spaces.Space] = {"b": spaces.Box(-1, 1, (1,)), "a": spaces.Box(-1, 1, (1,))}
        obs = {"a": jnp.asarray([[1.0]]), "b": jnp.asarray([[2.0]])}
        for space in (spaces.Dict(OrderedDict(parts)), spaces.Dict(parts)):
            np.testing.assert_array_equal(encoder_of(space)(obs), [[1, 2]])


class TestMasks:
    def test_top_level_mask_and_embeddings_are_no_features(self):
        box = spaces.Box(-1, 1, (2,), np.float32)
        space = spaces.Dict(obs=box, action_mask=spaces.MultiBinary(3), avail_actions=spaces.Box(-1, 1, (3, 4)))
        obs = zeros(space, 2)
        encoder = encoder_of(space)
        assert encoder.features == 2
        np.testing.assert_array_equal(encoder(obs), encoder({**obs, "action_mask": obs["action_mask"] + 1}))

    def test_deeper_keys_of_that_name_are_features(self):
        inner = spaces.Dict(action_mask=spaces.MultiBinary(3), x=spaces.Discrete(2))
        assert encoder_of(spaces.Dict(obs=inner)).features == 5

    def test_only_a_mask_is_refused(self):
        with pytest.raises(SpaceError, match="The observation has no features"):
            encoder_of(spaces.Dict(action_mask=spaces.MultiBinary(3)))


class TestImages:
    @pytest.mark.parametrize(
        ("shape", "expected"),
        [
            ((84, 84, 4), (84, 84, 4)),
            ((4, 84, 84), (84, 84, 4)),
            ((7, 7, 3), (7, 7, 3)),
            ((3, 7, 7), (7, 7, 3)),
            ((10, 10, 1), (10, 10, 1)),
            ((10, 10, 20), (10, 10, 20)),
            ((20, 10, 10), (10, 10, 20)),
            ((210, 160, 3), (210, 160, 3)),
            ((3, 210, 160), (210, 160, 3)),
            ((6, 6, 6), (6, 6, 6)),
            ((84, 84), (84, 84, 1)),
            ((4, 96, 80, 3), (96, 80, 12)),
            ((4, 3, 96, 80), (96, 80, 12)),
        ],
    )
    def test_height_width_channels(self, shape, expected):
        layout = ImageLayout.of(image(shape))
        assert layout is not None
        assert layout.shape == expected

    @pytest.mark.parametrize(
        "space", [image((3, 3, 2)), image((128,)), image((84, 84), 1, np.float32), image((2, 8, 8, 3), 1, np.float32)]
    )
    def test_other_boxes_are_flattened(self, space):
        assert ImageLayout.of(space) is None
        assert encoder_of(space).features == np.prod(space.shape)

    def test_both_orders_give_the_same_pixels(self):
        last = np.random.default_rng(0).integers(0, 256, (2, 7, 6, 3), np.uint8)
        pixels = [
            pixels_of(image((7, 6, 3)), last),
            pixels_of(image((3, 7, 6)), last.transpose(0, 3, 1, 2)),
            pixels_of(image((3, 7, 6, 1)), last.transpose(0, 3, 1, 2)[..., None]),
        ]
        for got in pixels:
            assert got.dtype == jnp.float32
            np.testing.assert_allclose(got, last / 255, rtol=1e-6)

    def test_stacked_color_frames_become_channels(self):
        frames = np.random.default_rng(0).integers(0, 256, (1, 2, 8, 6, 3), np.uint8)
        got = pixels_of(image((2, 8, 6, 3)), frames)
        np.testing.assert_allclose(got, np.concatenate([frames[:, 0], frames[:, 1]], axis=-1) / 255, rtol=1e-6)

    @pytest.mark.parametrize(
        ("space", "value", "expected"),
        [
            (image((5, 5, 1)), 255, 1),
            (image((5, 5, 1), 10), 5, 0.5),
            (image((5, 5, 1), 255, np.float32), 51, 0.2),
            (image((5, 5, 1), 1, np.float32), 0.25, 0.25),
            (spaces.Box(-1, 1, (5, 5, 1), np.float32), -0.5, 0.25),
            (spaces.Box(-np.inf, np.inf, (5, 5, 1), np.float32), 33, 33),
            (spaces.Box(-3e38, 3e38, (5, 5, 1), np.float32), 33, 33),
            (image((5, 5, 1), 1, np.bool_), True, 1),
        ],
    )
    def test_pixels_are_scaled_from_the_bounds_to_the_unit_interval(self, space, value, expected):
        column = np.full((1, *space.shape), value, space.dtype)
        np.testing.assert_allclose(pixels_of(space, column), np.full(column.shape, expected), rtol=1e-6)

    def test_floats_are_scaled_as_the_bytes_of_the_space_are(self):
        column = np.full((1, 5, 5, 1), 51, np.float32)
        np.testing.assert_allclose(pixels_of(image((5, 5, 1)), column), column / 255, rtol=1e-6)
        ram = FlatEncoder(image((4,)))
        np.testing.assert_allclose(ram(jnp.full((1, 4), 51.0)), np.full((1, 4), 0.2), rtol=1e-6)

    def test_images_only(self):
        assert encoder_of(spaces.Tuple([image((5, 5, 1)), image((7, 7, 3))])).images_only
        assert not encoder_of(spaces.Tuple([image((5, 5, 1)), spaces.Discrete(2)])).images_only


def pixels_of(space: spaces.Box, column: np.ndarray) -> jax.Array:
    layout = ImageLayout.of(space)
    assert layout is not None
    return ImageEncoder(space, layout, SMALL, rngs=nnx.Rngs(0)).pixels(jnp.asarray(column))


def test_error_of_an_unsupported_leaf_has_its_place():
    with pytest.raises(SpaceError, match=r"where: +observation_space, key 'x', element 1"):
        encoder_of(spaces.Dict(x=spaces.Tuple([spaces.Discrete(2), spaces.Text(3)])))


def test_integers_beyond_those_of_jax_are_refused():
    with pytest.raises(SpaceError, match=r"need more than 32 bits(.|\n)*key 'time'"):
        Encoder(spaces.Dict(time=spaces.Box(0, 2**40, (1,), np.int64)), ModelConfig(), rngs=nnx.Rngs(0))
    for dtype in (np.int64, np.uint64):  # without bounds of its own
        limits = np.iinfo(dtype)
        Encoder(spaces.Box(limits.min, limits.max, (1,), dtype), ModelConfig(), rngs=nnx.Rngs(0))
