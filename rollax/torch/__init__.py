"""Policies in PyTorch: `TorchPolicy`, and PyTorch versions of the default models, distributions and losses.

Importing this package raises ConfigError without PyTorch. It imports no JAX, and the JAX side does not import it.
"""

from rollax.errors import not_installed

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise not_installed("rollax.torch", error, where="import rollax.torch", package="torch", extra="torch") from error
