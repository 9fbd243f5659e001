"""Rollout workers in other processes: what starts them, what passes between, and what becomes of those that fail."""
