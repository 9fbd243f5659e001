"""Environments written in JAX, which are compiled together with the policy that acts in them."""
