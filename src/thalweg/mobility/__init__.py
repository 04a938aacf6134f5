"""Mobilities: means that set how easily mass moves along an edge, from the densities at its ends.

All of them belong to one family, `C (s t)^(k/2) sinhc(a d) / sinhc(b d)` with
`d = (log s - log t) / 2` (see `thalweg.mobility.formulas`, which holds the compiled formulas).

| mean | formula | makes a gradient flow of |
| --- | --- | --- |
| `LogMean` | `(s - t) / (log s - log t)` | heat, with the entropy (the paper) |
| `GeometricMean` | `sqrt(s t)` | |
| `ArithmeticMean` | `(s + t) / 2` | |
| `HarmonicMean` | `2 s t / (s + t)` | |
| `PowerProduct(alpha)` | `(s t)^alpha` | |
| `PorousMediumMean(q)` | `(q-1)/q (s^q - t^q) / (s^(q-1) - t^(q-1))` | porous medium |
| `PowerHeatMean(q)` | `(q-1)/q (s - t) / (s^(q-1) - t^(q-1))` | heat |

The last two go with the energy `sum pi rho^q / (q - 1)`, `thalweg.PowerEnergy(q)`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from thalweg._compile import njit
from thalweg._types import Array
from thalweg.errors import InputError
from thalweg.mobility import formulas

__all__ = [
    "ArithmeticMean",
    "Form",
    "GeometricMean",
    "HarmonicMean",
    "LogMean",
    "Mobility",
    "PorousMediumMean",
    "PowerHeatMean",
    "PowerProduct",
    "as_mobility",
]


class Form(NamedTuple):
    """`C (s t)^(k/2) sinhc(a d) / sinhc(b d)`, and the code of its compiled formula.

    Code `formulas.FAMILY` evaluates the general formula; the classical means have codes of their
    own, whose formulas are exact over the whole floating-point range.
    """

    code: int = formulas.FAMILY
    scale: float = 1.0
    k: float = 1.0
    a: float = 0.0
    b: float = 0.0


class Mobility(ABC):
    """A symmetric function of the densities at the two ends of an edge.

    >>> LogMean()(1.0, 1.0), GeometricMean()([1.0, 4.0], [4.0, 0.0])
    (array(1.), array([2., 0.]))
    """

    @property
    @abstractmethod
    def form(self) -> Form:
        """The mean as a member of the family; a new mobility defines this and nothing else."""

    @property
    def spec(self) -> Array:
        """`[code, C, k, a, b]` for compiled loops, in the dimensions that `formulas` explains."""
        form = self.form
        if form.code not in formulas.CODES or not all(map(math.isfinite, form)):
            raise InputError(
                f"{type(self).__name__} has the form {tuple(form)}; its code must be one of "
                f"{', '.join(map(str, formulas.CODES))} (thalweg.mobility.formulas) and its "
                "constants must be finite."
            )
        spec = np.array(form, dtype=np.float64)
        if form.code == formulas.LOGARITHMIC:
            return spec[None, None]
        return spec[None] if form.code == formulas.FAMILY else spec

    @property
    def degree(self) -> float:
        """`k` of `m(l s, l t) = l^k m(s, t)`."""
        return float(self.form.k)

    @property
    def is_homogeneous(self) -> bool:
        """True for means proper: `m(l s, l t) = l m(s, t)`."""
        return self.degree == 1.0

    @property
    def is_concave(self) -> bool:
        """True where `W_K` with this mobility is a convex problem."""
        return self.is_homogeneous and _cross_is_positive(self.spec)

    def __call__(self, s: ArrayLike, t: ArrayLike) -> Array:
        """`m(s, t)`, elementwise."""
        return _broadcast(_mean_loop, self.spec, s, t, 1)[0]

    def partials(self, s: ArrayLike, t: ArrayLike) -> tuple[Array, Array]:
        """`dm/ds` and `dm/dt`, elementwise; infinite at zero where the mean is steep."""
        first, second = _broadcast(_partials_loop, self.spec, s, t, 2)
        return first, second

    def seconds(self, s: ArrayLike, t: ArrayLike) -> tuple[Array, Array, Array]:
        """`d2m/ds2`, `d2m/dsdt`, `d2m/dt2`, elementwise, for positive densities."""
        ss, st, tt = _broadcast(_seconds_loop, self.spec, s, t, 3)
        return ss, st, tt

    def from_logs(self, u: ArrayLike, v: ArrayLike) -> tuple[Array, Array, Array]:
        """`m(exp u, exp v)` and its derivatives in `u` and `v`, also where `exp` underflows."""
        m, m_u, m_v = _broadcast(_logs_loop, self.spec, u, v, 3)
        return m, m_u, m_v


@dataclass(frozen=True)
class LogMean(Mobility):
    """`(s - t) / (log s - log t)`: the mean of the paper, eq. (3); zero when either side is.

    >>> float(LogMean()(1.0, np.e)) == np.e - 1
    True
    """

    @property
    def form(self) -> Form:
        return Form(formulas.LOGARITHMIC, a=1.0)


@dataclass(frozen=True)
class GeometricMean(Mobility):
    """`sqrt(s t)`."""

    @property
    def form(self) -> Form:
        return Form(formulas.GEOMETRIC)


@dataclass(frozen=True)
class ArithmeticMean(Mobility):
    """`(s + t) / 2`: like `PorousMediumMean(q)` for `q > 1`, it does not vanish with one density.

    Mass then enters an empty state at once, without noise too.
    """

    @property
    def form(self) -> Form:
        return Form(formulas.ARITHMETIC, a=2.0, b=1.0)


@dataclass(frozen=True)
class HarmonicMean(Mobility):
    """`2 s t / (s + t)`."""

    @property
    def form(self) -> Form:
        return Form(formulas.HARMONIC, a=1.0, b=2.0)


@dataclass(frozen=True)
class PowerProduct(Mobility):
    """`(s t)^alpha`; one-homogeneous, and then the geometric mean, only for `alpha = 1/2`.

    >>> PowerProduct(0.5).is_homogeneous, PowerProduct(0.3).is_homogeneous
    (True, False)
    """

    alpha: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise InputError(f"alpha is {self.alpha:g}; the power of a product must be positive.")

    @property
    def form(self) -> Form:
        return Form(k=2 * self.alpha)

    @property
    def is_concave(self) -> bool:
        return self.alpha <= 0.5


@dataclass(frozen=True)
class PorousMediumMean(Mobility):
    """The mean for which `rho' = (K - I) rho^q` is the gradient flow of `sum pi rho^q / (q - 1)`.

    One-homogeneous for every `q`: harmonic at -1, geometric at 1/2, logarithmic at 1,
    arithmetic at 2. Beside an empty state it is `(q - 1) / q` times the density if `q > 1`, else 0.

    >>> round(float(PorousMediumMean(2.0)(1.0, 5.0)), 12)
    3.0
    """

    q: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.q) or self.q == 0:
            raise InputError(f"q is {self.q:g}; the order of a porous-medium mean must not be 0.")

    @property
    def form(self) -> Form:
        return Form(a=self.q, b=self.q - 1)


@dataclass(frozen=True)
class PowerHeatMean(Mobility):
    """The mean for which the heat flow is the gradient flow of `sum pi rho^q / (q - 1)`.

    Homogeneous of degree `2 - q`; the logarithmic mean at `q = 1`.
    """

    q: float

    def __post_init__(self) -> None:
        if not (0 < self.q <= 2):
            raise InputError(f"q is {self.q:g}; the order of a heat mean must lie in (0, 2].")

    @property
    def form(self) -> Form:
        return Form(scale=1 / self.q, k=2 - self.q, a=1.0, b=self.q - 1)

    @property
    def is_concave(self) -> bool:
        return 1 <= self.q <= 2


BUILT_IN: tuple[type[Mobility], ...] = (
    ArithmeticMean,
    GeometricMean,
    HarmonicMean,
    LogMean,
    PorousMediumMean,
    PowerHeatMean,
    PowerProduct,
)
"""Every mobility that a model file may name."""

NAMED: dict[str, Mobility] = {
    "logarithmic": LogMean(),
    "geometric": GeometricMean(),
    "arithmetic": ArithmeticMean(),
    "harmonic": HarmonicMean(),
}
"""The mobilities without parameters, by the name that the command line takes."""


def _cross_is_positive(spec: Array) -> bool:
    """A one-homogeneous mean is concave where its mixed second derivative is not negative."""
    ratios = np.exp(np.linspace(-40, 40, 401))
    return bool(np.all(_broadcast(_seconds_loop, spec, ratios, np.ones(401), 3)[1] > -1e-12))


def _broadcast(loop: object, spec: Array, s: ArrayLike, t: ArrayLike, n_out: int) -> list[Array]:
    left, right = np.broadcast_arrays(
        np.asarray(s, dtype=np.float64), np.asarray(t, dtype=np.float64)
    )
    out = np.empty((n_out, left.size))
    loop(spec, left.ravel(), right.ravel(), out)  # type: ignore[operator]
    return [row.reshape(left.shape) for row in out]


@njit(cache=True)
def _mean_loop(spec: Array, s: Array, t: Array, out: Array) -> None:
    for i in range(s.size):
        out[0, i] = formulas.mean(spec, s[i], t[i])


@njit(cache=True)
def _partials_loop(spec: Array, s: Array, t: Array, out: Array) -> None:
    for i in range(s.size):
        _, out[0, i], out[1, i] = formulas.mean_partials(spec, s[i], t[i])


@njit(cache=True)
def _seconds_loop(spec: Array, s: Array, t: Array, out: Array) -> None:
    for i in range(s.size):
        out[0, i], out[1, i], out[2, i] = formulas.mean_seconds(spec, s[i], t[i])


@njit(cache=True)
def _logs_loop(spec: Array, u: Array, v: Array, out: Array) -> None:
    for i in range(u.size):
        out[0, i], out[1, i], out[2, i] = formulas.mean_log_partials(spec, u[i], v[i])


def as_mobility(mobility: Mobility | None) -> Mobility:
    """The mean itself, or the logarithmic one for None; anything else is rejected.

    >>> as_mobility("harmonic")
    Traceback (most recent call last):
    ...
    thalweg.errors.InputError: mobility is 'harmonic'; give a mean such as LogMean() or
    HarmonicMean().
    """
    if mobility is None:
        return LogMean()
    if not isinstance(mobility, Mobility):
        shown = mobility.__name__ if isinstance(mobility, type) else repr(mobility)
        raise InputError(
            f"mobility is {shown[:60]}; give a mean such as LogMean() or HarmonicMean()."
        )
    return mobility
