"""Data sets of experience: writing, reading, and formats of other libraries. Imports no JAX.

PyArrow, h5py and Minari are imported by the formats that need them.
"""

from rollax.data.dataset import DatasetReader, RecordedTrajectory
from rollax.data.reader import open_dataset

__all__ = ["DatasetReader", "RecordedTrajectory", "open_dataset"]
