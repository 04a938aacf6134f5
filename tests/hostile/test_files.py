"""Files are written where they were asked for and nowhere else, and keep their permissions."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from thalweg import _files
from thalweg._files import atomic_folder, atomic_write
from thalweg.learn.model_file import read_model, write_model

posix = pytest.mark.skipif(os.name != "posix", reason="symbolic links and modes are POSIX's")


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@posix
def test_a_model_is_not_written_through_a_planted_link(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    target = tmp_path / "model.thalweg"
    (tmp_path / f".{target.name}.{os.getpid()}.part").symlink_to(victim)
    write_model(target, {}, {})
    assert victim.read_text() == "precious"
    assert read_model(target)[0]["format"] == "thalweg-model"
    # The name itself may be a link: it is replaced, not followed.
    target.unlink()
    target.symlink_to(victim)
    write_model(target, {}, {})
    assert victim.read_text() == "precious"
    assert not target.is_symlink()


@posix
def test_a_folder_is_not_written_through_planted_links(tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    host = _files.socket.gethostname()
    (tmp_path / f".out.thalweg-{host}-{os.getpid()}").symlink_to(elsewhere)
    with atomic_folder(tmp_path / "out") as folder:
        (folder / "a").write_text("whole")
    assert (tmp_path / "out" / "a").read_text() == "whole"
    assert not list(elsewhere.iterdir())


@posix
@pytest.mark.parametrize("mode", [0o700, 0o750, 0o2775])
@pytest.mark.parametrize("others", [False, True])
def test_a_replaced_folder_keeps_its_mode(tmp_path, mode, others):
    out = tmp_path / "out"
    out.mkdir()
    (out / "a").write_text("old")
    (out / "a").chmod(0o600)
    if others:
        (out / "mine.txt").write_text("mine")
    out.chmod(mode)
    with atomic_folder(out) as folder:
        with atomic_write(folder / "a") as file:
            file.write("new")
        assert _mode(folder) & 0o077 == 0  # Nobody else reads what is half-written.
    assert (out / "a").read_text() == "new"
    assert _mode(out) == mode
    assert _mode(out / "a") == 0o600


@posix
def test_a_replaced_file_keeps_its_mode_and_a_new_one_has_the_usual(tmp_path):
    for mode in (0o600, 0o640):
        target = tmp_path / "x.csv"
        target.write_text("old")
        target.chmod(mode)
        with atomic_write(target) as file:
            file.write("new")
        assert _mode(target) == mode
    usual = tmp_path / "usual"
    usual.touch()
    with atomic_write(tmp_path / "fresh") as file:
        file.write("new")
    assert _mode(tmp_path / "fresh") == _mode(usual)
    (tmp_path / "usual folder").mkdir()
    with atomic_folder(tmp_path / "fresh folder") as folder:
        (folder / "a").write_text("new")
    assert _mode(tmp_path / "fresh folder") == _mode(tmp_path / "usual folder")


def test_the_working_folder_stays_the_working_folder(tmp_path, monkeypatch):
    out = tmp_path / "work"
    out.mkdir()
    monkeypatch.chdir(out)
    number = out.stat().st_ino
    for text in ("first", "second"):
        with atomic_folder(".") as folder:
            (folder / "a").write_text(text)
        assert out.stat().st_ino == number == os.stat(".").st_ino
        assert Path("a").read_text() == text
        assert sorted(p.name for p in out.iterdir()) == ["a"]
    below = out / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    with atomic_folder("..") as folder:
        (folder / "a").write_text("third")
    assert out.stat().st_ino == number
    assert Path("../a").read_text() == "third"


def test_a_failure_in_the_working_folder_leaves_it_as_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a").write_text("old")
    with pytest.raises(RuntimeError, match="half"), atomic_folder(".") as folder:
        (folder / "a").write_text("new")
        raise RuntimeError("half-way")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a": "old"}
