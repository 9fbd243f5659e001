"""`TorchAlgorithm`: the base class of algorithms in PyTorch."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rollax.batch import Columns, SampleBatch
from rollax.core.introspection import overrides
from rollax.core.spaces import ACTION_MASK
from rollax.models.distributions import ActionDistribution
from rollax.models.outputs import Outputs, run_model, values_of_critic
from rollax.policy.base_algorithm import BaseAlgorithm
from rollax.torch.burn_in import after_burn_in
from rollax.torch.config import TorchConfig, chosen_device
from rollax.torch.distributions import make_distribution
from rollax.torch.policy_model import make_policy_model
from rollax.torch.torch_policy import TorchPolicy


class TorchAlgorithm(BaseAlgorithm):
    """An algorithm whose model, loss and optimizer are PyTorch's. Tensors are on the device of the policy.

    A subclass implements `loss`, and names the columns that it `reads`; all other methods have defaults. Random numbers
    of losses and layers come from the policy's own streams, which checkpoints store.
    """

    config_class: ClassVar[Any] = TorchConfig
    policy_class: ClassVar[Any] = TorchPolicy

    @classmethod
    def overrides(cls, method: str) -> bool:
        """Whether the class, or a base class below `TorchAlgorithm`, overrides a method of `TorchAlgorithm`."""
        return overrides(cls, TorchAlgorithm, method)

    @cached_property
    def distribution(self) -> ActionDistribution:
        """The action distribution whose inputs the model returns."""
        return make_distribution(self.action_space)

    def make_model(self) -> nn.Module:
        """Returns `model(obs) -> Outputs`: by default the `custom_model`, else the default actor and critic.

        A model with memory has `initial_state()` and is called as `run_model` describes. A centralized critic is the
        attribute `critic` of the model; a default or custom model without this attribute gets a `CentralCritic`.
        """
        spaces = self.observation_space, self.action_space
        return make_policy_model(*spaces, self.exploration.num_inputs, self.config, self.label, self.value_shape)

    def make_optimizer(self, params: Any, model: nn.Module) -> torch.optim.Optimizer:
        """Returns the optimizer, by default Adam.

        Before each step, the policy clips the gradients (`grad_clip`) and sets the learning rate.

        Args:
            params: parameters or parameter groups, as for PyTorch's optimizers.
            model: the model with these parameters.
        """
        device = chosen_device(getattr(self.config, "device", "auto"))
        return torch.optim.Adam(params, lr=0.0, eps=self.config.adam_epsilon, fused=device.type != "mps")

    def forward(self, model: Any, columns: Columns) -> Outputs:
        """Returns the outputs of one forward pass, with invalid actions masked.

        If there is a column `critic_obs`, `value` is `model.critic(critic_obs)`. The rows of a column `burn_in` advance
        the recurrent state first. `run_model` describes the other columns. Outputs in half precision become float32.
        """
        out = run_model(model, after_burn_in(model, columns))
        if SampleBatch.CRITIC_OBS in columns:
            out = out._replace(value=values_of_critic(model, columns[SampleBatch.CRITIC_OBS], self.value_shape))
        out = out._replace(policy=precise(out.policy), value=None if out.value is None else precise(out.value))
        if self.masks.present:
            mask = columns[SampleBatch.OBS][ACTION_MASK]
            out = out._replace(policy=self.distribution.mask(out.policy, mask))
            if self.exploration.outputs_are_values:
                out = out._replace(value=out.policy.amax(dim=-1))
        return out


def precise(output: Tensor) -> Tensor:
    """Converts half precision to float32, in which log-probabilities and errors are exact enough."""
    return output.float() if output.dtype in (torch.bfloat16, torch.float16) else output
