"""AnnData: real anndata and scanpy neighbours on a small generated data set."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from thalweg.errors import InputError

anndata = pytest.importorskip("anndata", reason="the anndata extra is not installed")
pytest.importorskip("matplotlib", reason="needs matplotlib").use("agg")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def cells():
    """Cells that slide along a curve: later days lie further on."""
    scanpy = pytest.importorskip("scanpy", reason="scanpy is not installed")
    rng = np.random.default_rng(0)
    progress = [rng.beta(2 + day, 6 - day, 150) for day in (0, 1, 2, 3)]
    along = np.concatenate(progress)
    points = np.column_stack([along, np.sin(3 * along)]) + 0.02 * rng.standard_normal((600, 2))
    adata = anndata.AnnData(points.astype(np.float32))
    adata.obs["day"] = pd.Categorical(np.repeat([f"day {d}" for d in (0, 1, 2, 3)], 150))
    adata.obs["truth"] = along
    adata.obs["bin"] = pd.Categorical((along * 6).astype(int).astype(str))
    adata.obsm["X_umap"] = points
    # The default method imports umap, which compiles for ten seconds.
    scanpy.pp.neighbors(adata, n_neighbors=12, use_rep="X", method="gauss")
    return adata


@pytest.mark.parametrize("state_key", [None, "bin"])
def test_the_landscape_falls_along_the_curve(cells, state_key):
    import thalweg

    annotated = thalweg.tl.free_energy(cells, time_key="day", state_key=state_key, copy=True)
    potential = annotated.obs["thalweg_potential"].to_numpy()
    assert np.corrcoef(potential, annotated.obs["truth"])[0, 1] < -0.5
    assert annotated.obs["thalweg_equilibrium"].sum() == pytest.approx(1)
    np.testing.assert_allclose(annotated.obsm["thalweg_probabilities"].sum(axis=0), 1)
    assert list(annotated.uns["thalweg"]["times"]) == [0, 1, 2, 3]
    assert "thalweg_potential" not in cells.obs
    axes = thalweg.pl.landscape(annotated, show=False)
    assert axes.collections[0].get_offsets().shape == (600, 2)
    assert axes.get_xlabel() == "umap1"


def test_results_survive_a_file(cells, tmp_path):
    import thalweg
    from thalweg.adapters.cells import read_h5ad

    annotated = thalweg.tl.free_energy(cells, time_key="day", state_key="bin", copy=True)
    annotated.write_h5ad(tmp_path / "cells.h5ad")
    again = read_h5ad(tmp_path / "cells.h5ad")
    assert again.uns["thalweg"]["beta"] == annotated.uns["thalweg"]["beta"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"time_key": "week"}, "time_key is 'week'.*day"),
        ({"time_key": "day", "state_key": "kind"}, "state_key is 'kind'"),
        ({"time_key": "day", "neighbors_key": "other"}, "neighbors_key is 'other'"),
    ],
)
def test_missing_keys_are_named(cells, options, sentence):
    import thalweg

    with pytest.raises(InputError, match=sentence):
        thalweg.tl.free_energy(cells, **options)


def test_missing_neighbours_and_times(cells, tmp_path):
    import thalweg
    from thalweg.adapters.cells import read_h5ad

    bare = anndata.AnnData(np.zeros((4, 2), dtype=np.float32))
    bare.obs["day"] = [0, 0, 1, 1]
    with pytest.raises(InputError, match=r"scanpy\.pp\.neighbors"):
        thalweg.tl.free_energy(bare, time_key="day")
    bare.obs["when"] = ["early", "early", "late", "late"]
    with pytest.raises(InputError, match="a label with one number"):
        thalweg.tl.free_energy(bare, time_key="when")
    with pytest.raises(InputError, match=r"thalweg\.tl\.free_energy"):
        thalweg.pl.landscape(bare)
    (tmp_path / "x.h5ad").write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a readable"):
        read_h5ad(tmp_path / "x.h5ad")


def test_fates_and_velocities_are_written_where_others_read_them(cells, tmp_path):
    import thalweg

    adata = cells.copy()
    model = thalweg.tl.free_energy(adata, time_key="day", state_key="bin")
    with pytest.raises(InputError, match="run thalweg"):
        thalweg.pl.fates(adata)
    first, last = model.kernel_.names[0], model.kernel_.names[-1]
    found = thalweg.tl.fates(adata, model, {"start": [first], "end": [last]})
    np.testing.assert_allclose(adata.obsm["thalweg_fates"].sum(axis=1), 1)
    assert found.names == ("start", "end")
    assert np.corrcoef(adata.obsm["thalweg_fates"][:, 1], adata.obs["truth"])[0, 1] > 0.5
    thalweg.tl.velocity(adata, model)
    # Cells move along the curve.
    along = adata.obsm["velocity_umap"][:, 0]
    assert np.mean(along > 0) > 0.75
    transitions = adata.obsp["T_fwd"]
    np.testing.assert_allclose(np.asarray(transitions.sum(axis=1)).ravel(), 1)
    assert transitions.min() >= 0
    with pytest.raises(InputError, match="there are none"):
        thalweg.tl.velocity(adata, model, layer="Ms")
    # Genes that are the coordinates of the embedding move as it does.
    adata.layers["Ms"] = adata.obsm["X_umap"]
    thalweg.tl.velocity(adata, model, layer="Ms")
    np.testing.assert_allclose(adata.layers["velocity"], adata.obsm["velocity_umap"])
    assert len(thalweg.pl.velocity(adata, show=False).collections) == 2
    assert thalweg.pl.fates(adata, "end", show=False).get_title(loc="left") == "Fate: end"
    with pytest.raises(InputError, match="there are start, end"):
        thalweg.pl.fates(adata, "nowhere")
    adata.write_h5ad(tmp_path / "cells.h5ad")


def test_labels_with_hyphens_and_cells_without_labels(cells):
    from thalweg.adapters.cells import cell_problem

    changed = cells.copy()
    changed.obs["day"] = [f"day-{d}" for d in np.repeat([2, 4, 7, 9], 150)]
    found = cell_problem(changed, time_key="day", state_key="bin")
    np.testing.assert_array_equal(found.snapshots.times, [2, 4, 7, 9])
    assert found.snapshots.scale.unit == "days"
    changed.obs["bin"] = changed.obs["bin"].astype(object)
    changed.obs.iloc[3, changed.obs.columns.get_loc("bin")] = None
    with pytest.raises(InputError, match=r"obs\['bin'\] is missing for 1 of 600 cells"):
        cell_problem(changed, time_key="day", state_key="bin")


def test_cells_in_several_pieces(cells):
    from scipy import sparse

    from thalweg.adapters.cells import cell_problem

    apart = cells[cells.obs["bin"].isin(["0", "1", "2", "4"])].copy()
    weights = sparse.lil_matrix(apart.obsp["connectivities"])
    far = np.flatnonzero(apart.obs["bin"] == "4")
    near = np.flatnonzero(apart.obs["bin"] != "4")
    weights[np.ix_(far, near)] = 0
    weights[np.ix_(near, far)] = 0
    apart.obsp["connectivities"] = sparse.csr_matrix(weights)
    with pytest.raises(InputError, match="--largest-component"):
        cell_problem(apart, time_key="day", state_key="bin")
    found = cell_problem(apart, time_key="day", state_key="bin", largest_component=True)
    assert found.kernel.names == ("0", "1", "2")
    assert found.snapshots.sizes.sum() == near.size
    assert f"{far.size} cells outside it are left out" in found.messages


def test_an_endless_attribute_behind_an_error_is_found(monkeypatch, tmp_path):
    """A damaged file that fails in one place and loops forever in another."""
    import h5py

    from thalweg.adapters import cells

    class Endless(dict):
        def __getitem__(self, name):
            while True:
                pass

    class Damaged:
        attrs = Endless(encoding=1)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def visititems(self, _):
            raise RuntimeError("bad heap")

    (tmp_path / "x.h5ad").write_bytes(b"x")
    monkeypatch.setattr(h5py, "File", lambda *_: Damaged())
    monkeypatch.setattr(cells, "_PROBE_SECONDS", 1)
    with pytest.raises(InputError, match="is damaged"):
        cells.read_h5ad(tmp_path / "x.h5ad")
