"""Search for parameters by the returns of whole episodes, without gradients of a loss.

The tables are what ES and ARS add to the core; see `rollax.core.extensions`.
"""

ALGORITHMS = {"ARS": "rollax.search.ars:ARSTrainer", "ES": "rollax.search.es:ESTrainer"}
MOVED = {f"rollax.algorithms.{name}": f"rollax.search.{name}" for name in ("ars", "es")}
