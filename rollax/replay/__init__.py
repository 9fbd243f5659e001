"""Replay buffers: what was experienced is kept, each observation once, and drawn again to learn from."""
