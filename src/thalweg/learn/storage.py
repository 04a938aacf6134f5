"""Fitted models to and from plain arrays and JSON; the file itself is `thalweg.learn.model_file`.

The content of a file is checked like any other input before anything computes with it.
"""

from __future__ import annotations

import os
from dataclasses import asdict, is_dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from thalweg import _checks, mobility, snapshots
from thalweg._door import checked
from thalweg._words import damage
from thalweg.energy import Entropy, FreeEnergy, PowerEnergy
from thalweg.errors import InputError
from thalweg.kernel import Edges, MarkovKernel
from thalweg.learn.answer import SMALL_COVARIANCE, Fitted, Settings
from thalweg.learn.few.mixture import Mixture
from thalweg.learn.growth import GrowthFound
from thalweg.learn.model_checks import check_content
from thalweg.learn.model_file import read_model, write_model
from thalweg.learn.network.features import FeatureNetwork
from thalweg.learn.observation import model_of, word_of
from thalweg.learn.time_basis import TimeBasis
from thalweg.learn.verdict import BetaVerdict, Kind, unassessed
from thalweg.status import Status

Arrays = dict[str, NDArray[Any]]

_PART_TYPES: tuple[type, ...] = (
    *mobility.BUILT_IN,
    Entropy,
    PowerEnergy,
    snapshots.Dirichlet,
    snapshots.HeatKernel,
)
_PARTS = {cls.__name__: cls for cls in _PART_TYPES}
"""Types of the settings that are small objects."""

_MEMBERS = ("weights", "potentials", "betas", "initials")
_ARRAY_SETTINGS = ("potential", "features", "initial")
_DROPPED_SETTINGS = ("progress", "device", "growth")

LARGEST_DRAWS = 10_000_000
"""Number of entries above which draws are not saved."""


@checked
def save(
    path: str | os.PathLike[str], kernel: MarkovKernel, fit: Fitted, settings: dict[str, Any]
) -> None:
    """Write a fitted model."""
    from thalweg._version import __version__

    arrays: Arrays = {
        "stationary": kernel.stationary,
        "edge_source": kernel.edges.source,
        "edge_target": kernel.edges.target,
        "conductance": kernel.edges.conductance,
        "potential": fit.energy.potential,
        "initial": fit.initial,
        "times": fit.times,
        "potential_stderr": fit.potential_stderr,
        "visits": fit.visits,
        "potentials": fit.potentials,
    }
    header: dict[str, Any] = {
        "thalweg": __version__,
        "numpy": np.__version__,
        "beta": fit.energy.beta,
        "beta_stderr": _number(fit.beta_stderr),
        "beta_verdict": {**asdict(fit.beta_verdict), "upper": _number(fit.beta_verdict.upper)},
        "internal": _part("internal", fit.energy.internal),
        "status": fit.status.name,
        "time": asdict(fit.scale),
        "summary": _plain(fit.summary),
        "verdict": _plain(fit.verdict),
    }
    if kernel.coordinates is not None:
        arrays["coordinates"] = kernel.coordinates
    if kernel.names is not None:
        header["names"] = [_name(name) for name in kernel.names]
    if fit.coefficients is not None:
        arrays["coefficients"] = fit.coefficients
    if fit.joint_covariance is not None and kernel.n_states <= SMALL_COVARIANCE:
        arrays["joint_covariance"] = fit.joint_covariance
    if fit.growth is not None:
        arrays["growth_rates"], arrays["growth_stderr"] = fit.growth.rates, fit.growth.stderr
        found = asdict(fit.growth)
        header["growth"] = _plain({k: v for k, v in found.items() if np.ndim(v) == 0})
    if fit.draws is not None and fit.draws.size <= LARGEST_DRAWS:
        arrays["draws"] = fit.draws
    if fit.members is not None:
        arrays |= {f"member_{name}": getattr(fit.members, name) for name in _MEMBERS}
    if fit.energy.interaction is not None:
        _put_matrix(arrays, "interaction", fit.energy.interaction)
    if fit.network is not None:
        arrays["network_shift"], arrays["network_scale"] = fit.network.shift, fit.network.scale
        for i, (w, b) in enumerate(zip(fit.network.weights, fit.network.biases, strict=True)):
            arrays[f"network_weight_{i}"], arrays[f"network_bias_{i}"] = w, b
        header["network_layers"] = len(fit.network.weights)
    header["settings"] = _settings(settings, arrays)
    write_model(path, header, arrays)


@checked
def load(path: str | os.PathLike[str]) -> tuple[MarkovKernel, Fitted, dict[str, Any]]:
    """Read what `save` wrote: kernel, fit, the estimator's settings."""
    header, arrays = read_model(path)
    try:
        check_content(header, arrays, Settings)
        kernel = _kernel(header, arrays)
        return kernel, _fitted(header, arrays, kernel), _read_settings(header, arrays)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except KeyError as error:
        raise InputError(f"{path} lacks {error}; it is not a complete thalweg model.") from None
    except (TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise InputError(f"{path} is not a valid thalweg model ({damage(error)}).") from None


# ------------------------------------------------------------------------ writing


def _part(name: str, value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    if type(value).__name__ not in _PARTS or not is_dataclass(value) or isinstance(value, type):
        raise InputError(
            f"{name} is a {type(value).__name__}, which a model file cannot hold; use one of "
            f"{', '.join(sorted(_PARTS))}."
        )
    return {"type": type(value).__name__, **asdict(value)}


def _plain(value: Any) -> Any:
    """Numbers, texts, lists and tables of them, as JSON has them; NaN becomes null."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | bool | int):
        return value
    return float(value) if np.isfinite(value) else None


def _number(value: float) -> float | str | None:
    """A number as JSON has it: infinity by name, NaN as null."""
    if np.isnan(value):
        return None
    return float(value) if np.isfinite(value) else "inf"


def _name(name: Any) -> Any:
    if isinstance(name, np.generic):
        name = name.item()
    if name is None or isinstance(name, str | int | float | bool):
        return name
    if isinstance(name, tuple):
        return {"tuple": [_name(part) for part in name]}
    raise InputError(
        f"the state name {name!r} is a {type(name).__name__}, which a model file cannot hold; name "
        "states with strings, numbers or tuples of them."
    )


def _put_matrix(arrays: Arrays, name: str, matrix: Any) -> None:
    if sparse.issparse(matrix):
        coo = sparse.coo_array(matrix)
        arrays[f"{name}_row"] = coo.row.astype(np.int64)
        arrays[f"{name}_column"] = coo.col.astype(np.int64)
        arrays[f"{name}_value"] = coo.data
    else:
        arrays[name] = np.asarray(matrix, dtype=np.float64)


def _settings(settings: dict[str, Any], arrays: Arrays) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in settings.items():
        if name in _DROPPED_SETTINGS:
            continue
        if name in _ARRAY_SETTINGS:
            if value is not None:
                arrays[f"setting_{name}"] = np.asarray(value, dtype=np.float64)
        elif name == "interactions":
            out[name] = len(value)
            for i, matrix in enumerate(value):
                _put_matrix(arrays, f"setting_interaction_{i}", matrix)
        elif name == "time_basis":
            if value is not None and value.breaks is None:
                raise InputError(
                    "a time basis of functions cannot be saved; use TimeBasis.piecewise."
                )
            out[name] = None if value is None else list(value.breaks)
        elif name in ("mobility", "internal", "smoother"):
            out[name] = _part(name, value)
        elif name == "observation" and not isinstance(value, str):
            out[name] = word_of(value)
        elif isinstance(value, np.generic):
            out[name] = value.item()
        else:
            out[name] = value
    return out


# ------------------------------------------------------------------------ reading


def _kernel(header: dict[str, Any], arrays: Arrays) -> MarkovKernel:
    pi = arrays["stationary"]
    source, target = arrays["edge_source"], arrays["edge_target"]
    kernel = MarkovKernel(
        pi,
        Edges(source.astype(np.int32), target.astype(np.int32), arrays["conductance"]),
    )
    names = header.get("names")
    return kernel.with_labels(
        coordinates=arrays.get("coordinates"),
        names=None if names is None else [_read_name(name) for name in names],
    )


def _read_name(name: Any) -> Any:
    if isinstance(name, dict):
        return tuple(_read_name(part) for part in name["tuple"])
    return name


def _read_part(value: Any) -> Any:
    if value is None:
        return None
    fields = dict(value)
    cls = _PARTS.get(fields.pop("type"))
    if cls is None:
        raise InputError(f"the model file names a {value['type']!r}, which this thalweg lacks.")
    return cls(**fields)


def _matrix(arrays: Arrays, name: str, n: int) -> Any:
    if name in arrays:
        return arrays[name]
    if f"{name}_value" not in arrays:
        return None
    row, column = arrays[f"{name}_row"], arrays[f"{name}_column"]
    value = arrays[f"{name}_value"]
    if value.size and (min(row.min(), column.min()) < 0 or max(row.max(), column.max()) >= n):
        raise InputError("the model file holds an interaction with states outside the kernel.")
    return sparse.csr_array((value, (row, column)), shape=(n, n))


def _fitted(header: dict[str, Any], arrays: Arrays, kernel: MarkovKernel) -> Fitted:
    n = kernel.n_states
    error = header["beta_stderr"]
    covariance = arrays.get("joint_covariance")
    if covariance is not None and covariance.shape != (2 * n + 1, 2 * n + 1):
        raise InputError("the model file holds a covariance of the wrong shape.")
    draws = arrays.get("draws")
    if draws is not None and (draws.ndim != 2 or draws.shape[1] != n + 1):
        raise InputError("the model file holds draws of the wrong shape.")
    _checks.as_probability(arrays["initial"], n, "initial")
    network = None
    if "network_layers" in header:
        layers = range(header["network_layers"])
        network = FeatureNetwork(
            arrays["network_shift"],
            arrays["network_scale"],
            tuple(arrays[f"network_weight_{i}"] for i in layers),
            tuple(arrays[f"network_bias_{i}"] for i in layers),
        )
    energy = FreeEnergy(
        arrays["potential"],
        header["beta"],
        _matrix(arrays, "interaction", n),
        _read_part(header["internal"]),
    )
    return Fitted(
        energy=energy,
        initial=arrays["initial"],
        times=_checks.as_times(arrays["times"]),
        status=Status[header["status"]],
        potential_stderr=arrays["potential_stderr"],
        beta_stderr=np.nan if error is None else _float(error),
        visits=arrays["visits"],
        potentials=arrays["potentials"],
        joint_covariance=covariance,
        coefficients=arrays.get("coefficients"),
        network=network,
        summary=dict(header["summary"]),
        noise=model_of(header["summary"]),
        growth=_growth(header, arrays, n),
        draws=draws,
        members=_members(arrays, n),
        beta_verdict=_verdict(header.get("beta_verdict")),
        scale=snapshots.TimeScale(**header.get("time", {})),
        verdict=dict(header["verdict"]),
    )


def _growth(header: dict[str, Any], arrays: Arrays, n: int) -> GrowthFound | None:
    if "growth" not in header:
        return None
    rates = _checks.as_vector(arrays["growth_rates"], n, "growth_rates")
    said: dict[str, Any] = {
        name: np.nan if x is None else x for name, x in header["growth"].items()
    }
    return GrowthFound(rates=rates, stderr=arrays["growth_stderr"], **said)


def _members(arrays: Arrays, n: int) -> Mixture | None:
    if "member_weights" not in arrays:
        return None
    w, potentials, betas, initials = (arrays[f"member_{name}"] for name in _MEMBERS)
    count = w.size
    sound = (
        w.shape == betas.shape == (count,)
        and potentials.shape == initials.shape == (count, n)
        and count >= 1
        and all(bool(np.isfinite(a).all()) for a in (w, betas, potentials, initials))
        and min(w.min(), betas.min(), initials.min()) >= 0
        and abs(w.sum() - 1.0) < 1e-6
    )
    if not sound:
        raise InputError("the model file holds landscapes to average of the wrong shape.")
    return Mixture(w, potentials, betas, initials)


def _verdict(entry: Any) -> BetaVerdict:
    if entry is None:  # written before beta was judged
        return unassessed()
    if not isinstance(entry, dict) or entry["kind"] not in get_args(Kind):
        raise InputError("the model file holds a verdict on beta that this thalweg lacks.")
    lower, upper = _float(entry["lower"]), _float(entry["upper"])
    return BetaVerdict(entry["kind"], lower, upper, str(entry["reason"]))


def _float(value: Any) -> float:
    """Read a number that `_number` wrote."""
    if value is None or not (isinstance(value, int | float) or value == "inf"):
        raise InputError(f"the model file holds {value!r} where a number belongs.")
    return float(value)


def _read_settings(header: dict[str, Any], arrays: Arrays) -> dict[str, Any]:
    settings = dict(header["settings"])
    for name in ("mobility", "internal", "smoother"):
        settings[name] = _read_part(settings[name])
    for name in _ARRAY_SETTINGS:
        settings[name] = arrays.get(f"setting_{name}")
    n = arrays["stationary"].size
    settings["interactions"] = tuple(
        _matrix(arrays, f"setting_interaction_{i}", n) for i in range(settings["interactions"])
    )
    breaks = settings["time_basis"]
    settings["time_basis"] = None if breaks is None else TimeBasis.piecewise(breaks)
    return settings
