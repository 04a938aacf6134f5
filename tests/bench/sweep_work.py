"""Cells for the tests of sweeps, importable by worker processes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

REFUSED = 13


def draw(cell, rng):
    if cell.get("n") == REFUSED:
        raise ValueError("thirteen is refused")
    return {"value": rng.standard_normal(), "mean": float(np.mean(rng.random(10)))}


def slow_draw(cell, rng):
    time.sleep(0.05)
    return draw(cell, rng)


def main(folder: str, jobs: int) -> None:
    from thalweg_bench.sweep import run_sweep

    run_sweep(
        "killed", slow_draw, [{"n": n} for n in range(60)], seed=3, jobs=jobs, folder=Path(folder)
    )
    print("finished")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
