"""Benchmarks of rollax against raw environment loops and other libraries: `python -m benchmarks.run_all`."""
