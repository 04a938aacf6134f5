"""The first minute: what is compiled for the first fit and the first distance on a new machine.

A fresh process with an empty cache fits 12 states and computes a distance between two random
distributions on them. Compilation is timed by numba's own events; CPU seconds are counted, which
on a machine busy with other work come out up to twice as high.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

import pandas as pd

from thalweg_bench import BenchResult, BenchSettings

__all__ = ["run"]

_SCRIPT = """
import json, time
begun = time.process_time()
import numpy as np, thalweg
from numba.core import event
compiled, running = {"n": 0, "seconds": 0.0}, []
class Listener(event.Listener):
    def on_start(self, event):
        running.append(time.process_time())
    def on_end(self, event):
        taken = time.process_time() - running.pop()
        compiled["n"] += 1
        if not running:
            compiled["seconds"] += taken
event.register("numba:compile", Listener())
rows = [("import", time.process_time() - begun, 0.0, 0)]
def measure(name, work):
    begun, seconds, n = time.process_time(), compiled["seconds"], compiled["n"]
    work()
    rows.append((name, time.process_time() - begun, compiled["seconds"] - seconds,
                 compiled["n"] - n))
rng = np.random.default_rng(SEED)
kernel = thalweg.make_graph("delaunay", 12, rng=rng)
energy = thalweg.FreeEnergy(rng.uniform(-1, 1, 12), 0.2)
p, q = rng.dirichlet(np.ones(12), 2)
start = p
counts = [rng.multinomial(2000, p)]
for _ in range(5):
    start = start * np.exp(-0.2 * energy.potential)
    counts.append(rng.multinomial(2000, start / start.sum()))
seen = thalweg.Snapshots.from_counts(np.arange(6.0), counts)
model = thalweg.FreeEnergyRegressor()
geometry = thalweg.TransportGeometry(kernel)
measure("first fit", lambda: model.fit(kernel, seen))
measure("first distance", lambda: geometry.distance(p, q))
measure("second fit", lambda: model.fit(kernel, seen))
measure("second distance", lambda: geometry.distance(p, q))
print(json.dumps(rows))
"""


def run(settings: BenchSettings) -> BenchResult:
    """CPU seconds of the first and the second fit and distance, and how much was compilation."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT.replace("SEED", str(settings.seed))],
            env={**os.environ, "NUMBA_CACHE_DIR": folder},
            capture_output=True,
            text=True,
            check=True,
        )
    columns = ["step", "CPU seconds", "of them compiling", "functions compiled"]
    table = pd.DataFrame(json.loads(done.stdout.splitlines()[-1]), columns=columns)
    total = table["of them compiling"].sum()
    return BenchResult(
        table, notes=(f"First fit and first distance: {total:.1f} CPU seconds of compilation.",)
    )
