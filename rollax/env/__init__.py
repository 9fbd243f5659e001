"""Environments: every kind is converted to a `BaseEnv`. Nothing here imports JAX."""
