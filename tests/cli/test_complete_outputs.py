"""Results appear complete or not at all: full disks, killed processes, older results."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from thalweg._files import atomic_folder, atomic_write
from thalweg.cli import main
from thalweg.errors import InputError
from thalweg.learn import load

FILES = {"model.thalweg", "states.csv", "forecast.csv", "report.html"}
THALWEG = [sys.executable, "-c", "from thalweg.cli import main; main()"]


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    shares = [[0.7, 0.2, 0.05, 0.05], [0.4, 0.3, 0.2, 0.1], [0.2, 0.3, 0.35, 0.15]]
    rows = ["day,place,n"]
    for day, p in enumerate(shares):
        rows += [f"{day},{s},{n}" for s, n in zip("abcd", rng.multinomial(800, p), strict=True)]
    (tmp_path / "seen.csv").write_text("\n".join(rows))
    (tmp_path / "edges.csv").write_text("source,target\na,b\nb,c\nc,d\n")
    return tmp_path


def _start(data, *arguments, before=None):
    """Run the command in a fork of this process, with its output in a file."""
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        os.chdir(data)
        with open(data / "said.txt", "w") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        if before is not None:
            before()
        try:
            main(list(arguments))
        except SystemExit as ended:
            code = ended.code or 0
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        os._exit(code)


FIT = ("fit", "seen.csv", "--graph", "edges.csv", "--method", "weak")


def _fit(data, *more, before=None):
    process = _start(data, *FIT, *more, before=before)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return code, (data / "said.txt").read_text()


def _whole(folder):
    assert {p.name for p in folder.iterdir()} == FILES
    load(folder / "model.thalweg")
    assert (folder / "report.html").read_text().rstrip().endswith("</html>")
    assert (folder / "forecast.csv").read_text().endswith("\n")


def _hidden(folder):
    return [p.name for p in folder.iterdir() if p.name.startswith(".")]


def test_a_full_disk_leaves_the_older_result_and_nothing_else(data):
    assert _fit(data)[0] == 0
    before = {p.name: p.read_bytes() for p in (data / "thalweg-fit").iterdir()}

    def small_disk():
        # A file may grow to sixteen kilobytes: the report does not fit, as on a disk that is full.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, 16_384))

    for out in ("thalweg-fit", "fresh"):
        code, said = _fit(data, "--out", out, before=small_disk)
        assert code == 2
        assert said.strip().splitlines()[-1].startswith("thalweg: cannot write")
        assert "Traceback" not in said
    assert {p.name: p.read_bytes() for p in (data / "thalweg-fit").iterdir()} == before
    assert not (data / "fresh").exists()
    assert not _hidden(data)


@pytest.fixture
def tiny_disk(tmp_path):
    """A real file system of sixteen kilobytes, where the machine lets us mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=False)


def test_a_real_full_disk(data, tiny_disk):
    code, said = _fit(data, "--out", str(tiny_disk / "out"))
    assert code == 2
    assert "No space left" in said
    assert not list(tiny_disk.iterdir())


def test_a_kill_at_any_moment_leaves_the_old_or_the_new_whole(data):
    with pytest.raises(
        SystemExit
    ):  # Run once here, so that forked processes find everything loaded.
        main(["fit", str(data / "seen.csv"), "--graph", str(data / "edges.csv"), "--method", "weak",
              "--out", str(data / "thalweg-fit")])  # fmt: skip
    started = time.monotonic()
    assert _fit(data)[0] == 0
    took = time.monotonic() - started
    out = data / "thalweg-fit"
    rng = np.random.default_rng(0)
    # Most kills fall into the last part, where the files are written.
    moments = np.concatenate([rng.uniform(0, took, 2), rng.uniform(0.6 * took, 1.1 * took, 6)])
    for moment in moments:
        process = _start(data, *FIT)
        time.sleep(float(moment))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        _whole(out)
    # The next run removes what the killed ones left.
    assert _fit(data)[0] == 0
    assert not _hidden(data)


KILLED = """
import os, signal, sys
from pathlib import Path
import thalweg._files as files
real, calls = getattr(files.os, sys.argv[2]), [int(sys.argv[3])]
def dying(*arguments, **options):
    calls[0] -= 1
    if calls[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **options)
setattr(files.os, sys.argv[2], dying)
with files.atomic_folder(sys.argv[1]) as folder:
    for name in "abc":
        with files.atomic_write(folder / name) as file:
            file.write("new")
"""


@pytest.mark.parametrize("call", ["fsync", "replace", "rename"])
@pytest.mark.parametrize("older", [False, True])
def test_a_kill_at_every_step_of_writing(tmp_path, call, older):
    for step in (0, 2, 3, 5, 7):
        out = tmp_path / f"{call}{step}"
        if older:
            with atomic_folder(out) as folder:
                for name in "abc":
                    (folder / name).write_text("old")
        subprocess.run([sys.executable, "-c", KILLED, str(out), call, str(step)], check=False)
        if not older and not out.exists():
            continue
        text = {p.name: p.read_text() for p in out.iterdir()}
        assert set(text) == set("abc")
        assert len(set(text.values())) == 1


def test_other_files_in_the_folder_are_kept(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    (out / "a").write_text("old")
    with atomic_folder(out) as folder:
        (folder / "a").write_text("new")
    assert {p.name: p.read_text() for p in out.iterdir()} == {"notes.txt": "mine", "a": "new"}
    assert not _hidden(tmp_path)


def test_a_failure_inside_leaves_the_older_folder(tmp_path):
    out = tmp_path / "out"
    with atomic_folder(out) as folder:
        (folder / "a").write_text("old")
    with pytest.raises(RuntimeError, match="half"), atomic_folder(out) as folder:
        (folder / "a").write_text("new")
        raise RuntimeError("half-way")
    assert (out / "a").read_text() == "old"
    assert not _hidden(tmp_path)


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(InputError, match="is a file"), atomic_folder(tmp_path / "out"):
        pass


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_standard_output_on_a_full_disk(data):
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [*THALWEG, "check", "seen.csv", "--graph", "edges.csv"],
            cwd=data, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert ended.returncode == 2
    assert ended.stderr.startswith("thalweg: cannot read or write: No space left")
    assert "Traceback" not in ended.stderr


def test_one_file_is_whole_or_absent(tmp_path):
    target = tmp_path / "x.csv"
    with pytest.raises(RuntimeError), atomic_write(target) as file:
        file.write("half")
        raise RuntimeError
    assert not list(tmp_path.iterdir())
