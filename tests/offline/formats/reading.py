"""Reading and writing small data sets of other libraries."""

import json

import numpy as np
import pytest
from gymnasium import spaces

from rollax import DatasetError, open_dataset

BOX1 = spaces.Box(-np.inf, np.inf, (1,), np.float32)
BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)


def read(source, **settings):
    return list(open_dataset(source, **settings).trajectories())


def unreadable(message, source, **settings):
    with pytest.raises(DatasetError, match=message):
        read(source, **settings)


def lines(path, *values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path
