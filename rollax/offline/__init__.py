"""Recorded data: data sets and their formats, learning from them, and off-policy estimates.

PyArrow, h5py and Minari are imported by the formats that need them. The tables are what recorded data adds to the core;
see `rollax.core.extensions`.
"""

ALGORITHMS = {
    "BC": "rollax.offline.marwil:BCTrainer",
    "CQL": "rollax.offline.cql:CQLTrainer",
    "DiscreteCQL": "rollax.offline.cql:DiscreteCQLTrainer",
    "IQL": "rollax.offline.iql:IQLTrainer",
    "MARWIL": "rollax.offline.marwil:MARWILTrainer",
    "TD3BC": "rollax.offline.td3_bc:TD3BCTrainer",
}
FIELDS = {
    "FieldsOfEveryConfig": ("rollax.offline.output_fields:OutputFields",),
    "FieldsOfReplay": ("rollax.offline.fields:DataInputFields", "rollax.offline.fields:OffPolicyEstimationFields"),
}
NAMES_IN_SECTIONS = {"input_config": ("format", "env")}
MOVED = {f"rollax.algorithms.{name}": f"rollax.offline.{name}" for name in ("cql", "iql", "marwil", "td3_bc")}
