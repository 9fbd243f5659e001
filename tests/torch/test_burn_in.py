"""Burn-in in PyTorch, with the numbers of the tests in JAX."""

import numpy as np
import torch

from rollax.core import trees
from rollax.models.outputs import Outputs, run_model
from rollax.policy.sequences_as_rows import as_rows
from rollax.torch.burn_in import after_burn_in
from tests.policy.test_burn_in import SEQUENCES


class Decaying(torch.nn.Module):
    """h' = w h + x, which is also the output."""

    def __init__(self, w: float) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(w))

    def initial_state(self):
        return (np.zeros(1, np.float32),)

    def forward(self, obs, state):
        h, outputs = state[0][:, 0], []
        for x in obs.reshape(len(h), -1).unbind(1):
            h = self.w * h + x
            outputs.append(h)
        return Outputs(torch.stack(outputs, 1).reshape(-1, 1), state=(h[:, None],))


def rows():
    return as_rows(trees.tree_map(torch.as_tensor, SEQUENCES), torch.ones(2), torch.arange)[0]


def test_rows_of_burn_in_are_apart_and_advance_the_state():
    batch = rows()
    assert batch["obs"].tolist() == [3, 4, 5, 7, 8, 9]
    assert batch["target_rows"].tolist() == [1, 2, 2, 4, 5, 5]
    for w, expected in ((0.5, [[4.5], [8]]), (0.25, [[2.75], [7]])):
        assert after_burn_in(Decaying(w), batch)["state_in"][0].tolist() == expected


def test_no_gradient_through_burn_in():
    model = Decaying(0.5)
    out = run_model(model, after_burn_in(model, rows()))
    out.policy.reshape(2, 3)[:, 0].sum().backward()
    assert model.w.grad is not None
    assert model.w.grad.item() == 4.5 + 8
