"""Whether a model is rejected by the snapshots it was fitted to, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass

from scipy.stats import chi2 as chi2_law

from thalweg._words import p_text

LEVEL = 0.01
"""P-value below which a model is rejected."""


@dataclass(frozen=True)
class GoodnessOfFit:
    """A chi-square of the residuals, its degrees of freedom, and the claim that was tested.

    >>> print(GoodnessOfFit(180.0, 100, "one potential moves the points"))
    rejected: one potential moves the points (chi-square 180 on 100 degrees of freedom, p = 2e-06)
    """

    chi_square: float
    dof: int
    claim: str
    p_value: float = float("nan")

    def __post_init__(self) -> None:
        if self.p_value != self.p_value and self.dof > 0:
            object.__setattr__(self, "p_value", float(chi2_law.sf(self.chi_square, self.dof)))

    @property
    def rejected(self) -> bool:
        """Whether the data contradict the claim."""
        return self.p_value < LEVEL

    def __str__(self) -> str:
        if self.dof <= 0:
            return f"untested: {self.claim} (two snapshots fit any such model)"
        figures = f"chi-square {self.chi_square:.4g} on {self.dof} degrees of freedom"
        verdict = "rejected" if self.rejected else "not rejected"
        return f"{verdict}: {self.claim} ({figures}, {p_text(self.p_value, 1)})"
