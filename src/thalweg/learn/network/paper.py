"""The paper's own method as printed, for comparison.

`fit_neural` is Algorithm 2 of the paper: geodesic velocities by Algorithm 1, then an MLP (two
hidden layers of 64) that maps a state to a row of the gradient of `V` and to beta, trained with
Adam on samples. The loss is quadratic in what it learns, so `thalweg.learn.weak.fit` gives its
minimiser in closed form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from thalweg import _checks
from thalweg._types import Array, Progress
from thalweg.energy import FreeEnergy, centred
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.learn.limits import exhausted, limit_status, spend
from thalweg.learn.network import linear_layers, load_torch, one_thread
from thalweg.mobility import Mobility, as_mobility
from thalweg.status import Status

Engine = Callable[[Any, list[Any], Any, Any, "Training"], Callable[[Any], Array]]
"""`(torch, layers, log rho, psi, training) -> train`; `train(samples)` gives each batch's loss."""


def geodesic_velocity(
    kernel: MarkovKernel, p: Array, p_dot: Array, mobility: Mobility | None = None, pinned: int = 0
) -> Array:
    """Algorithm 1 of the paper, dense: `psi` with `M(rho) psi = p_dot` and `psi[pinned] = 0`.

    As printed it factorises the singular `M`. Here the pinned state leaves both `M` and the
    constraints, one of which is redundant, and every factor is positive definite.

    >>> kernel = MarkovKernel.from_weights([[0, 1], [1, 0]])
    >>> geodesic_velocity(kernel, np.array([0.5, 0.5]), np.array([-0.1, 0.1]))
    array([0. , 0.2])
    """
    mean = as_mobility(mobility)
    pi, rho = kernel.stationary, p / kernel.stationary
    theta = mean(rho[:, None], rho[None, :])
    w = kernel.flow_matrix.toarray() * theta
    m = np.diag(w.sum(axis=1)) - w
    keep = np.arange(kernel.n_states) != pinned
    m, pi, rho_dot = m[np.ix_(keep, keep)], pi[keep], (p_dot / kernel.stationary)[keep]
    a = -m / pi[:, None]
    y = linalg.cho_solve(linalg.cho_factor(m), a.T)
    s = a @ y
    multiplier = linalg.cho_solve(linalg.cho_factor(0.5 * (s + s.T)), 2 * rho_dot)
    psi = np.zeros(kernel.n_states)
    psi[keep] = -0.5 * y @ multiplier
    return psi


@dataclass(frozen=True, eq=False)
class NeuralFit:
    """The result of the paper's network."""

    energy: FreeEnergy
    gradient: Array
    """The network's rows, `V(x) - V(y)` as it predicts them; no potential fits them exactly."""
    losses: Array
    """The mean loss over each tenth of the training."""
    n_steps: int
    status: Status


@dataclass(frozen=True)
class Training:
    """The settings of the network and of its training, by default those of the paper."""

    hidden: int = 64
    learning_rate: float = 5e-4
    weight_decay: float = 1e-6
    batch_size: int = 128
    epochs: int = 2
    device: str | None = None
    """The torch device; by default CUDA where there is some."""
    engine: Engine | None = None
    """Makes the training steps; by default every sample goes through the network in torch."""


@one_thread
def fit_neural(
    kernel: MarkovKernel,
    times: ArrayLike,
    counts: ArrayLike,
    probabilities: ArrayLike,
    *,
    seed: int = 0,
    mobility: Mobility | None = None,
    training: Training | None = None,
    progress: Progress | None = None,
) -> NeuralFit:
    """Algorithm 2 of the paper: train the network on the JKO condition at sampled states.

    For the sample `x` seen at `t_k` the residual is the row
    `grad V(x) + beta grad log rho_k(x) - v_k(x) / tau_k`, `v_k = v_geo(rho_k -> rho_{k-1})`. Every
    individual seen after the first time is a sample; batches mix times. The potential is recovered
    from the predicted rows by least squares, each row with the weight of its samples.
    """
    training = Training() if training is None else training
    torch = load_torch()
    times = _checks.as_times(times, minimum=2)
    p = _checks.as_probabilities(probabilities, kernel.n_states, "probabilities")
    table = _checks.as_array(counts, "counts")
    if p.shape[0] != times.size or table.shape != p.shape:
        raise InputError(
            f"counts have shape {table.shape} and probabilities {p.shape} for {times.size} times; "
            "give one row per time in both."
        )
    n, steps = kernel.n_states, np.diff(times)
    rates = (p[:-1] - p[1:]) / steps[:, None]
    psi = np.array(
        [geodesic_velocity(kernel, q, r, mobility) for q, r in zip(p[1:], rates, strict=True)]
    )
    where = torch.device(training.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    generator = torch.Generator().manual_seed(seed)

    def as_tensor(x: Array) -> Any:
        return torch.as_tensor(x, dtype=torch.float32, device=where)

    log_rho = np.log(p[1:] / kernel.stationary)
    weights = np.rint(table[1:]).astype(np.int64).ravel()
    samples = torch.as_tensor(np.repeat(np.arange(weights.size), weights))
    sizes = [n, training.hidden, training.hidden, n + 1]
    layers = [layer.to(where) for layer in linear_layers(torch, sizes, seed)]
    engine = training.engine or _literal_steps
    train = engine(torch, layers, as_tensor(log_rho), as_tensor(psi), training)
    total = training.epochs * -(-samples.numel() // training.batch_size)
    tenth = max(total // 10, 1)
    losses = np.zeros(0)
    status = Status.CONVERGED
    try:
        for _ in range(training.epochs):
            order = samples[torch.randperm(samples.numel(), generator=generator)]
            for piece in torch.split(order, training.batch_size * tenth):
                if losses.size and exhausted():
                    status = limit_status()
                    break
                losses = np.append(losses, train(piece))
                spend(tenth)
                if progress is not None:
                    progress("training the network", losses.size, total)
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    history = losses[: losses.size // tenth * tenth].reshape(-1, tenth).mean(axis=1)
    with torch.no_grad():
        out = _outputs(torch, layers, torch.eye(n, device=where))
        seen = as_tensor(table[1:].sum(axis=0) / table[1:].sum())
        beta_value = float(torch.nn.functional.softplus(seen @ out[:, n]))
        rows = out[:, :n].cpu().numpy().astype(np.float64)
    if np.isfinite(rows).all() and np.isfinite(beta_value):
        v = potential_from_gradient(rows, table[1:].sum(axis=0))
        energy = FreeEnergy(centred(v, kernel), beta_value)
    else:
        energy, status = FreeEnergy(np.zeros(n), 0.0), Status.NOT_FINITE
    return NeuralFit(energy, rows, history, losses.size, status)


def _outputs(torch: Any, layers: list[Any], inputs: Any) -> Any:
    h = torch.relu(layers[0](inputs))
    return layers[2](torch.relu(layers[1](h)))


def _literal_steps(
    torch: Any, layers: list[Any], log_rho: Any, psi: Any, training: Training
) -> Callable[[Any], Array]:
    """Training on samples as the paper has it: every sample of a batch through the network."""
    n = log_rho.shape[1]
    parameters = [q for layer in layers for q in layer.parameters()]
    optimiser = torch.optim.Adam(
        parameters, lr=training.learning_rate, weight_decay=training.weight_decay
    )
    states = torch.eye(n, device=log_rho.device)

    def train(samples: Any) -> Array:
        losses = []
        for batch in torch.split(samples.to(log_rho.device), training.batch_size):
            k, x = batch // n, batch % n
            out = _outputs(torch, layers, states[x])
            # One beta for all: the head's mean over the batch.
            beta = torch.nn.functional.softplus(out[:, n].mean())
            score = log_rho[k, x][:, None] - log_rho[k]
            velocity = psi[k, x][:, None] - psi[k]
            loss = ((out[:, :n] + beta * score - velocity) ** 2).sum(dim=1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        return np.asarray(torch.stack(losses).cpu().numpy(), dtype=np.float64)

    return train


def potential_from_gradient(rows: Array, weights: Array) -> Array:
    """The `V` that minimises `sum_xy w_x (V_x - V_y - rows_xy)^2`, with mean zero.

    >>> v = np.array([1.0, 0.0, -1.0])
    >>> potential_from_gradient(v[:, None] - v[None, :], np.array([5.0, 1.0, 0.0])).round(12)
    array([ 1.,  0., -1.])
    """
    w = weights / weights.sum() + 1e-9
    n = w.size
    weighted = w[:, None] * rows
    np.fill_diagonal(weighted, 0.0)
    right = weighted.sum(axis=1) - weighted.sum(axis=0)
    matrix = np.diag(n * w + w.sum()) - w[:, None] - w[None, :]
    v = np.linalg.solve(matrix + 1.0 / n, right)
    return np.asarray(v - v.mean())
