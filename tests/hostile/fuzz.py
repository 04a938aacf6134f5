"""Damaged files of every format through the command line: `make fuzz` prints how they ended.

Workers run the command line's entry point on file after file, so that ten thousand of a format cost
minutes. This process notices a worker that dies or hangs, keeps the file it was working on, and
starts another worker after that file. These count as wrong: a signal, a traceback, any exit code
but 0, 2 and 3, a refusal that is not one sentence, more than `LIMIT` CPU seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

LIMIT = 30.0
"""Limit in CPU seconds for one file; a typical one takes a fiftieth of a second."""
MEMORY = 8 * 2**30
"""Limit in bytes for a worker."""
ALL = "all"
"""As a kind: the formats in turn."""
REPORT_EVERY = 3500
"""Files after which the counts so far are printed."""


@dataclass
class Outcome:
    """How the files of one kind, or of each kind in turn, ended."""

    kind: str
    counts: Counter[str] = field(default_factory=Counter)
    """Number of files by outcome."""
    kinds: dict[str, Counter[str]] = field(default_factory=dict)
    """The same for each kind of file."""
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0
    progress: bool = False

    def note(self, kinds: tuple[str, ...], at: int, how: str) -> None:
        """Record how file number `at` ended."""
        self.counts[how] += 1
        self.kinds.setdefault(kinds[at % len(kinds)], Counter())[how] += 1
        if self.progress and sum(self.counts.values()) % REPORT_EVERY == 0:
            print(table(self), flush=True)


def run(
    kind: str,
    count: int,
    *,
    seed: int = 0,
    keep: Path | None = None,
    start: int = 0,
    progress: bool = False,
) -> Outcome:
    """Put `count` damaged files of one kind, or of each kind in turn, through the command line."""
    outcome = Outcome(kind, progress=progress)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        at = start
        while at < start + count:
            at = _watch(outcome, folder, kind, seed, at, start + count, keep)
    outcome.seconds = time.monotonic() - began
    return outcome


def _watch(
    outcome: Outcome, folder: Path, kind: str, seed: int, start: int, stop: int, keep: Path | None
) -> int:
    """Run one worker; return the index that the next one should begin with."""
    from hostile.mutants import KINDS

    kinds = KINDS if kind == ALL else (kind,)
    arguments = [sys.executable, __file__, "--worker", kind, str(seed), str(start), str(stop)]
    said = folder / "worker.txt"
    with said.open("w") as errors:
        worker = subprocess.Popen(
            [*arguments, str(folder)], stdout=subprocess.PIPE, stderr=errors, text=True
        )
    assert worker.stdout is not None
    os.set_blocking(worker.stdout.fileno(), False)
    at, since, hung = start - 1, 0.0, False
    pending = ""
    while True:
        ended = worker.poll()
        pending += _read(worker.stdout.fileno())
        *lines, pending = pending.split("\n")
        for line in lines:
            word, _, rest = line.partition(" ")
            if word == "at":
                at, since = int(rest), _cpu(worker.pid)
            elif word == "ended":
                outcome.note(kinds, at, rest)
            elif word == "wrong":
                outcome.note(kinds, at, "wrong")
                _note(outcome, folder, keep, kind, at, rest.replace("\\n", "\n"))
        if ended is not None:
            break
        if at >= start and _cpu(worker.pid) - since > LIMIT:
            hung = True
            worker.kill()
        time.sleep(0.02)
    worker.stdout.close()
    if ended == 0:
        return stop
    outcome.note(kinds, max(at, start), "hang" if hung else "signal")
    why = f"more than {LIMIT:g} CPU s" if hung else f"worker ended with {ended}"
    _note(outcome, folder, keep, kind, at, f"{why}: {said.read_text()[-2000:]}")
    return max(at, start) + 1


def _read(descriptor: int) -> str:
    parts = []
    with contextlib.suppress(BlockingIOError):
        while part := os.read(descriptor, 65536):
            parts.append(part)
    return b"".join(parts).decode()


def _cpu(process: int) -> float:
    """CPU seconds of a process; elapsed seconds where the system does not give them."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return time.monotonic()


def _note(outcome: Outcome, folder: Path, keep: Path | None, kind: str, at: int, what: str) -> None:
    outcome.wrong.append(f"{kind} {at}: {what}")
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        for file in folder.glob("mutant.*"):
            (keep / f"{at}.{file.name}").write_bytes(file.read_bytes())


def work(kind: str, seed: int, start: int, stop: int, folder: Path) -> None:
    """The worker: make each file, run the command on it, report how it ended."""
    import numpy as np

    from hostile.mutants import KINDS, command, mutant, sound_files
    from thalweg.cli import main

    kinds = KINDS if kind == ALL else (kind,)

    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    report = os.fdopen(os.dup(1), "w", buffering=1)
    sound = sound_files(folder)
    for kind in kinds:
        for index in (1, 2, 3):  # Import and compile before the first file.
            place = sound["edges"] if kind == "csv" and index % 3 == 0 else sound[kind]
            _end(main, command(kind, place, sound, index), folder)
    gc.freeze()  # Scanning what is loaded in every garbage collection took half of the time.
    for index in range(start, stop):
        kind = kinds[index % len(kinds)]
        file = folder / f"mutant.{kind}"
        rng = np.random.default_rng([seed, KINDS.index(kind), index])
        try:
            file.write_bytes(mutant(kind, sound, rng, index))
        except Exception:  # A mutation that its own library refuses to write.
            print(f"at {index}\nended skipped", file=report)
            continue
        print(f"at {index}", file=report)
        code, text = _end(main, command(kind, file, sound, index), folder)
        said = [line for line in text.splitlines() if line.startswith("thalweg: ")]
        if code not in (0, 2, 3) or "Traceback" in text or (code == 2 and len(said) != 1):
            print("wrong " + f"exit {code}: {text[-1500:]}".replace("\n", "\\n"), file=report)
        else:
            print(f"ended {code}", file=report)


def _end(main: object, arguments: list[str], folder: Path) -> tuple[object, str]:
    """Exit code and standard error of one command, in this process."""
    said = folder / "said.txt"
    code: object = 0
    with said.open("w") as errors, open(os.devnull, "w") as nowhere:
        before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = nowhere, errors
        try:
            main(arguments)  # type: ignore[operator]
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException:
            code = "traceback"
            traceback.print_exc(file=errors)
        finally:
            sys.stdout, sys.stderr = before
    return code, said.read_text(errors="replace")


def table(outcome: Outcome) -> str:
    """The counts, one row per kind of file."""
    columns = ("files", "refused", "accepted", "not converged", "wrong", "signals", "hangs")
    keys = (None, "2", "0", "3", "wrong", "signal", "hang")
    lines = [f"{'format':10}" + "".join(f"{c:>15}" for c in columns)]
    for kind, counts in outcome.kinds.items():
        shown = [sum(counts.values()) if key is None else counts[key] for key in keys]
        lines.append(f"{kind:10}" + "".join(f"{n:15}" for n in shown))
    return "\n".join(lines)


def main() -> None:
    from hostile.mutants import KINDS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000, help="damaged files of each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="the first number of a file")
    parser.add_argument("--format", default=ALL, choices=[*KINDS, ALL])
    parser.add_argument("--keep", type=Path, default=Path("out/fuzz"), help="for what went wrong")
    options = parser.parse_args()
    count = options.files * (len(KINDS) if options.format == ALL else 1)
    found = run(
        options.format, count, seed=options.seed, keep=options.keep, start=options.start,
        progress=True,
    )  # fmt: skip
    print("\n".join([*found.wrong[:40], table(found), f"{found.seconds:.0f} seconds"]))
    sys.exit(bool(found.wrong))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        given, seed, start, stop, folder = sys.argv[2:]
        work(given, int(seed), int(start), int(stop), Path(folder))
    else:
        main()
