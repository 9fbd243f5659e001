"""VDN: Q-learning of the joint value of a group's actions, which is the sum of the members' values.

Source: Sunehag et al. (2017), arXiv:1706.05296. Deviations: see QMIX, of which this is one with another mixer.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollax.algorithms.qmix import QMIXConfig, QMIXPolicy, QMIXTrainer


class VDNConfig(QMIXConfig):
    """The fields of QMIX with the mixer of VDN."""

    mixer: Literal["vdn"] = Field(
        default="vdn", description="the joint value is the sum of the members' values; QMIX takes others"
    )


class VDNPolicy(QMIXPolicy):
    """QMIX's with another mixer."""

    config_class = VDNConfig


class VDNTrainer(QMIXTrainer):
    """QMIX with another mixer."""

    name = "VDN"
    config_class = VDNConfig
    policy_class = VDNPolicy
