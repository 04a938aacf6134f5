"""Every independent job runs through joblib's configured backend."""

from __future__ import annotations

import sys
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
from joblib._parallel_backends import ThreadingBackend

sys.path.insert(0, str(Path(__file__).parent))
import sweep_work

from thalweg.geometry import TransportGeometry
from thalweg.kernel import MarkovKernel
from thalweg.learn.regressor import FreeEnergyRegressor
from thalweg.points.evaluation import leave_one_time_out
from thalweg.snapshots import Snapshots
from thalweg_bench.sweep import run_sweep

PATH = MarkovKernel.from_weights([[0, 1, 0], [1, 0, 1], [0, 1, 0]])


class Counting(ThreadingBackend):
    """Threads that count what they are given."""

    given = 0

    def submit(self, func, callback=None):
        Counting.given += 1
        return super().submit(func, callback)

    apply_async = submit


joblib.register_parallel_backend("counting", Counting)


def sweep(jobs):
    cells = [{"n": n} for n in range(8)]
    result = run_sweep("draws", sweep_work.draw, cells, seed=1, jobs=jobs)
    return result.table.drop(columns="seconds")


def bootstrap(jobs):
    counts = [[800, 150, 50], [600, 290, 110], [470, 370, 160], [400, 410, 190]]
    seen = Snapshots.from_counts([0.0, 0.5, 1.0, 1.5], counts)
    found = FreeEnergyRegressor().fit(PATH, seen).bootstrap(seen, 4, jobs=jobs)
    return pd.DataFrame(found.potentials).assign(beta=found.betas)


def distances(jobs):
    ps = np.random.default_rng(0).dirichlet(np.ones(3), 5)
    # By default all workers are used: one on a machine with one core.
    chosen = 2 if jobs is None else jobs
    return pd.DataFrame(TransportGeometry(PATH).distance_matrix(ps, jobs=chosen))


def left_out(jobs):
    rng = np.random.default_rng(0)
    clouds = [rng.normal([t, 0], 0.3, size=(40, 2)) for t in range(4)]
    table = leave_one_time_out(
        range(4), clouds, methods=["displacement"], n_states=8, n_partitions=1,
        baselines=["mixture of neighbours"], jobs=jobs,
    )  # fmt: skip
    return table.drop(columns="seconds")


@pytest.mark.parametrize("job", [sweep, bootstrap, distances, left_out])
def test_the_configured_backend_does_the_work_with_the_same_result(job) -> None:
    alone = job(1)
    before = Counting.given
    with joblib.parallel_config(backend="counting", n_jobs=2):
        moved = job(None)
    assert Counting.given > before
    # Rounding depends on how many threads BLAS has, which workers set for each other.
    pd.testing.assert_frame_equal(alone, moved, rtol=1e-8, atol=1e-10)
