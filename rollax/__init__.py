"""Reinforcement learning: any environment in, trained policies out.

Public names are imported on first use, so `import rollax` imports neither JAX nor Ray, and processes of environments
stay small.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollax.algorithms.a3c import A2CConfig as A2CConfig
    from rollax.algorithms.a3c import A2CPolicy as A2CPolicy
    from rollax.algorithms.a3c import A2CTrainer as A2CTrainer
    from rollax.algorithms.a3c import A3CConfig as A3CConfig
    from rollax.algorithms.a3c import A3CPolicy as A3CPolicy
    from rollax.algorithms.a3c import A3CTrainer as A3CTrainer
    from rollax.algorithms.apex import ApexDDPGConfig as ApexDDPGConfig
    from rollax.algorithms.apex import ApexDDPGPolicy as ApexDDPGPolicy
    from rollax.algorithms.apex import ApexDDPGTrainer as ApexDDPGTrainer
    from rollax.algorithms.apex import ApexDQNConfig as ApexDQNConfig
    from rollax.algorithms.apex import ApexDQNPolicy as ApexDQNPolicy
    from rollax.algorithms.apex import ApexDQNTrainer as ApexDQNTrainer
    from rollax.algorithms.appo import APPOConfig as APPOConfig
    from rollax.algorithms.appo import APPOPolicy as APPOPolicy
    from rollax.algorithms.appo import APPOTrainer as APPOTrainer
    from rollax.algorithms.ddpg import DDPGConfig as DDPGConfig
    from rollax.algorithms.ddpg import DDPGPolicy as DDPGPolicy
    from rollax.algorithms.ddpg import DDPGTrainer as DDPGTrainer
    from rollax.algorithms.ddpg import TD3Config as TD3Config
    from rollax.algorithms.ddpg import TD3Policy as TD3Policy
    from rollax.algorithms.ddpg import TD3Trainer as TD3Trainer
    from rollax.algorithms.dqn import DQNConfig as DQNConfig
    from rollax.algorithms.dqn import DQNPolicy as DQNPolicy
    from rollax.algorithms.dqn import DQNTrainer as DQNTrainer
    from rollax.algorithms.dqn import RainbowConfig as RainbowConfig
    from rollax.algorithms.dqn import RainbowPolicy as RainbowPolicy
    from rollax.algorithms.dqn import RainbowTrainer as RainbowTrainer
    from rollax.algorithms.impala import IMPALAConfig as IMPALAConfig
    from rollax.algorithms.impala import IMPALAPolicy as IMPALAPolicy
    from rollax.algorithms.impala import IMPALATrainer as IMPALATrainer
    from rollax.algorithms.load_policy import load_policy as load_policy
    from rollax.algorithms.pg import PGConfig as PGConfig
    from rollax.algorithms.pg import PGPolicy as PGPolicy
    from rollax.algorithms.pg import PGTrainer as PGTrainer
    from rollax.algorithms.ppo import PPOConfig as PPOConfig
    from rollax.algorithms.ppo import PPOPolicy as PPOPolicy
    from rollax.algorithms.ppo import PPOTrainer as PPOTrainer
    from rollax.algorithms.qmix import QMIXConfig as QMIXConfig
    from rollax.algorithms.qmix import QMIXPolicy as QMIXPolicy
    from rollax.algorithms.qmix import QMIXTrainer as QMIXTrainer
    from rollax.algorithms.qmix import VDNConfig as VDNConfig
    from rollax.algorithms.qmix import VDNPolicy as VDNPolicy
    from rollax.algorithms.qmix import VDNTrainer as VDNTrainer
    from rollax.algorithms.sac import SACConfig as SACConfig
    from rollax.algorithms.sac import SACPolicy as SACPolicy
    from rollax.algorithms.sac import SACTrainer as SACTrainer
    from rollax.algorithms.trainer import Trainer as Trainer
    from rollax.batch import Fragment as Fragment
    from rollax.batch import MultiAgentBatch as MultiAgentBatch
    from rollax.batch import SampleBatch as SampleBatch
    from rollax.config import TrainerConfig as TrainerConfig
    from rollax.env.adapters import register_env_adapter as register_env_adapter
    from rollax.env.base_env import BaseEnv as BaseEnv
    from rollax.env.checking.check_env import check_env as check_env
    from rollax.env.external.external_env import ExternalEnv as ExternalEnv
    from rollax.env.external.external_env import ExternalMultiAgentEnv as ExternalMultiAgentEnv
    from rollax.env.external.queue import EnvStoppedError as EnvStoppedError
    from rollax.env.making import to_base_env as to_base_env
    from rollax.env.multi_agent.multi_agent_env import MultiAgentEnv as MultiAgentEnv
    from rollax.env.multi_agent.pettingzoo_env import from_pettingzoo as from_pettingzoo
    from rollax.env.multi_agent.pettingzoo_export import to_pettingzoo as to_pettingzoo
    from rollax.env.recording import record_env as record_env
    from rollax.env.registry import EnvContext as EnvContext
    from rollax.env.registry import register_env as register_env
    from rollax.env.vector.vector_env import VectorEnv as VectorEnv
    from rollax.errors import BatchError as BatchError
    from rollax.errors import CheckpointError as CheckpointError
    from rollax.errors import ConfigError as ConfigError
    from rollax.errors import EnvError as EnvError
    from rollax.errors import MultiAgentError as MultiAgentError
    from rollax.errors import NonFiniteError as NonFiniteError
    from rollax.errors import PolicyError as PolicyError
    from rollax.errors import RollaxError as RollaxError
    from rollax.errors import ShapeError as ShapeError
    from rollax.errors import SpaceError as SpaceError
    from rollax.errors import WorkerError as WorkerError
    from rollax.evaluation.callbacks import Callbacks as Callbacks
    from rollax.evaluation.filters import MeanStdFilter as MeanStdFilter
    from rollax.evaluation.filters import NoFilter as NoFilter
    from rollax.evaluation.metrics import EvaluationResult as EvaluationResult
    from rollax.evaluation.metrics import TrainResult as TrainResult
    from rollax.evaluation.rollout_worker import RolloutWorker as PolicyEvaluator  # noqa: F401
    from rollax.evaluation.rollout_worker import RolloutWorker as RolloutWorker
    from rollax.evaluation.sampler import Sampler as Sampler
    from rollax.models.outputs import Outputs as Outputs
    from rollax.optimizers.async_gradients import AsyncGradientsOptimizer as AsyncGradientsOptimizer
    from rollax.optimizers.async_replay import AsyncReplayOptimizer as AsyncReplayOptimizer
    from rollax.optimizers.async_samples import AsyncSamplesOptimizer as AsyncSamplesOptimizer
    from rollax.optimizers.optimizer import Optimizer as Optimizer
    from rollax.optimizers.sync_replay import SyncReplayOptimizer as SyncReplayOptimizer
    from rollax.optimizers.sync_samples import SyncSamplesOptimizer as SyncSamplesOptimizer
    from rollax.policy.jax_policy import JaxPolicy as JaxPolicy
    from rollax.policy.policy import Policy as Policy
    from rollax.policy.policy import PolicySpec as PolicySpec
    from rollax.replay.frames import StackedFrames as StackedFrames
    from rollax.replay.prioritized import PrioritizedReplay as PrioritizedReplay
    from rollax.replay.uniform import UniformReplay as UniformReplay
    from rollax.runs.fit import FitResult as FitResult

__version__ = "0.1.0"

_NAMES_OF = {
    "rollax.algorithms.a3c": "A2CConfig A2CPolicy A2CTrainer A3CConfig A3CPolicy A3CTrainer",
    "rollax.algorithms.apex": "ApexDDPGConfig ApexDDPGPolicy ApexDDPGTrainer "
    "ApexDQNConfig ApexDQNPolicy ApexDQNTrainer",
    "rollax.algorithms.appo": "APPOConfig APPOPolicy APPOTrainer",
    "rollax.algorithms.ddpg": "DDPGConfig DDPGPolicy DDPGTrainer TD3Config TD3Policy TD3Trainer",
    "rollax.algorithms.dqn": "DQNConfig DQNPolicy DQNTrainer RainbowConfig RainbowPolicy RainbowTrainer",
    "rollax.algorithms.impala": "IMPALAConfig IMPALAPolicy IMPALATrainer",
    "rollax.algorithms.load_policy": "load_policy",
    "rollax.algorithms.pg": "PGConfig PGPolicy PGTrainer",
    "rollax.algorithms.ppo": "PPOConfig PPOPolicy PPOTrainer",
    "rollax.algorithms.qmix": "QMIXConfig QMIXPolicy QMIXTrainer VDNConfig VDNPolicy VDNTrainer",
    "rollax.algorithms.sac": "SACConfig SACPolicy SACTrainer",
    "rollax.algorithms.trainer": "Trainer",
    "rollax.batch": "Fragment MultiAgentBatch SampleBatch",
    "rollax.config": "TrainerConfig",
    "rollax.env.adapters": "register_env_adapter",
    "rollax.env.base_env": "BaseEnv",
    "rollax.env.checking.check_env": "check_env",
    "rollax.env.external.external_env": "ExternalEnv ExternalMultiAgentEnv",
    "rollax.env.external.queue": "EnvStoppedError",
    "rollax.env.making": "to_base_env",
    "rollax.env.multi_agent.multi_agent_env": "MultiAgentEnv",
    "rollax.env.multi_agent.pettingzoo_env": "from_pettingzoo",
    "rollax.env.multi_agent.pettingzoo_export": "to_pettingzoo",
    "rollax.env.recording": "record_env",
    "rollax.env.registry": "EnvContext register_env",
    "rollax.env.vector.vector_env": "VectorEnv",
    "rollax.errors": "BatchError CheckpointError ConfigError EnvError MultiAgentError "
    "NonFiniteError PolicyError RollaxError ShapeError SpaceError WorkerError",
    "rollax.evaluation.callbacks": "Callbacks",
    "rollax.evaluation.filters": "MeanStdFilter NoFilter",
    "rollax.evaluation.metrics": "EvaluationResult TrainResult",
    "rollax.evaluation.sampler": "Sampler",
    "rollax.evaluation.rollout_worker": "PolicyEvaluator RolloutWorker",
    "rollax.models.outputs": "Outputs",
    "rollax.optimizers.async_gradients": "AsyncGradientsOptimizer",
    "rollax.optimizers.async_replay": "AsyncReplayOptimizer",
    "rollax.optimizers.async_samples": "AsyncSamplesOptimizer",
    "rollax.optimizers.optimizer": "Optimizer",
    "rollax.optimizers.sync_replay": "SyncReplayOptimizer",
    "rollax.optimizers.sync_samples": "SyncSamplesOptimizer",
    "rollax.policy.jax_policy": "JaxPolicy",
    "rollax.policy.policy": "Policy PolicySpec",
    "rollax.replay.frames": "StackedFrames",
    "rollax.replay.prioritized": "PrioritizedReplay",
    "rollax.replay.uniform": "UniformReplay",
    "rollax.runs.fit": "FitResult",
}
_MODULE_OF: dict[str, str] = {name: module for module, names in _NAMES_OF.items() for name in names.split()}
_SAME_AS = {"PolicyEvaluator": "RolloutWorker"}
__all__ = [*_MODULE_OF]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module), _SAME_AS.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
