"""The priorities that rows of a fragment begin with in a replay buffer, as the policy that acted estimates them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rollax.batch import Fragment, SampleBatch


def add_priorities(
    fragment: Fragment, td_errors: Callable[[SampleBatch], np.ndarray], *, n_step: int, gamma: float
) -> Fragment:
    """The fragment with the column `priorities`: the errors with which a prioritized buffer begins.

    Source: Horgan et al. (2018), arXiv:1803.00933, Algorithm 1, line 10: the actors compute them, with the network that
        they act with. Deviations: a row whose n steps lead beyond the fragment has an error of as many steps as there
        are; the buffer draws it with all n.

    Args:
        fragment: rows of a policy that learns from replayed transitions; it is changed.
        td_errors: the errors of transitions, as `JaxPolicy.td_errors`.
        n_step: n.
        gamma: γ.
    """
    errors = td_errors(fragment.transitions(n_step, gamma))
    fragment[SampleBatch.PRIORITIES] = np.abs(errors).astype(np.float32)
    return fragment
