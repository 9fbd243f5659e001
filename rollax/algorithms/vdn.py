"""VDN: Q-learning of a joint action value that is the sum of the members' values.

Source: Sunehag et al. (2017), arXiv:1706.05296. This is QMIX with another mixer; deviations: see there.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollax.algorithms.qmix import QMIXConfig, QMIXPolicy, QMIXTrainer


class VDNConfig(QMIXConfig):
    """The fields of QMIX with the mixer of VDN."""

    requires = {("mixing_embed_dim", "hypernet_hiddens"): "VDN has no mixing network"}

    mixer: Literal["vdn"] = Field(
        default="vdn", description="the joint value is the sum of the members' values; QMIX takes others"
    )


class VDNPolicy(QMIXPolicy):
    """The policy of QMIX with another mixer."""

    config_class = VDNConfig


class VDNTrainer(QMIXTrainer):
    """QMIX with another mixer."""

    name = "VDN"
    config_class = VDNConfig
    policy_class = VDNPolicy
