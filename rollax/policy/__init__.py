"""Policies: how they map observations to actions, and how they learn."""
