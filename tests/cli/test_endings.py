"""How commands end: code 3 without convergence, 130 after Ctrl-C, and what they leave behind."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading

import numpy as np
import pandas as pd
import pytest

from thalweg import FreeEnergyRegressor, MarkovKernel, Snapshots, Status, load
from thalweg.cli import main

KERNEL = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]], names=["a", "b", "c"])
COUNTS = [[80, 15, 5], [50, 30, 20], [40, 35, 25]]


@pytest.fixture
def place(tmp_path):
    rows = [(t, s, n) for t, row in enumerate(COUNTS) for s, n in zip("abc", row, strict=True)]
    pd.DataFrame(rows, columns=["time", "state", "count"]).to_csv(tmp_path / "s.csv", index=False)
    (tmp_path / "e.csv").write_text("source,target\na,b\nb,c\n")
    for name, shares in (("p", (0.5, 0.3, 0.2)), ("q", (0.2, 0.3, 0.5))):
        frame = pd.DataFrame({"state": list("abc"), "share": shares})
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    model = FreeEnergyRegressor(method="weak").fit(KERNEL, Snapshots.from_counts([0, 1, 2], COUNTS))
    model.save(tmp_path / "m.thalweg")
    return tmp_path


@pytest.fixture
def interruptible():
    """Restore Ctrl-C, which a shell makes background jobs ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ended(*arguments):
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    return end.value.code


def _stalls(monkeypatch, owner, name):
    """Make a computation report that it did not converge."""
    real = getattr(owner, name)

    def stalled(*arguments, **options):
        return dataclasses.replace(real(*arguments, **options), status=Status.STALLED)

    monkeypatch.setattr(owner, name, stalled)


@pytest.mark.parametrize("command", ["distance", "geodesic", "interpolate", "forecast"])
def test_without_convergence_the_code_is_three(capsys, monkeypatch, place, command):
    from thalweg.geometry import TransportGeometry

    _stalls(monkeypatch, TransportGeometry, "geodesic")
    _stalls(monkeypatch, FreeEnergyRegressor, "predict")
    graph = ("--graph", place / "e.csv", "--json")
    pair = (place / "p.csv", place / "q.csv", *graph)
    arguments = {
        "distance": pair,
        "geodesic": pair,
        "interpolate": (place / "s.csv", *graph, "--times", "0.5", "--method", "geodesic"),
        "forecast": (place / "m.thalweg", "--times", "1,2", "--json"),
    }
    assert ended(command, *arguments[command]) == 3
    said = capsys.readouterr()
    assert json.loads(said.out)["status"] == "STALLED"
    assert Status.STALLED.value in said.err


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("moment", ["fit", "report"])
def test_ctrl_c_keeps_older_results(capsys, monkeypatch, place, moment):
    """The interruption comes in the optimiser, or when the fit is done and the page is drawn."""
    out = place / "out"
    out.mkdir()
    (out / "model.thalweg").write_text("older")

    def interrupt(*arguments, **options):
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(10)  # until the signal arrives

    if moment == "report":
        monkeypatch.setattr("thalweg.cli.fit.fit_page", interrupt)
    else:
        import thalweg.learn.likelihood.stages as search

        monkeypatch.setattr(search.Stages, "_suspicious", interrupt)
    code = ended("fit", place / "s.csv", "--graph", place / "e.csv", "--out", out)
    said = capsys.readouterr().err
    assert code == 130
    assert (out / "model.thalweg").read_text() == "older"
    assert "out.unfinished" in said
    kept = load(place / "out.unfinished" / "model.thalweg")
    assert kept.status_ is Status.INTERRUPTED
    assert np.isfinite(kept.potential_).all()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_that_is_swallowed_comes_again():
    from thalweg.cli.interrupt import stopping_soon

    caught = 0
    with pytest.raises(KeyboardInterrupt), stopping_soon():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            while True:
                pass
        except KeyboardInterrupt:
            caught += 1
        while True:
            pass
    assert caught == 1
