"""The groups of fields that the extensions of this distribution contribute."""

from rollax.offline.estimation_fields import OffPolicyEstimationFields
from rollax.offline.input_fields import DataInputFields
from rollax.offline.output_fields import OutputFields

class FieldsOfEveryConfig(OutputFields): ...
class FieldsOfReplay(DataInputFields, OffPolicyEstimationFields): ...
