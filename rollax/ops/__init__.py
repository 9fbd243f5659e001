"""Losses, targets and statistics as pure JAX functions of arrays and a mask."""
