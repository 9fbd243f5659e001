"""Policies in PyTorch: `TorchPolicy`, and twins of JAX's default models, distributions and losses.

Importing it raises ConfigError if PyTorch is not installed. It imports no JAX, and nothing of the JAX side imports it.
"""

from rollax.errors import not_installed

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise not_installed("rollax.torch", error, where="import rollax.torch", package="torch", extra="torch") from error
