"""The groups of fields that the extensions of this distribution contribute."""

from rollax.offline.fields import DataInputFields, OffPolicyEstimationFields
from rollax.offline.output_fields import OutputFields

class FieldsOfEveryConfig(OutputFields): ...
class FieldsOfReplay(DataInputFields, OffPolicyEstimationFields): ...
