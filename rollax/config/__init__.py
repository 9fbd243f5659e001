"""Configs: the fields of every algorithm, and how a plain dict becomes a config. Imports no JAX."""

from rollax.config.field_types import Lambda, SchedulePoints
from rollax.config.multiagent import MultiAgentConfig
from rollax.config.rules import ENABLED, NotIn
from rollax.config.trainer import TrainerConfig, resolve_config

__all__ = ["ENABLED", "Lambda", "MultiAgentConfig", "NotIn", "SchedulePoints", "TrainerConfig", "resolve_config"]
