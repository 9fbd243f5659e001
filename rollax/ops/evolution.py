"""Evolution strategies and augmented random search of a flat vector of parameters, in NumPy.

Both search along random directions: generation g evaluates θ ± σ ε_k for k < N, and moves θ by a weighted sum of the
ε_k. They differ in the weights and in the step. A direction is a function of (seed, g, k), so that no direction has to
be stored or sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import optax
from numpy.typing import ArrayLike, NDArray

from rollax.core.numbers import is_finite, is_whole
from rollax.errors import ConfigError, NonFiniteError, ShapeError

Shaping = Literal["centered_rank", "sign", "centered_sign_rank", "identity"]
Weights = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""[N, 2] returns of θ + σ ε and of θ - σ ε -> [N] weights of the directions."""

SIGNS: tuple[float, float] = (1.0, -1.0)
"""The sides of a direction, in the order of the columns of returns."""
_DIRECTIONS, _ACTIONS = 0, 1
_ROUNDING = 1e-12  # smaller relative differences of returns count as rounding errors


def random_stream(seed: int, purpose: int, generation: int, index: int, part: int = 0) -> np.random.Generator:
    """Returns a random generator whose numbers depend on the arguments alone.

    Source: Salmon et al. (2011), "Parallel random numbers: as easy as 1, 2, 3": Philox, whose counter holds `part`,
        `index` and `generation`, and whose key is made from (seed, purpose).
    """
    key = np.random.SeedSequence((seed, purpose)).generate_state(2, np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, part, index, generation]))


def direction(seed: int, generation: int, index: int, size: int) -> NDArray[np.float32]:
    """[size] ε_k, a vector of standard normal numbers; k is `index` in the generation."""
    return random_stream(seed, _DIRECTIONS, generation, index).standard_normal(size, np.float32)


def action_stream(seed: int, generation: int, index: int, part: int) -> np.random.Generator:
    """Returns the generator for an episode's actions; `part` is its number among both sides of direction `index`."""
    return random_stream(seed, _ACTIONS, generation, index, part)


def episode_seed(seed: int, generation: int, index: int, part: int) -> int:
    """Returns the seed of an episode of direction `index`; `part` numbers the episodes.

    Both sides of a direction have the same seeds if the caller numbers the episodes of each side from the same `part`.
    """
    return int(np.random.SeedSequence((seed, generation, index, part)).generate_state(1)[0]) >> 1


def centered_ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Returns the ranks of all elements, from -0.5 for the smallest to 0.5 for the largest.

    Source: Salimans et al. (2017), section 2.1, arXiv:1703.03864. Deviations: equal values have the mean of their
        ranks. The authors' code ranks them by position, so that θ moves even if all returns are equal. Values with a
        relative difference below 1e-12 count as equal: sums of the same rewards in another order may differ as much.
        NaN and infinite values, of both signs, share one rank below all other values.

    Args:
        values: any shape, at least two elements.
    """
    flat = np.asarray(values, np.float64).ravel()
    flat = np.where(np.isfinite(flat), flat, -np.inf)
    order = np.argsort(flat, kind="stable")
    lower, upper = flat[order[:-1]], flat[order[1:]]
    with np.errstate(invalid="ignore"):  # infinity - infinity is NaN, for which the comparison is false
        apart = upper - lower > _ROUNDING * np.maximum(np.abs(lower), np.abs(upper))
    apart |= np.isinf(lower) & np.isfinite(upper)
    group = np.concatenate([[0], np.cumsum(apart)])
    counts = np.bincount(group)
    last = np.cumsum(counts) - 1
    ranks = np.empty(flat.size)
    ranks[order] = (last - (counts - 1) / 2)[group]
    return (ranks / (flat.size - 1) - 0.5).reshape(np.shape(values))


def es_weights(returns: ArrayLike, shaping: Shaping = "centered_rank") -> NDArray[np.float64]:
    """[N] weights of the directions in the gradient estimate of evolution strategies.

    Source: Salimans et al. (2017), Algorithm 2, arXiv:1703.03864, as in the authors' code, without the factor 1/σ:
        g = 1/(2N) Σ_k (s(r_k⁺) - s(r_k⁻)) ε_k

    Args:
        returns: [N, 2] returns of both sides of each direction.
        shaping: s. `centered_rank` and `centered_sign_rank` apply `centered_ranks` to all returns. `sign` and
            `identity` use the returns themselves, with weight 0 for a direction with NaN or infinity. For the two modes
            with `sign`, the caller passes sums of the signs of the rewards as returns.
    Raises:
        ShapeError: `returns` is not [N, 2].
        ConfigError: there is no such shaping.
    """
    if shaping not in get_args(Shaping):
        raise ConfigError.unknown("shaping", shaping, get_args(Shaping), "es_weights")
    both = _both_sides(returns)
    if shaping in ("centered_rank", "centered_sign_rank"):
        shaped = centered_ranks(both)
    else:
        shaped = np.where(_finite(both)[:, None], both, 0.0)
    return (shaped[:, 0] - shaped[:, 1]) / shaped.size


def ars_weights(returns: ArrayLike, used: int | None = None) -> NDArray[np.float64]:
    """[N] weights of the directions in the step of augmented random search.

    Source: Mania et al. (2018), Algorithm 2, arXiv:1803.07055, over the b directions with the largest max(r⁺, r⁻):
        g = 1/(b σ_R) Σ_k (r_k⁺ - r_k⁻) ε_k
        σ_R is the population standard deviation of the 2b returns, as in the authors' code.
    Deviations: g = 0 if σ_R is within rounding: below 1e-12 times the largest magnitude of these returns. Among
        directions with equal max(r⁺, r⁻), the first directions are used. A direction with NaN or infinity ranks last
        and has weight 0.

    Args:
        returns: [N, 2] returns of both sides of each direction.
        used: b, from 1 to N; None: all N.
    Raises:
        ShapeError: `returns` is not [N, 2].
        ConfigError: `used` is not a whole number from 1 to N.
    """
    both = _both_sides(returns)
    if used is not None:
        _check_whole(used, "ars_weights(used)", least=1, most=len(both))
    finite = _finite(both)
    order = np.argsort(-np.where(finite, both.max(axis=1), -np.inf), kind="stable")
    chosen = order[: len(both) if used is None else used]
    chosen = chosen[finite[chosen]]
    weights = np.zeros(len(both))
    largest = np.abs(both[chosen]).max(initial=0.0)
    # Scaled to at most 1, because the square of a penalty such as -1e200 would overflow. A power of two scales exactly.
    exponent = np.frexp(largest)[1]
    scaled = np.ldexp(both[chosen], -exponent)
    deviation = scaled.std() if len(chosen) else 0.0
    if deviation > _ROUNDING * np.ldexp(largest, -exponent):
        weights[chosen] = (scaled[:, 0] - scaled[:, 1]) / (len(chosen) * deviation)
    return weights


def gradient_estimate(weights: NDArray[np.float64], seed: int, generation: int, size: int) -> NDArray[np.float32]:
    """Returns [size] Σ_k w_k ε_k, added in the order of the directions; directions of weight 0 are not generated."""
    total = np.zeros(size)
    for index in np.flatnonzero(weights).tolist():
        total += weights[index] * direction(seed, generation, index, size)
    return total.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Search:
    """The state of a search for the vector that maximizes a function; see `start_search`, `ask` and `tell`."""

    theta: NDArray[np.float32]  # [P]
    optimizer_state: Any
    num_directions: int
    noise_stdev: float
    lr: float
    weights: Weights
    optimizer: optax.GradientTransformation
    l2_coeff: float
    seed: int
    generation: int = 0


def start_search(
    theta: ArrayLike,
    *,
    num_directions: int,
    noise_stdev: float,
    lr: float,
    weights: Weights = ars_weights,
    optimizer: optax.GradientTransformation | None = None,
    l2_coeff: float = 0.0,
    seed: int = 0,
) -> Search:
    """Returns a search that begins at θ, by default augmented random search.

    For evolution strategies pass `weights=es_weights, optimizer=optax.scale_by_adam()`; for augmented random search
    with only the best b directions pass `weights=partial(ars_weights, used=b)`. θ and its steps are float32.

    Args:
        theta: [P] the initial vector.
        num_directions: N.
        noise_stdev: σ.
        lr: α, the size of a step.
        weights: computes the weights of the directions from the returns.
        optimizer: an optimizer that applies no learning rate and keeps the sign of the gradient, such as
            `optax.scale_by_adam()`, not `optax.adam(lr)`; None: the step is lr times the gradient.
        l2_coeff: c, the weight decay: c · θ is subtracted from the gradient.
        seed: the seed of the directions.
    Raises:
        ShapeError: `theta` is not a vector.
        ConfigError: a number is not finite, not positive or not whole, θ is not finite, or the optimizer reverses the
            sign of the gradient.
    """
    _check_whole(num_directions, "start_search(num_directions)", least=1)
    _check_whole(seed, "start_search(seed)", least=0)
    theta = np.array(theta, np.float32)
    if theta.ndim != 1:
        raise ShapeError("θ is not a vector.", where="start_search(theta)", got=theta.shape, expected="(P,)")
    if not np.isfinite(theta).all():
        raise ConfigError("θ is not finite.", where="start_search(theta)", got=theta, expected="finite float32 numbers")
    _check_number(noise_stdev, "start_search(noise_stdev)")
    _check_number(lr, "start_search(lr)")
    _check_number(l2_coeff, "start_search(l2_coeff)", positive=False)
    optimizer = optax.identity() if optimizer is None else optimizer
    _check_sign(optimizer, np.zeros_like(theta))
    return Search(theta, optimizer.init(theta), num_directions, noise_stdev, lr, weights, optimizer, l2_coeff, seed)


def ask(search: Search) -> NDArray[np.float32]:
    """Returns [N, 2, P], the candidates of the current generation: θ + σ ε_k and θ - σ ε_k."""
    size, sigma = len(search.theta), search.noise_stdev
    indices = range(search.num_directions)
    directions = [direction(search.seed, search.generation, index, size) for index in indices]
    return np.stack([[candidate(search.theta, sigma, sign, one) for sign in SIGNS] for one in directions])


def candidate(
    theta: NDArray[np.float32], noise_stdev: float, sign: float, direction: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Returns [P], θ + sign · σ ε."""
    return (theta + np.float32(sign * noise_stdev) * direction).astype(np.float32, copy=False)


def tell(search: Search, returns: ArrayLike) -> Search:
    """Returns the search after a step that maximizes the returns [N, 2] of the candidates of `ask`.

    Raises:
        ShapeError: `returns` has another shape, or the number of weights is not the number of directions.
        NonFiniteError: no return is finite, or the new θ is not finite.
    """
    if np.shape(returns) != (search.num_directions, 2):
        raise ShapeError(
            "The returns do not have one number for each candidate.", "tell(search, returns)", np.shape(returns)
        ).expected((search.num_directions, 2), "return one number for each candidate of ask(search)")
    both = np.asarray(returns, np.float64)
    if not np.isfinite(both).any():
        raise NonFiniteError(
            "No return is finite.", f"tell(search, returns), generation {search.generation}", both
        ).expected("finite returns", "start from parameters with finite returns, or lower noise_stdev or lr")
    weights = np.asarray(search.weights(both), np.float64)
    if weights.shape != (search.num_directions,):
        raise ShapeError(
            "The number of weights is not the number of directions.", "start_search(weights)", weights.shape
        ).expected(
            (search.num_directions,), "return one weight for each direction, that is, for each row of the returns"
        )
    gradient = gradient_estimate(weights, search.seed, search.generation, len(search.theta))
    loss = np.float32(search.l2_coeff) * search.theta - gradient
    step, optimizer_state = search.optimizer.update(loss, search.optimizer_state, search.theta)
    theta = search.theta - np.float32(search.lr) * np.asarray(step)
    if not np.isfinite(theta).all():
        raise NonFiniteError(
            "The step leads to parameters that are not finite.",
            f"tell(search, returns), generation {search.generation}",
            theta,
        ).expected("finite float32 numbers", "lower lr, or bound the weights")
    return replace(search, theta=theta, optimizer_state=optimizer_state, generation=search.generation + 1)


def _check_whole(value: Any, where: str, *, least: int, most: int | None = None) -> None:
    if not (is_whole(value) and value >= least and (most is None or value <= most)):
        expected = f"an integer from {least} {'on' if most is None else f'to {most}'}"
        raise ConfigError("The value is not an integer, or is out of range.", where=where, got=value, expected=expected)


def _check_number(value: Any, where: str, *, positive: bool = True) -> None:
    if not (is_finite(value) and (value > 0 if positive else value >= 0)):
        expected = f"a finite number {'>' if positive else '>='} 0"
        raise ConfigError("The value is not a finite number, or is out of range.", where, value).expected(expected)


def _check_sign(optimizer: optax.GradientTransformation, zeros: NDArray[np.float32]) -> None:
    """Raises ConfigError if the first step of an optimizer, for a vector of this size, is against the gradient."""
    step = np.asarray(optimizer.update(np.ones_like(zeros), optimizer.init(zeros), zeros)[0])
    if step.sum() < 0:
        raise ConfigError(
            "The optimizer reverses the sign of the gradient, so the search would minimize the returns.",
            "start_search(optimizer)",
            f"a step of {step.mean():.3g} for a gradient of 1, like optax.adam(lr)",
        ).expected("a step along the gradient", "pass optax.scale_by_adam() or the like; `lr` is the size of a step")


def _both_sides(returns: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(returns, np.float64)
    if array.ndim != 2 or array.shape[1] != 2 or not len(array):
        raise ShapeError("The returns do not have the shape (N, 2).", "returns", array.shape).expected(
            "(N, 2), N >= 1: one return of θ + σ ε and one of θ - σ ε in each row"
        )
    return array


def _finite(both: NDArray[np.float64]) -> NDArray[np.bool_]:
    """[N] whether the returns of both sides are finite."""
    return np.isfinite(both[:, 0]) & np.isfinite(both[:, 1])
