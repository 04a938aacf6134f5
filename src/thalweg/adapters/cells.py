"""AnnData in the scverse way: reads `obs` and `obsp`, writes `obs`, `obsm` and `uns`.

Everything that is written has its name in `Keys`, and nowhere else.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from thalweg._optional import optional
from thalweg._types import Array
from thalweg._words import damage, listed
from thalweg.adapters.edges import largest
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel, as_csr
from thalweg.learn import FreeEnergyRegressor
from thalweg.learn.answer import SMALL_STATES
from thalweg.snapshots import Snapshots, TimeScale, read_times
from thalweg.snapshots.columns import Oddity

MOST_CELLS_AS_STATES = 300
"""Number of cells up to which each is its own state, and above which cells are grouped."""
_PROBE_SECONDS, _PROBE_BYTES = 5, 20_000_000
"""CPU seconds to probe a file's structure, and the bytes that add one; it takes 0.01 s."""
_LOOKED_AT = 2**20
"""Bytes of an array below which that probe reads it."""
_EMBEDDINGS = ("X_umap", "X_tsne", "X_draw_graph_fa", "X_phate", "X_diffmap")


class Keys:
    """The keys under which results are written, for a prefix such as `thalweg`.

    >>> Keys("thalweg").potential
    'thalweg_potential'
    """

    def __init__(self, prefix: str = "thalweg") -> None:
        self.summary = prefix
        """`uns`: beta, times, status, settings."""
        self.state = f"{prefix}_state"
        """`obs`: the state that a cell belongs to."""
        self.potential = f"{prefix}_potential"
        """`obs`: the potential at the cell."""
        self.potential_stderr = f"{prefix}_potential_stderr"
        """`obs`: standard error of the potential of the cell's state."""
        self.equilibrium = f"{prefix}_equilibrium"
        """`obs`: the cell's share of the population at rest."""
        self.probabilities = f"{prefix}_probabilities"
        """`obsm`: the cell's share of the fitted population, one column per time."""
        self.fates = f"{prefix}_fates"
        """`obsm`: probability of each fate of the cell's state; `uns`: their names."""
        self.fates_stderr = f"{prefix}_fates_stderr"
        """`obsm`: standard errors of the fates."""
        self.landscape = f"{prefix}_landscape"
        """`obs`: a potential learned on an embedding; `uns`: its beta, test of fit and warnings."""


@dataclass(frozen=True, eq=False)
class CellProblem:
    """States, their kernel and counts, and which cell is in which state."""

    kernel: MarkovKernel
    snapshots: Snapshots
    label: NDArray[np.intp]
    """The state of each cell; -1 for cells outside the largest component."""
    connectivities: sparse.csr_array
    messages: tuple[str, ...] = ()


def read_h5ad(path: Any) -> Any:
    """The AnnData object in a file."""
    anndata = optional("anndata", extra="anndata", what="reading .h5ad")
    _probe(Path(path))
    try:
        return anndata.read_h5ad(path)
    except Exception as error:  # h5py raises many types for a damaged file
        raise InputError(f"{path} is not a readable .h5ad file: {damage(error)}.") from None


def _probe(path: Path) -> None:
    """Walk through the structure of an HDF5 file in a separate process, with limited time.

    The HDF5 library follows damaged addresses: it may crash, or loop for ever.
    """
    if not hasattr(os, "fork") or not path.is_file():
        return
    import resource

    import h5py

    seconds = int(_PROBE_SECONDS + path.stat().st_size / _PROBE_BYTES)
    child = os.fork()
    if child == 0:
        code = 0  # A file that cannot be opened is reported when it is read.
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            with h5py.File(path, "r") as file:
                code = 1
                _look(file)
                file.visititems(lambda _, item: _look(item))
                code = 0
        finally:
            os._exit(code)
    _, ended = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(ended) != 0:
        raise InputError(f"{path} is damaged: the HDF5 library cannot read it; copy it again.")


def _look(item: Any) -> None:
    """Read the attributes of one item and, if it is small, its content.

    An error that Python can catch does not end the walk: what follows may crash or loop.
    """
    with contextlib.suppress(Exception):
        for name in item.attrs:
            with contextlib.suppress(Exception):
                item.attrs[name]
    with contextlib.suppress(Exception):
        if getattr(item, "nbytes", _LOOKED_AT) < _LOOKED_AT:
            item[()]


def cell_problem(
    adata: Any,
    *,
    time_key: str,
    state_key: str | None = None,
    neighbors_key: str | None = None,
    n_states: int | None = None,
    seed: int = 0,
    largest_component: bool = False,
) -> CellProblem:
    """States and counts from annotated cells.

    States are the groups in `obs[state_key]`; without it, up to 300 cells are states themselves,
    and more are grouped by k-means on the graph's slow modes. Two states are joined by the total
    connectivity between their cells. Times are read by `read_times`: `day-2`, `E8.5`, numbers and
    dates. If the states form several components, `largest_component` keeps the largest.
    """
    moments, row, scale = cell_times(adata, time_key)
    weights = connectivities(adata, neighbors_key)
    if state_key is not None:
        if state_key not in adata.obs:
            raise _missing("state_key", state_key, adata.obs.columns)
        _labelled(adata, state_key)
        names, label = np.unique(adata.obs[state_key].astype(str).to_numpy(), return_inverse=True)
        shown = [str(name) for name in names]
    elif adata.n_obs <= MOST_CELLS_AS_STATES and n_states is None:
        label = np.arange(adata.n_obs)
        shown = [str(name) for name in adata.obs_names]
    else:
        label = _groups(weights, n_states or int(np.clip(adata.n_obs // 30, 20, 200)), seed)
        shown = [f"group {k}" for k in range(int(label.max()) + 1)]
    count = len(shown)
    gather = sparse.csr_array(
        (np.ones(adata.n_obs), (label, np.arange(adata.n_obs))), shape=(count, adata.n_obs)
    )
    between = sparse.csr_array(gather @ weights @ gather.T)
    keep = largest(between, "the data", shown, largest_component)
    messages: list[str] = []
    if len(keep) < count:
        new = np.full(count, -1)
        new[keep] = np.arange(len(keep))
        label, between = new[label], between[keep][:, keep]
        messages.append(f"kept the largest component: {len(keep)} of {count} states")
        messages.append(Oddity(f"{int((label < 0).sum())} cells outside it are left out"))
        shown = [shown[k] for k in keep]
    inside = label >= 0
    middle = None
    # Coordinates of larger problems would shape the prior: an embedding is for pictures only.
    xy = _embedding(adata) if len(shown) <= SMALL_STATES else None
    if xy is not None:
        size = np.bincount(label[inside], minlength=len(shown))
        sums = [np.bincount(label[inside], axis[inside], len(shown)) for axis in xy.T]
        middle = np.column_stack(sums) / size[:, None]
    kernel = MarkovKernel.from_weights(between, names=shown, coordinates=middle)
    counts = np.zeros((moments.size, len(shown)))
    np.add.at(counts, (row[inside], label[inside]), 1.0)
    seen = Snapshots.from_counts(moments, counts, names=shown)
    if scale.unit:
        example = str(adata.obs[time_key].iloc[0])[:40]
        messages.append(f"times such as {example!r} are read as {moments[row[0]]:g} {scale}")
    return CellProblem(kernel, replace(seen, scale=scale), label, weights, tuple(messages))


def check_written(adata: Any, place: str, key: str, step: str) -> None:
    """Reject cells that lack what an earlier step writes to `adata.obs` or another place."""
    if key not in getattr(adata, place):
        raise InputError(f"adata.{place} has no {key!r}; run thalweg.tl.{step} first.")


def embedding(adata: Any, basis: str) -> tuple[str, Array]:
    """The key of an embedding, with or without `X_`, and its coordinates."""
    key = basis if basis in adata.obsm else f"X_{basis}"
    if key not in adata.obsm:
        raise InputError(f"adata.obsm has no {basis!r}; there are {listed(adata.obsm) or 'none'}.")
    return key, np.asarray(adata.obsm[key], dtype=np.float64)


def _embedding(adata: Any) -> Any | None:
    """Positions to draw the cells at: two columns of the first common embedding."""
    for key in _EMBEDDINGS:
        if key in adata.obsm:
            xy = embedding(adata, key)[1]
            if xy.ndim == 2 and xy.shape[1] >= 2 and np.isfinite(xy[:, :2]).all():
                return xy[:, :2]
    return None


def write_results(adata: Any, problem: CellProblem, model: FreeEnergyRegressor, keys: Keys) -> None:
    """Write potential, errors, equilibrium and fitted populations back to the cells."""
    label = problem.label
    size = np.bincount(label, minlength=problem.kernel.n_states)
    names = problem.kernel.names or ()
    adata.obs[keys.state] = pd.Categorical([str(names[x]) for x in label])
    adata.obs[keys.potential] = _smoothed(problem, model.potential_)
    adata.obs[keys.potential_stderr] = model.potential_stderr_[label]
    rest = model.energy_.equilibrium(problem.kernel)
    adata.obs[keys.equilibrium] = (rest / size)[label]
    fitted = model.predict(None, problem.snapshots.times).probabilities
    adata.obsm[keys.probabilities] = (fitted / size)[:, label].T
    adata.uns[keys.summary] = {
        "beta": float(model.beta_),
        "beta_stderr": float(model.beta_stderr_),
        "times": np.asarray(problem.snapshots.times),
        "status": model.status_.name,
        "method": str(model.method),
        "states": np.array([str(name) for name in names]),
        "potential": np.asarray(model.potential_),
        "potential_stderr": np.asarray(model.potential_stderr_),
    }


def cell_times(adata: Any, key: str) -> tuple[Array, NDArray[np.intp], TimeScale]:
    """The distinct times, the index of each cell's, and what they mean."""
    if not hasattr(adata, "obs"):
        raise InputError(f"adata is a {type(adata).__name__}; give an AnnData of cells.")
    if key not in adata.obs:
        raise _missing("time_key", key, adata.obs.columns)
    _labelled(adata, key)
    code, values = pd.factorize(adata.obs[key])

    def place(k: int) -> str:
        return f"for cell {str(adata.obs_names[int(np.argmax(code == k))])[:40]!r}"

    numbers, scale = read_times(values, f"obs[{key!r}]", place)
    moments, order = np.unique(numbers, return_inverse=True)
    return moments, order[code], scale


def label_columns(adata: Any, time_key: str) -> list[str]:
    """Columns of `obs` that could name states: 3 to 100 categories, each of several cells."""
    return [
        str(key)
        for key, column in adata.obs.items()
        if key != time_key
        and isinstance(column.dtype, pd.CategoricalDtype)
        and 3 <= len(column.cat.categories) <= min(100, adata.n_obs // 5)
    ]


def _labelled(adata: Any, key: str) -> None:
    """Reject cells without a label, which would become a state or a time of their own."""
    missing = adata.obs[key].isna().to_numpy()
    if missing.any():
        first = str(adata.obs_names[int(np.argmax(missing))])[:40]
        raise InputError(
            f"obs[{key!r}] is missing for {int(missing.sum())} of {adata.n_obs} cells, {first!r} "
            f"for one; drop them with adata[adata.obs[{key!r}].notna()]."
        )


def connectivities(adata: Any, neighbors_key: str | None) -> sparse.csr_array:
    """The symmetrised weights between neighbouring cells."""
    key = "connectivities"
    if neighbors_key is not None:
        if neighbors_key not in adata.uns:
            raise _missing("neighbors_key", neighbors_key, list(adata.uns))
        key = adata.uns[neighbors_key].get("connectivities_key", key)
    if key not in adata.obsp:
        raise InputError(
            f"adata.obsp has no {key!r}; compute the neighbours first, with "
            "scanpy.pp.neighbors(adata)."
        )
    weights = as_csr(adata.obsp[key], f"obsp[{key!r}]")
    weights = (weights + weights.T) / 2
    weights.eliminate_zeros()
    return sparse.csr_array(weights)


def _groups(weights: sparse.csr_array, count: int, seed: int) -> NDArray[np.intp]:
    """Connected-looking groups of cells: k-means on the slow modes of the walk between them."""
    from scipy.sparse.linalg import eigsh
    from sklearn.cluster import KMeans

    degree = np.asarray(weights.sum(axis=1)).ravel()
    root = np.sqrt(np.maximum(degree, 1e-300))
    symmetric = sparse.diags_array(1 / root) @ weights @ sparse.diags_array(1 / root)
    start = np.random.default_rng(seed).standard_normal(weights.shape[0])
    values, vectors = eigsh(symmetric, k=min(15, weights.shape[0] - 2), which="LA", v0=start)
    modes = vectors / root[:, None] * np.maximum(values, 0) ** 4
    modes = modes / np.maximum(modes.std(axis=0), 1e-12) * np.maximum(values, 0) ** 4
    found = KMeans(count, n_init=2, random_state=seed).fit_predict(modes)
    return np.unique(found, return_inverse=True)[1]


def _smoothed(problem: CellProblem, potential: Array) -> Array:
    """A cell's potential: the mean over its own state (half) and its neighbours' states (half)."""
    own = potential[problem.label]
    if problem.label.size == problem.kernel.n_states:
        return own
    weights = problem.connectivities
    degree = np.maximum(np.asarray(weights.sum(axis=1)).ravel(), 1e-300)
    return np.asarray(0.5 * own + 0.5 * (weights @ own) / degree)


def _missing(option: str, key: str, there: Any) -> InputError:
    return InputError(
        f"{option} is {key!r}, which the data do not have; there are {listed(there)}."
    )
