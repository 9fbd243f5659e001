"""Whole training runs: when they end, what is shown of them, and what they leave on disk."""
