"""Actors in other processes: starting them, calling them, noticing that one fails, and restarting it."""
