"""Whole training runs: stop conditions, progress display, run folder."""
