"""Sound files of every format that the command line reads, and damaged copies of them."""

from __future__ import annotations

import gzip
import hashlib
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from hostile.forging import STRANGE, changed, paths, seal, strange_arrays
from thalweg.learn.model_file import read_model

Rng = np.random.Generator
NAMES = ["liver", "lung", "=brain", "spleen", "3"]
EDGES = [(0, 1, 1.0), (1, 2, 2.5), (2, 3, 0.5), (3, 4, 1.0), (0, 4, 2.0)]
NUMBERS = (
    b"-1", b"0", b"nan", b"inf", b"1e308", b"9" * 30, b"0x10", b"2024-02-30", b"''", b"\xff\xfe",
    b"\x00", b"\n", b",,,", b'"', b"=1", b"<a>", b"&lol;", b"]]>", b"\xf0\x9f\x98\x80",
)  # fmt: skip


def sound_files(folder: Path) -> dict[str, Path]:
    """One sound file of each format, by its kind; they fit each other."""
    import networkx as nx

    rng = np.random.default_rng(0)
    shares = [[0.6, 0.2, 0.1, 0.05, 0.05], [0.4, 0.2, 0.2, 0.1, 0.1], [0.3, 0.2, 0.2, 0.2, 0.1]]
    rows = [
        (float(t), name, int(n))
        for t, p in enumerate(shares)
        for name, n in zip(NAMES, rng.multinomial(300, p), strict=True)
    ]
    frame = pd.DataFrame(rows, columns=["time", "state", "count"])
    files = {}
    for kind in ("csv", "csv.gz", "npz", "graphml", "parquet", "h5ad", "thalweg"):
        files[kind] = folder / f"sound.{kind}"
    frame.to_csv(files["csv"], index=False)
    frame.to_csv(files["csv.gz"], index=False)
    frame.to_parquet(files["parquet"], index=False)
    edges = [(NAMES[x], NAMES[y], w) for x, y, w in EDGES]
    files["edges"] = folder / "edges.csv"
    pd.DataFrame(edges, columns=["source", "target", "weight"]).to_csv(files["edges"], index=False)
    x, y, w = (np.array(column) for column in zip(*EDGES, strict=True))
    upper = sparse.coo_array((w, (x, y)), shape=(5, 5))
    sparse.save_npz(files["npz"], sparse.csr_array(upper + upper.T))
    files["numbered"] = folder / "numbered.csv"
    frame.assign(state=frame["state"].map(NAMES.index)).to_csv(files["numbered"], index=False)
    graph: nx.Graph[Any] = nx.Graph()
    graph.add_weighted_edges_from(edges)
    nx.write_graphml(graph, files["graphml"])
    _cells(files["h5ad"])
    _model(files["thalweg"])
    return files


def _cells(path: Path) -> None:
    import anndata

    rng = np.random.default_rng(1)
    n = 12  # Few: every file that can be read is also tried out by a fit.
    obs = pd.DataFrame(
        {"day": np.repeat([0, 1], n // 2), "cluster": pd.Categorical(rng.choice(list("abc"), n))},
        index=[f"cell{k}" for k in range(n)],
    )
    ring = sparse.diags_array(np.ones(n - 1), offsets=1, shape=(n, n))
    cells = anndata.AnnData(np.zeros((n, 1), dtype=np.float32), obs=obs)
    cells.obsp["connectivities"] = sparse.csr_matrix(ring + ring.T)
    cells.write_h5ad(path)


def _model(path: Path) -> None:
    from thalweg import FreeEnergyRegressor, MarkovKernel, Snapshots

    weights = np.zeros((5, 5))
    for x, y, w in EDGES:
        weights[x, y] = weights[y, x] = w
    kernel = MarkovKernel.from_weights(weights, names=NAMES)
    counts = [[60, 20, 9, 6, 5], [40, 20, 20, 11, 9], [30, 20, 20, 20, 10]]
    seen = Snapshots.from_counts([0.0, 1.0, 2.0], counts)
    FreeEnergyRegressor(method="weak").fit(kernel, seen).save(path)


def command(kind: str, file: Path, sound: dict[str, Path], index: int) -> list[str]:
    """The command that reads a file of this kind; every fiftieth is also fitted."""
    if kind == "thalweg":
        return ["forecast", str(file), "--times", "0,0.5,3"]
    cost = "--cost" if index // len(KINDS) % 50 == 0 else "--no-cost"
    if kind == "h5ad":
        return ["check", str(file), cost, *(["--state-key", "cluster"] if index % 2 else [])]
    if kind == "npz":
        return ["check", str(sound["numbered"]), cost, "--graph", str(file)]
    if kind == "graphml" or (kind == "csv" and index % 3 == 0):
        return ["check", str(sound["csv"]), cost, "--graph", str(file)]
    return ["check", str(file), cost, "--graph", str(sound["edges"])]


def mutant(kind: str, sound: dict[str, Path], rng: Rng, index: int) -> bytes:
    """A damaged copy: bytes changed anywhere or, in half of them, inside a valid container."""
    place = sound["edges"] if kind == "csv" and index % 3 == 0 else sound[kind]
    data = place.read_bytes()
    inside = INSIDES.get(kind)
    if inside is not None and rng.random() < 0.6:
        return inside(place, rng)
    return scrambled(data, rng)


def scrambled(data: bytes, rng: Rng) -> bytes:
    """A few random edits, most often one or two."""
    out = bytearray(data)
    for _ in range(min(int(rng.geometric(0.45)), 8)):
        if not out:
            break
        at = int(rng.integers(len(out)))
        length = int(min(2 ** rng.integers(0, 8), len(out) - at))
        what = int(rng.integers(9))
        if what == 0:
            out[at] ^= 1 << int(rng.integers(8))
        elif what == 1:
            out[at : at + length] = rng.bytes(length)
        elif what == 2:
            del out[at : at + length]
        elif what == 3:
            out[at:at] = out[at : at + length] * int(rng.integers(1, 20))
        elif what == 4:
            out[at:at] = NUMBERS[int(rng.integers(len(NUMBERS)))]
        elif what == 5:
            del out[at:]
        elif what == 6:
            out[at : at + length] = bytes([int(rng.choice([0, 255, 127, 128]))]) * length
        elif what == 7:
            other = int(rng.integers(len(out)))
            out[at : at + length] = out[other : other + length]
        else:
            number = int(rng.choice([0, 1, 2**7, 2**15, 2**31 - 1, 2**32 - 1, 2**63 - 1]))
            width = int(rng.choice([1, 2, 4, 8]))
            out[at : at + width] = (number % 2 ** (8 * width)).to_bytes(width, "little")
    return bytes(out)


def _gzip(place: Path, rng: Rng) -> bytes:
    return gzip.compress(scrambled(gzip.decompress(place.read_bytes()), rng), mtime=0)


def _npz(place: Path, rng: Rng) -> bytes:
    """A matrix in any format with one of its arrays changed."""
    matrix = sparse.load_npz(place).asformat(str(rng.choice(["csr", "csc", "coo", "bsr", "dia"])))
    buffer = io.BytesIO()
    sparse.save_npz(buffer, matrix)
    buffer.seek(0)
    with np.load(buffer) as opened:
        arrays = dict(opened)
    name = str(rng.choice(list(arrays)))
    if rng.random() < 0.5 and arrays[name].dtype.kind in "if" and arrays[name].size:
        array = arrays[name].copy()
        value = rng.choice([-1, 2**31 - 1, -(2**31), 5, 6, 10**6, 0])
        array.flat[int(rng.integers(array.size))] = value
        arrays[name] = array
    elif arrays[name].dtype.kind in "if" and arrays[name].ndim:
        options = list(strange_arrays(arrays[name]))
        arrays[name] = options[int(rng.integers(len(options)))]
    else:
        arrays[name] = np.array(rng.choice([b"csr", b"csc", b"coo", b"bsr", b"dia", b"lil", b"x"]))
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _parquet(place: Path, rng: Rng) -> bytes:
    """A sound Parquet file of strange columns."""
    frame = pd.read_parquet(place)
    column = str(rng.choice(list(frame.columns)))
    n = len(frame)
    options: list[Callable[[], Any]] = [
        lambda: pd.Series([[1, 2]] * n),
        lambda: pd.Series([{"a": 1}] * n),
        lambda: pd.Series([None] * n, dtype=object),
        lambda: pd.Series(rng.choice([np.nan, np.inf, -1.0, 1e308], n)),
        lambda: pd.Series([b"\xff\x00"] * n),
        lambda: pd.Series(pd.timedelta_range(0, periods=n, freq="h")),
        lambda: pd.Series(pd.date_range("1700-01-01", periods=n, freq="YE")),
        lambda: pd.Series([2**63 - 1] * n),
        lambda: pd.Series([True, False] * n)[:n],
        lambda: pd.Series([f"{k}" * 50 for k in range(n)], dtype="category"),
        lambda: pd.Series(np.zeros(n, dtype=np.uint8)),
    ]
    frame[column] = options[int(rng.integers(len(options)))]()
    if rng.random() < 0.3:
        frame.index = pd.Index([f"r{k}" for k in range(n)], name=str(rng.choice(["time", "x"])))
    if rng.random() < 0.2:
        frame = frame.rename(columns={column: str(rng.choice(["", "time", "0", "\n"]))})
        frame = frame.loc[:, ~frame.columns.duplicated()]
    if rng.random() < 0.1:
        frame = frame.iloc[: int(rng.integers(3))]
    buffer = io.BytesIO()
    frame.to_parquet(buffer, compression=str(rng.choice(["snappy", "gzip", "zstd", "none"])))
    return buffer.getvalue()


def _h5ad(place: Path, rng: Rng) -> bytes:
    """A sound HDF5 file whose arrays were changed, removed or replaced."""
    import h5py

    buffer = io.BytesIO(place.read_bytes())
    with h5py.File(buffer, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        names = [name for name in names if name.startswith(("obs", "uns"))]
        name = str(rng.choice(names))
        found = file[name]
        if rng.random() < 0.3:
            del file[name]
            if rng.random() < 0.5:
                file[name] = np.array([1, 2, 3])
        elif isinstance(found, h5py.Dataset) and found.dtype.kind in "if" and found.size:
            values = found[()]
            at = int(rng.integers(values.size))
            value = rng.choice([-1, 10**6, 2**31 - 1, 0, 2])
            values = np.asarray(values)
            values.flat[at] = np.clip(value, *_limits(values.dtype))
            found[...] = values
        elif found.attrs:
            key = str(rng.choice(list(found.attrs)))
            choice = rng.choice(["array", "csr_matrix", "categorical", "dataframe", "null", ""])
            found.attrs[key] = str(choice) if rng.random() < 0.7 else np.array([10**9, -1])
    return buffer.getvalue()


def _limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    if dtype.kind == "f":
        return -1e30, 1e30
    return float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)


def _forged(place: Path, rng: Rng) -> bytes:
    """A model whose header or arrays were changed, with the checksum right."""
    header, arrays = read_model(place)
    header = {key: value for key, value in header.items() if key != "arrays"}
    for _ in range(int(rng.integers(1, 3))):
        if rng.random() < 0.5:
            places = list(paths(header))
            where = places[int(rng.integers(len(places)))]
            strange = (..., *STRANGE, float(rng.normal()), int(rng.integers(-3, 50)))
            header = changed(header, where, strange[int(rng.integers(len(strange)))])
        else:
            name = str(rng.choice(list(arrays)))
            array = arrays[name].copy()
            if rng.random() < 0.5 and array.size:
                factor = 10.0 ** rng.uniform(-12, 12)
                array.flat[int(rng.integers(array.size))] *= factor
            else:
                options = list(strange_arrays(array))
                array = options[int(rng.integers(len(options)))]
            arrays[name] = array
    data = seal(header, arrays)
    if rng.random() < 0.2:
        body = scrambled(data[:-71], rng)
        return body + b"sha256:" + hashlib.sha256(body).hexdigest().encode()
    return data


def _zipped_bomb(place: Path, rng: Rng) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.npy", bytes(int(rng.integers(10**6, 10**7))))
    return buffer.getvalue()


INSIDES: dict[str, Callable[[Path, Rng], bytes]] = {
    "csv.gz": _gzip,
    "npz": lambda place, rng: (_zipped_bomb if rng.random() < 0.01 else _npz)(place, rng),
    "parquet": _parquet,
    "h5ad": _h5ad,
    "thalweg": _forged,
}
KINDS = ("csv", "csv.gz", "npz", "graphml", "parquet", "h5ad", "thalweg")
