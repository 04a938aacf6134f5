"""Sweeps: the same to the last bit however they are run, and never lost."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import joblib
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import sweep_work

from thalweg.errors import InputError
from thalweg_bench import sweep
from thalweg_bench.sweep import Journal, cell_generator, run_sweep

CELLS = [{"n": n, "family": f} for n in range(4) for f in ("grid", "torus")]
HERE = Path(__file__).parent


def _table(result):
    return result.table.drop(columns="seconds")


def test_the_number_of_workers_and_the_order_do_not_matter():
    one = run_sweep("draws", sweep_work.draw, CELLS, seed=1, jobs=1)
    two = run_sweep("draws", sweep_work.draw, CELLS, seed=1, jobs=2)
    back = run_sweep("draws", sweep_work.draw, CELLS[::-1], seed=1, jobs=1)
    pd.testing.assert_frame_equal(_table(one), _table(two), check_exact=True)
    pd.testing.assert_frame_equal(
        _table(one), _table(back)[::-1].reset_index(drop=True), check_exact=True
    )
    other = run_sweep("draws", sweep_work.draw, CELLS, seed=2, jobs=1)
    assert (other.table["value"] != one.table["value"]).all()


def test_a_failed_cell_is_a_row():
    result = run_sweep("draws", sweep_work.draw, [{"n": 12}, {"n": 13}], seed=0)
    assert list(result.table["status"]) == ["ok", "ValueError: thirteen is refused"]
    assert len(result.failed) == 1


def test_a_failed_cell_is_tried_again(tmp_path, monkeypatch):
    cells = [{"n": 12}, {"n": 13}]
    run_sweep("draws", sweep_work.draw, cells, seed=0, folder=tmp_path)
    monkeypatch.setattr(sweep_work, "REFUSED", -1)
    result = run_sweep("draws", sweep_work.draw, cells, seed=0, folder=tmp_path)
    assert list(result.table["status"]) == ["ok", "ok"]
    assert "1 cells that had failed were run again" in result.notes


def test_two_cells_cannot_share_coordinates():
    with pytest.raises(InputError, match="same coordinates"):
        run_sweep("draws", sweep_work.draw, [{"n": 1}, {"n": 1}], seed=0)


def test_a_finished_sweep_is_recognised(tmp_path):
    first = run_sweep("draws", sweep_work.draw, CELLS, seed=1, folder=tmp_path)
    again = run_sweep("draws", sweep_work.draw, CELLS, seed=1, folder=tmp_path)
    assert again.notes == ("all 8 cells were already finished; nothing was run",)
    pd.testing.assert_frame_equal(first.table, again.table, check_exact=True)


def test_other_settings_set_the_journal_aside(tmp_path):
    run_sweep("draws", sweep_work.draw, CELLS, seed=1, folder=tmp_path)
    result = run_sweep("draws", sweep_work.draw, CELLS, seed=2, folder=tmp_path)
    assert "other settings" in result.notes[0]
    assert len(list(tmp_path.glob("draws.journal*"))) == 2
    assert (result.table["status"] == "ok").all()


@pytest.mark.parametrize("damage", ["flip", "cut", "garbage", "header"])
def test_damage_is_reported_and_done_again(tmp_path, damage):
    clean = run_sweep("draws", sweep_work.draw, CELLS, seed=1, folder=tmp_path)
    path = tmp_path / "draws.journal"
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    elif damage == "cut":
        del content[-10:]
    elif damage == "header":
        content[3] ^= 1
    else:
        content += b"\xff\xfe not a line\n"
    path.write_bytes(bytes(content))
    again = run_sweep("draws", sweep_work.draw, CELLS, seed=1, folder=tmp_path)
    assert again.notes
    pd.testing.assert_frame_equal(_table(clean), _table(again), check_exact=True)
    rows, messages = Journal(path, "draws|1|").read()
    assert len(rows) == len(CELLS)
    assert not messages


def test_a_kill_loses_at_most_the_cells_in_flight(tmp_path):
    command = [sys.executable, str(HERE / "sweep_work.py"), str(tmp_path), "2"]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    journal = tmp_path / "killed.journal"
    # Starting takes long on a busy machine; the loop ends as soon as some cells are there.
    for _ in range(6000):
        if journal.exists() and journal.read_bytes().count(b"\n") > 8:
            break
        if process.poll() is not None:
            break
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    finished = journal.read_bytes().count(b"\n") - 1
    assert 0 < finished < 60
    cells = [{"n": n} for n in range(60)]
    resumed = run_sweep("killed", sweep_work.slow_draw, cells, seed=3, jobs=2, folder=tmp_path)
    assert resumed.notes[0].startswith(f"went on from {finished} finished cells")
    fresh = run_sweep("killed", sweep_work.draw, cells, seed=3)
    pd.testing.assert_frame_equal(_table(fresh), _table(resumed), check_exact=True)


def test_generators_differ_between_cells():
    draws = {cell_generator("s", 0, {"n": n}).random() for n in range(100)}
    assert len(draws) == 100


@pytest.mark.filterwarnings("ignore")
def test_a_cluster_gives_the_same_bits_and_survives_a_killed_worker(tmp_path):
    distributed = pytest.importorskip("distributed", reason="the cluster extra is not installed")
    cells = [{"n": n} for n in range(40)]
    environment = {"PYTHONPATH": str(HERE)}
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            host="127.0.0.1",
            env=environment,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        pids = list(client.run(os.getpid).values())

        def kill_one(what, done, total):
            if done == 6 and pids:
                os.kill(pids.pop(), signal.SIGKILL)

        with joblib.parallel_config(backend="dask"):
            result = run_sweep(
                "killed", sweep_work.slow_draw, cells, seed=3, jobs=None, folder=tmp_path,
                progress=kill_one,
            )  # fmt: skip
    assert not pids[1:]
    fresh = run_sweep("killed", sweep_work.draw, cells, seed=3)
    pd.testing.assert_frame_equal(_table(fresh), _table(result), check_exact=True)


def _sealed(*contents):
    return "".join(f"{sweep._seal(content)}\n" for content in contents)


@pytest.mark.parametrize(
    "foreign",
    [[], 3, None, {"key": 1, "row": {}}, {"key": "a"}, {"row": {}}, {"key": "a", "row": []},
     {"key": "a", "row": {"status": 4}}, {"key": "a", "row": {}}, {"owner": "somebody"}],
)  # fmt: skip
def test_sealed_lines_with_foreign_content_are_done_again(tmp_path, foreign):
    clean = run_sweep("draws", sweep_work.draw, CELLS, seed=1, folder=tmp_path)
    path = tmp_path / "draws.journal"
    path.write_text(path.read_text() + _sealed(foreign))
    again = run_sweep("draws", sweep_work.draw, CELLS, seed=1, folder=tmp_path)
    assert any("damaged" in note for note in again.notes)
    pd.testing.assert_frame_equal(_table(clean), _table(again), check_exact=True)


def test_a_sealed_line_that_is_no_json(tmp_path):
    run_sweep("draws", sweep_work.draw, CELLS, seed=1, folder=tmp_path)
    path = tmp_path / "draws.journal"
    for text in ("{", "[" * 100_000):
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        path.write_text(f"{digest} {text}\n" + path.read_text())
        assert run_sweep("draws", sweep_work.draw, CELLS, seed=1, folder=tmp_path).notes


def test_a_second_header_is_skipped(tmp_path):
    clean = run_sweep("draws", sweep_work.draw, CELLS, seed=1, folder=tmp_path)
    path = tmp_path / "draws.journal"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], *lines[:4], lines[0], *lines[4:]]))
    again = run_sweep("draws", sweep_work.draw, CELLS, seed=1, folder=tmp_path)
    assert again.notes == ("all 8 cells were already finished; nothing was run",)
    pd.testing.assert_frame_equal(clean.table, again.table, check_exact=True)


def test_two_sweeps_at_once_do_not_share_a_journal(tmp_path):
    command = [sys.executable, str(HERE / "sweep_work.py"), str(tmp_path), "1"]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    journal = tmp_path / "killed.journal"
    try:
        for _ in range(1200):
            if journal.exists() and journal.read_bytes().count(b"\n") > 1:
                break
            time.sleep(0.02)
        cells = [{"n": n} for n in range(60)]
        with pytest.raises(InputError, match="another process"):
            run_sweep("killed", sweep_work.slow_draw, cells, seed=3, folder=tmp_path)
    finally:
        first.kill()
        first.wait()
    resumed = run_sweep("killed", sweep_work.draw, cells, seed=3, folder=tmp_path)
    fresh = run_sweep("killed", sweep_work.draw, cells, seed=3)
    pd.testing.assert_frame_equal(_table(fresh), _table(resumed), check_exact=True)
    assert journal.read_text().count('"owner"') == 1
