"""Recorded data as a source of experience: its trajectories as fragments, in replay buffers or in files."""
