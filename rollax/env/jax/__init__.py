"""Environments on the device: written in JAX and compiled with the policy, or simulators of PyTorch tensors."""
