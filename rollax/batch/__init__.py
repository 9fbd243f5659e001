"""Rows of experience: `SampleBatch` for one policy, `MultiAgentBatch` for several policies."""

from rollax.batch.columns import Columns as Columns
from rollax.batch.columns import MissingColumnError as MissingColumnError
from rollax.batch.fragment import Fragment as Fragment
from rollax.batch.multi_agent_batch import DEFAULT_POLICY as DEFAULT_POLICY
from rollax.batch.multi_agent_batch import MultiAgentBatch as MultiAgentBatch
from rollax.batch.sample_batch import SampleBatch as SampleBatch
