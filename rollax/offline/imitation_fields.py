"""The fields that MARWIL and IQL share."""

from __future__ import annotations

from pydantic import Field

from rollax.config.field_group import FieldGroup


class WeightedImitationFields(FieldGroup):
    """Imitation of actions, weighted by min(exp(β A), w_max)."""

    places = {("beta", "max_weight"): ("policy",)}

    beta: float = Field(default=1.0, ge=0, description="β, weight of the advantage in exp(β A); 0: equal weights")
    max_weight: float | None = Field(
        default=None, gt=0, description="largest weight of an action, such as 100; None: no limit"
    )
