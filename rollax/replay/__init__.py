"""Replay buffers: ring buffers of experience, each observation stored once."""
