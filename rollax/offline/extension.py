"""The algorithms and config fields that recorded data adds to the core; see `rollax.core.extensions`."""

from __future__ import annotations

from rollax.offline.fields import DataInputFields, OffPolicyEstimationFields, OutputFields

ALGORITHMS = {
    "BC": "rollax.offline.marwil:BCTrainer",
    "CQL": "rollax.offline.cql:CQLTrainer",
    "DiscreteCQL": "rollax.offline.cql:DiscreteCQLTrainer",
    "IQL": "rollax.offline.iql:IQLTrainer",
    "MARWIL": "rollax.offline.marwil:MARWILTrainer",
    "TD3BC": "rollax.offline.td3_bc:TD3BCTrainer",
}
FIELDS = {
    "FieldsOfEveryConfig": (OutputFields,),
    "FieldsOfReplay": (DataInputFields, OffPolicyEstimationFields),
}
MOVED = {f"rollax.algorithms.{name}": f"rollax.offline.{name}" for name in ("cql", "iql", "marwil", "td3_bc")}
