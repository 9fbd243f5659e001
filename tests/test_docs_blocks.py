"""The Python blocks of README.md and docs/ run, one after another on each page."""

from typing import Any

import pytest

from tests.pages import blocks, each_page_at_length, write_files


# Ray Tune starts Ray by a fork, of which JAX warns if it runs already; whether it does depends on the pages before.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@each_page_at_length
def test_python_blocks_run_one_after_another(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write_files(page, tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page, "python"):
        source = "\n" * block.line + block.text  # so that tracebacks have the line number of the page
        exec(compile(source, str(page), "exec", dont_inherit=True), namespace)  # noqa: S102
