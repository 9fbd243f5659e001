"""Environments: everything that a user gives becomes a `BaseEnv`. Nothing here imports JAX."""
