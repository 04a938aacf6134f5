"""Model files with a valid checksum and wrong content are rejected in one sentence."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from hostile.forging import forgeries
from thalweg import FreeEnergyRegressor, MarkovKernel, Snapshots, load
from thalweg.errors import InputError, ThalwegError
from thalweg.learn.model_file import read_model
from thalweg.mobility import PowerProduct
from thalweg.report import findings, flags

W = np.array([[0.0, 1, 0], [1, 0, 3], [0, 3, 0]])
SEEN = Snapshots.from_counts([0.0, 1.0, 2.0], [[80, 15, 5], [50, 35, 15], [40, 38, 22]])


def _model(which: str) -> FreeEnergyRegressor:
    kernel = MarkovKernel.from_weights(W, names=["a", "b", ("c", 1)], coordinates=np.eye(3)[:, :2])
    options = {
        "plain": {},
        "weak": {
            "method": "weak",
            "mobility": PowerProduct(0.5),
            "interactions": [sparse.csr_array(W)],
            "potential": np.zeros(3),
        },
    }
    return FreeEnergyRegressor(**options[which]).fit(kernel, SEEN)


@pytest.mark.parametrize("which", ["plain", "weak"])
def test_a_forged_model_is_one_sentence_or_works(which, tmp_path):
    path = tmp_path / "model.thalweg"
    _model(which).save(path)
    header, arrays = read_model(path)
    refused = accepted = 0
    wrong = []
    for what, data in forgeries(header, arrays, every=5):
        path.write_bytes(data)
        try:
            model = load(path)
            model.get_params()
            findings(model)
            flags(model)
            accepted += 1
        except InputError as error:
            refused += 1
            if "\n" in str(error) or len(str(error)) > 500:
                wrong.append(f"{what}: {error}")
        except Exception as error:  # Anything else is what this test looks for.
            wrong.append(f"{what}: {type(error).__name__}: {error}")
    assert not wrong, f"{len(wrong)} of {refused + accepted + len(wrong)}:\n" + "\n".join(
        wrong[:40]
    )
    assert refused > accepted
    assert accepted > 0


def test_a_sound_model_comes_back(tmp_path):
    model = _model("weak")
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert again.get_params()["mobility"] == PowerProduct(0.5)
    assert np.array_equal(again.potential_, model.potential_)
    assert again.diagnostics_ == model.diagnostics_
    with pytest.raises(ThalwegError):
        load(tmp_path)
