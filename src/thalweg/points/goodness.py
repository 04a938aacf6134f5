"""Whether a model is rejected by the snapshots it was fitted to, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass

from scipy.stats import chi2

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

    @property
    def p_value(self) -> float:
        """Probability of a chi-square as large by chance; NaN without degrees of freedom."""
        return float(chi2.sf(self.chi_square, self.dof))

    @property
    def rejected(self) -> bool:
        """Whether the data contradict the claim."""
        return self.p_value < LEVEL

    @property
    def warning(self) -> str:
        """That the snapshots contradict the model, if they do."""
        return f"the snapshots contradict the model; {self}" if self.rejected else ""

    def __str__(self) -> str:
        if self.dof <= 0:
            return f"untested: {self.claim} (two snapshots fit any such model)"
        figures = f"chi-square {self.chi_square:.4g} on {self.dof} degrees of freedom"
        verdict = "rejected" if self.rejected else "not rejected"
        return f"{verdict}: {self.claim} ({figures}, {p_text(self.p_value, 1)})"


def joined(*words: str) -> str:
    """The words that are not empty, as parts of one sentence."""
    return "; ".join(word for word in words if word)
