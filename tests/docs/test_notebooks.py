"""The notebooks run from top to bottom, and were saved as they ran."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

matplotlib = pytest.importorskip("matplotlib", reason="needs matplotlib")
matplotlib.use("agg")

BOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


def test_there_are_four():
    assert len(BOOKS) == 4


@pytest.mark.slow
@pytest.mark.parametrize("book", BOOKS, ids=lambda book: book.stem)
@pytest.mark.filterwarnings("ignore")
def test_it_runs(book, tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    cells = json.loads(book.read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), book.name, "exec"), scope)
            assert cell["execution_count"], "saved without having been run"
            assert not [o for o in cell["outputs"] if o["output_type"] == "error"]
    plt.close("all")
