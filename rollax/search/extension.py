"""What ES and ARS add to the core; see `rollax.core.extensions`."""

from __future__ import annotations

ALGORITHMS = {
    "ARS": "rollax.search.ars:ARSTrainer",
    "ES": "rollax.search.es:ESTrainer",
}
MOVED = {f"rollax.algorithms.{name}": f"rollax.search.{name}" for name in ("ars", "es")}
