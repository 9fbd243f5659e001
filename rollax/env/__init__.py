"""Environments: every kind is converted to a `BaseEnv`. Only `rollax.env.jax` imports JAX."""
