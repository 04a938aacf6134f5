"""The README's example runs, and does what it says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_ten_lines_run_and_recover_the_truth():
    code = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S).group(1)
    printed = io.StringIO()
    scope: dict[str, object] = {}
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), scope)
    beta, correlation, shape = printed.getvalue().splitlines()
    # Seeded: 5000 individuals at 11 times leave a few per cent of error.
    assert 0.17 < float(beta.split()[2]) < 0.23
    assert float(correlation.split()[1]) > 0.95
    assert shape == "(1, 40)"


def test_every_linked_file_exists():
    text = README.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (README.parent / target).exists(), target
