"""Actors in other processes: starting and calling them, detecting failures, and restarting them."""
