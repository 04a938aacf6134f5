"""A small part of `make fuzz`: damaged files of every format end with a sentence."""

from __future__ import annotations

import pytest

pytest.importorskip("anndata")
pytest.importorskip("pyarrow")

from hostile import fuzz


def test_damaged_files_of_every_format(tmp_path):
    outcome = fuzz.run(fuzz.ALL, 140, seed=5, keep=tmp_path)
    assert not outcome.wrong, "\n".join(outcome.wrong)
    assert sum(outcome.counts.values()) == 140
    assert outcome.counts["2"] > 50


def test_the_watch_sees_crashes_and_tracebacks(monkeypatch, tmp_path):
    """The fuzzer itself: a worker that dies is counted, and the remaining files are still run."""
    dying = tmp_path / "dying.py"
    dying.write_text(
        "import os, signal, sys\n"
        "start, stop = int(sys.argv[4]), int(sys.argv[5])\n"
        "for k in range(start, stop):\n"
        "    print('at', k, flush=True)\n"
        "    if k == 3: os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    print('wrong a\\\\nb' if k == 5 else 'ended 2', flush=True)\n"
    )
    monkeypatch.setattr(fuzz, "__file__", str(dying))
    outcome = fuzz.run("csv", 8)
    assert outcome.counts == {"2": 6, "signal": 1, "wrong": 1}
    assert outcome.wrong[0].startswith("csv 3: worker ended with -11")
    assert "a\nb" in outcome.wrong[1]
