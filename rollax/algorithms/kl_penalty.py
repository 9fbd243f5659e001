"""`KLPenalty`: a penalty on the divergence from an earlier policy, whose weight adapts after each train batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollax.ops.policy_gradient import adapted_kl_coeff
from rollax.policy.algorithm import Algorithm


class KLPenalty(Algorithm):
    """A loss with the penalty `kl_coeff` · KL, whose weight adapts to `kl_target` after each train batch."""

    @property
    def penalizes_kl(self) -> bool:
        return bool(self.config.kl_coeff)

    def first_numbers(self) -> dict[str, float]:
        # 0 never adapts: it means a run without the penalty.
        return {"kl_coeff": self.config.kl_coeff if self.penalizes_kl else 0.0}

    def after_update(
        self, numbers: Mapping[str, float], statistics: dict[str, Any]
    ) -> tuple[Mapping[str, float], dict[str, Any]]:
        weight, target = numbers["kl_coeff"], self.config.kl_target
        following = float(adapted_kl_coeff(weight, statistics["kl"], target=target)) if self.penalizes_kl else 0.0
        return {"kl_coeff": following}, {**statistics, "cur_kl_coeff": weight}
