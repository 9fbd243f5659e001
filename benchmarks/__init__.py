"""Benchmarks of rollax against raw environment loops and other libraries: `python -m benchmarks.run_all`.

| place | content |
|---|---|
| `rows` | a function for each benchmark: its sides, settings, targets and notes |
| `sides`, `peer_scripts` | what the sides do, in rollax's Python and in the other libraries' virtual environments |
| `environments.py`, `data.py`, `serving` | what several sides use |
| `measure.py`, `processes.py`, `protocol.py`, `peers.py` | rounds, processes, messages, virtual environments |
| `results`, `tables.py` | the figures, a table for each machine, and how it is read and written |
| `offline_table.py`, `search_table.py`, `larger_than_memory.py` | longer comparisons, run as modules |
| `report.py`, `readme.py`, `curves.py`, `learning.py` | `BENCHMARKS.md`, the speeds in `README.md`, learning curves |

The side `own("rollax", "rollax_sampling.copies", settings)` of a row is the function `copies` of
`sides/rollax_sampling.py`, and `peer("RLlib", "rllib.sampling", settings)` is `sampling` of `peer_scripts/rllib.py`.
"""
