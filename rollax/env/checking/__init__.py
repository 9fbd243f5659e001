"""Checks of environments before training."""
