"""The commands and the code of the documentation run as they are printed."""

from __future__ import annotations

import re
import shlex
import warnings
from pathlib import Path

import pytest

from thalweg.cli import main

DOCS = Path(__file__).parents[2] / "docs"
NAMES = ("molecules", "places", "transport", "diffusion")
PAGES = ["tutorial.md", *(f"howto/{name}.md" for name in NAMES)]
# Importing scanpy and its neighbours takes longer than the page.
PAGES.append(pytest.param("howto/cells.md", marks=pytest.mark.slow))
BLOCK = re.compile(r'^```(\w+)(?: title="([\w.]+)")?\n(.*?)^```', re.S | re.M)


@pytest.mark.parametrize("page", PAGES)
def test_the_page_runs(page, tmp_path, monkeypatch, capsys):
    if page.endswith("cells.md"):
        pytest.importorskip("scanpy")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    ran = 0
    for language, title, text in BLOCK.findall((DOCS / page).read_text(encoding="utf-8")):
        if title:
            Path(title).write_text(text, encoding="utf-8")
        elif language == "sh":
            for line in text.splitlines():
                words = shlex.split(line, comments=True)
                if words[:1] != ["thalweg"] or words[1:3] == ["demo", "molecule"]:
                    continue
                with pytest.raises(SystemExit) as ended:
                    main(words[1:])
                assert not ended.value.code, (line, capsys.readouterr().err)
                ran += 1
        elif language == "python":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(compile(text, page, "exec"), scope)
            ran += 1
    assert ran
