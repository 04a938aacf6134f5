"""The words of the page 'Reproducing the paper'; its numbers come from result files."""

from __future__ import annotations

__all__ = ["CLOSING", "ERRATA", "KEPT", "OPENING", "SECTIONS"]

KEPT = "*Kept from an earlier run.*"
OPENING = """
# Reproducing the paper

This page is made from result files by `thalweg bench reproduce --from results --out docs`; every
figure names the command that made it. *Published* figures are those the paper prints. They were
not measured here, and are kept apart from our measurements.

**How errors are measured.** Each method gets the same snapshots and forecasts from the true initial
distribution. The error is the time-averaged Hellinger distance between the forecast and the truth.
"Sampled" is what the paper measures: as many individuals as were observed are simulated from the
learned energy, and their histogram is compared. Its floor is the sampled error of the true energy.
The Cramér-Rao limit is the least root mean square error that any unbiased estimate of the energy
could have from these snapshots of tracked individuals; a single run, or a biased method, may lie
below it, and histograms, which forecast nothing, may too. It is that of the chain of frozen rates
itself: `sum_k dmu_k^T Sigma_k^-1 dmu_k` for the mean `mu_k` and covariance `Sigma_k` of the counts
after each interval, pushed to the forecast by the chain's own slopes, or, in the empirical reading
(and wherever slopes above 1e8 in nearly empty states make linear theory meaningless), by draws from
the efficient normal law: a forecast bends more than its slopes say. The notes below a table count
the cells in which the two disagree. In the mean-field reading draws above linear theory do not
count: snapshots of the chain itself reject them.

**Two readings.** The paper freezes the jump rates over each interval at the density, and writes
"empirical": the rates are those of the population's own histogram. That is the headline here. In
the second reading they are those of the infinite population, so that individuals are independent;
both have their own fit and their own limit. The initial distribution is known to the fit, as in
the paper; in the row "start not known" it is learned as well (the fit to empirical rates does not
need it). **In square brackets: the deviance per degree of freedom**, the median over the runs:
about 1 where the energy describes the snapshots it was learned from, whatever the status says.

**Where rivals were run.** Training the network and searching the free chain's likelihood take nine
tenths of the time of a comparison. In the first section the network, and in the ablations
both, were run on the first instance of every third family (complete, Watts-Strogatz, spanning tree,
torus), in the ablations in the empirical reading only; in Table 1 on the first instance of all
families, in the empirical reading. Where a sweep was stopped early its notes count the cells that
were run, and the tables count their graphs: whole families first, the most expensive fits last.
**Few graphs mean rough figures.**
"""

SECTIONS: dict[str, tuple[str, str]] = {
    "limit": (
        "The paper's population at its own limit",
        "One tracked population of n = 10^4 individuals, all twelve families, N = 6 and `V` "
        "uniform in [-1, 1] but for the last two rows (N = 10, beta = 0.2); `uniform-20` and "
        "`random-20` have T = 5 and beta = 0.1. Root mean square error over that of the limit, "
        "with its standard error over the runs, and the median of the runs' own ratios; 1 is the "
        "best that any method can do. The search by particles and the draws in the empirical "
        "reading were settled on another seed (52077).",
    ),
    "table1": (
        "Table 1 and the figure per family: every method, beta by beta",
        "All twelve families, N = 6, n = 10^4, `V` uniform in [-1, 1], rates "
        "frozen over each interval as in the paper. The paper states neither its horizon nor its "
        "number of steps, so two settings are run. **What differs:** the paper's own network, run "
        "here with the corrected sign, comes out several times better than the paper's table says. "
        "What the paper states does not explain the gap; what it leaves out (the horizon, the "
        "number of steps, the weights of the graphs) may.",
    ),
    "size": (
        "Graph size",
        "n = 10^4, beta = 0.1, T = 5, M = 50. The raw histograms, which assume nothing, show how "
        "much of the growth is the number of states alone.",
    ),
    "samples": (
        "Number of samples",
        "N = 10, n = 500 to 10^4, beta = 0.1, T = 5, M = 50. **What differs:** the paper finds its "
        "method largely insensitive to n. Run here, the errors of its network and of the weak form "
        "fall with n, and the likelihood stays nearest to the limit.",
    ),
    "timegrid": (
        "Time grid",
        "Uniform, random and logarithmic grids on [0, 5], N = 6, n = 10^4, beta = 0.1. A "
        "Markov-state model has one lag time and applies to the uniform grid only. The paper's "
        "adaptive schedule is not stated in full; ours is geometric. The network, which trains on "
        "every pair of times, the free chain's likelihood and the second reading were run up to "
        "100 steps.",
    ),
    "energy": (
        "Free-energy functional",
        "Amplitude of the potential (0 is the purely entropic regime) against beta, N = 10. The "
        "paper reports this in words: larger amplitudes hurt, entropy helps, no collapse without a "
        "potential.",
    ),
    "delaunay": (
        "A smooth potential on a Delaunay graph of 1000 states",
        "Truth, recovered landscape, error and error bar. The paper shows one picture and no "
        "number.",
    ),
    "gallery": (
        "Graph classes",
        "The paper's figure shows twelve classes and its text describes eleven; the twelfth here "
        "is Barabási–Albert.",
    ),
    "pipeline": (
        "The pipeline",
        "The paper's schematic, drawn from one real run: snapshots, the potential that moves them, "
        "the loss, the landscape, the forecast.",
    ),
    "w2": (
        "The two-state lemma",
        "Along the heat flow on two states the W2 speed diverges as the time step falls; the W_K "
        "speed converges to the root of the Fisher information.",
    ),
    "mobility": (
        "Which mean?",
        "The paper fixes the logarithmic mean. Here data are made under each of four means, fitted "
        "under all, and the held-out likelihood chooses.",
    ),
    "speed": (
        "Speed",
        "The paper's network as printed (torch, every sample through the network), the same "
        "training compiled, its dense double Cholesky, and ours, in one run on one thread.",
    ),
    "scale": (
        "Scale",
        "The paper's routine is cubic in N. Here a whole fit, each size in its own process.",
    ),
}

ERRATA = """
## Errata of the paper

Found by derivation, checked numerically; the library follows the corrected forms.

1. **The sign of the jump rates.** The appendix prints `[psi_j - psi_i]_+`, which raises the free
   energy. The rate must be `Q_ij = K_ij m_ij / rho_i [f_i - f_j]_+` with `f = V + beta log rho`.
   The gradient in the model section also has the opposite sign to its definition.
2. **Algorithm 1 factorises a singular matrix.** `M` has the constants in its kernel. With one state
   grounded, the double Cholesky is one Laplacian solve `M psi = p_dot`, sparse and nearly linear,
   not cubic; and it gives the velocity of the chord, not of the geodesic.
3. **The loss is linear least squares** in `V` and beta. Weighted with the metric its normal
   equations telescope, and the fit is two Laplacian solves: no network is needed.
4. **The Hamming kernel** as printed does not sum to one; divide by the length.
5. **"Unit-speed geodesic"** must read constant speed on [0, 1].
6. **The "score entropy"** as printed is a squared loss, not the Bregman form it names.
7. **Twelve graph classes** are announced and eleven described.
"""

CLOSING = """
## What could not be matched

- **Horizon and number of steps** of every experiment are not stated; ours are printed above.
- **Parameters of the random graphs** (edge probabilities, weights, degrees) are not stated; ours
  are the defaults of `thalweg.make_graph`.
- **The initial distribution** is "sampled"; ours is a flat Dirichlet.
- **Figures** of the paper carry no numbers, so only their shape can be compared.
- **OpenFIM** is compared through its published figures alone: its pretrained weights are not part
  of this project.
"""
