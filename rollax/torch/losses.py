"""Losses of PG, A3C, PPO, DQN and SAC, as in `ops`: see there for equations, and "Deviations" from their sources.

Arguments that are constant in `ops` are detached here. `mask` [B] is 1 for a real row, 0 for padding. The functions
raise ShapeError if shapes that must be equal differ.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rollax.ops import check_same_shape

_MAX_LOG_RATIO = 60.0
_RELATIVE_ROUNDING = 1e-6


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """[] the mean over the valid rows; 0 if there are none. NaN in padding has no effect."""
    check_same_shape("masked_mean", x=x, mask=mask)
    real = mask > 0
    return torch.where(real, x, 0.0).sum() / real.sum().clamp(min=1)


def policy_gradient_loss(logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """[] -mean_t A_t log π(a_t|s_t); Williams (1992)."""
    check_same_shape("policy_gradient_loss", logp=logp, advantages=advantages, mask=mask)
    return -masked_mean(torch.where(mask > 0, logp, 0.0) * advantages.detach(), mask)


def clipped_surrogate(logp: Tensor, old_logp: Tensor, advantages: Tensor, mask: Tensor, *, clip: float) -> Tensor:
    """[] the negated clipped objective; Schulman et al. (2017), Eq. 7, arXiv:1707.06347."""
    check_same_shape("clipped_surrogate", logp=logp, old_logp=old_logp, advantages=advantages, mask=mask)
    advantages = advantages.detach()
    log_ratio = torch.where(mask > 0, logp - old_logp.detach(), 0.0)
    ratio = log_ratio.clamp(max=_MAX_LOG_RATIO).exp()
    return -masked_mean(torch.minimum(ratio * advantages, torch.clip(ratio, 1 - clip, 1 + clip) * advantages), mask)


def value_loss(values: Tensor, targets: Tensor, mask: Tensor, *, vf_clip_param: float | None = None) -> Tensor:
    """[] mean_t min((V_t - G_t)², c), with c = `vf_clip_param`; without factor 1/2. For [B, H], the sum over heads."""
    if values.ndim == targets.ndim == 2:
        heads = zip(values.T, targets.T, strict=True)
        return torch.stack([value_loss(*head, mask, vf_clip_param=vf_clip_param) for head in heads]).sum()
    check_same_shape("value_loss", values=values, targets=targets, mask=mask)
    errors = torch.where(mask > 0, values - targets.detach(), 0.0) ** 2
    return masked_mean(errors if vf_clip_param is None else errors.clamp(max=vf_clip_param), mask)


def explained_variance(targets: Tensor, predictions: Tensor, mask: Tensor) -> Tensor:
    """[] 1 - Var[G - V] / Var[G] over the valid rows; always finite. For [B, H], the mean over heads."""
    if targets.ndim == predictions.ndim == 2:
        heads = zip(targets.T, predictions.T, strict=True)
        return torch.stack([explained_variance(*head, mask) for head in heads]).mean()
    check_same_shape("explained_variance", targets=targets, predictions=predictions, mask=mask)
    unexplained, total = _masked_variance(targets - predictions, mask), _masked_variance(targets, mask)
    of_constants = (unexplained == 0).to(total.dtype)
    return torch.where(total == 0, of_constants, 1.0 - unexplained / torch.where(total == 0, 1.0, total))


def _masked_variance(x: Tensor, mask: Tensor) -> Tensor:
    variance = masked_mean((x - masked_mean(x, mask)) ** 2, mask)
    return torch.where(variance <= _RELATIVE_ROUNDING**2 * masked_mean(x**2, mask), 0.0, variance)


def chosen(values: Tensor, actions: Tensor) -> Tensor:
    """[B] the entry of `values` [B, A] at the action of each row; NaN for an action out of range, as in padding."""
    places, size = actions.to(torch.int64), values.shape[1]
    found = values.gather(1, places.clamp(0, size - 1)[:, None])[:, 0]
    return torch.where((places >= 0) & (places < size), found, torch.nan)


def q_target(rewards: Tensor, discounts: Tensor, next_values: Tensor, selector: Tensor) -> Tensor:
    """[B] r + γ Q⁻(s', argmax_a Q(s', a)), constant; van Hasselt et al. (2016), arXiv:1509.06461."""
    check_same_shape("q_target", rewards=rewards, discounts=discounts)
    check_same_shape("q_target", next_values=next_values, selector=selector)
    return (rewards + discounts * chosen(next_values, selector.argmax(dim=-1))).detach()


def huber(errors: Tensor, *, delta: float = 1.0) -> Tensor:
    """Quadratic near zero, linear beyond ±δ; Huber (1964)."""
    size = errors.abs()
    inside = size.clamp(max=delta)
    return 0.5 * inside**2 + delta * (size - inside)


def td_target(rewards: Tensor, discounts: Tensor, next_values: Tensor) -> Tensor:
    """[B] r + γ V(s'), constant."""
    check_same_shape("td_target", rewards=rewards, discounts=discounts, next_values=next_values)
    return (rewards + discounts * next_values).detach()


def twin_errors(values: Tensor, targets: Tensor, weights: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """`(loss, [B] mean absolute errors)` of the values [N, B] of an ensemble: Σ_i mean_b w_b (Q_i(s, a) - y)²."""
    check_same_shape("twin_errors", values=values[0], targets=targets, weights=weights, mask=mask)
    errors = values - targets.detach()
    return masked_mean((errors**2).sum(dim=0) * weights, mask), errors.detach().abs().mean(dim=0)


def temperature_loss(log_alpha: Tensor, logp: Tensor, target_entropy: float | Tensor, mask: Tensor) -> Tensor:
    """[] -log α · mean_b (log π(a|s) + H̄); Haarnoja et al. (2018), Eq. 18, arXiv:1812.05905."""
    return -log_alpha * masked_mean((logp + target_entropy).detach(), mask)
