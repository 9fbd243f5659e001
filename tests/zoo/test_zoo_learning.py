"""Every entry of the zoo reaches its score again; `make learning` runs these.

The settings, targets and curves are in the entries.
"""

import pytest

from rollax import zoo
from rollax.zoo.tables import verdict

pytestmark = pytest.mark.learning


@pytest.mark.parametrize("entry", zoo.entries(), ids=lambda entry: entry.name)
def test_reaches_its_score(entry, capsys, tmp_path):
    with capsys.disabled():
        print(f"\n{entry.name}")
        verified = zoo.verify(entry, folder=tmp_path)
        print(verdict(verified))
    assert verified.passed
