"""Sampling: policies act in environments; rows become trajectories, batches and metrics."""
