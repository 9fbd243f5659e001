"""Configs: what every trainer's config holds, and how a plain dict becomes one. Imports no JAX."""

from rollax.config.multiagent import MultiAgentConfig
from rollax.config.trainer import Lambda, SchedulePoints, TrainerConfig, resolve_config

__all__ = ["Lambda", "MultiAgentConfig", "SchedulePoints", "TrainerConfig", "resolve_config"]
