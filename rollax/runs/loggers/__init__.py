"""Loggers: where the numbers, pictures and videos of a run go besides its own results."""
