"""Networks: the paper's own method as it stands, and a potential as a network of state features.

`fit_neural` is Algorithm 2 of the paper: geodesic velocities by Algorithm 1, then an MLP (two
hidden layers of 64) that maps a state to a row of the gradient of `V` and to beta, trained with
Adam on samples. The loss is quadratic in what it learns, so `thalweg.learn.weak` gives its
minimiser in closed form; this is here to be compared with.

`fit_feature_network` goes where a table of numbers cannot: `V(x) = net(features of x)` carries over
to states and graphs that were never seen.

This is the only file that imports torch, and it does so when a network is trained; predicting with
a trained one needs numpy only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg

from thalweg import _checks
from thalweg.energy import Entropy, FreeEnergy, centred
from thalweg.errors import InputError, MissingDependencyError
from thalweg.kernel import MarkovKernel
from thalweg.learn.weak import fit_weak
from thalweg.learn.weak_terms import Quadrature, assemble, nodes_of
from thalweg.mobility import LogMean, Mobility
from thalweg.status import Status

__all__ = [
    "FeatureFit",
    "FeatureNetwork",
    "NeuralFit",
    "fit_feature_network",
    "fit_neural",
    "geodesic_velocity",
]

Array = NDArray[np.float64]
Progress = Callable[[str, int, int], None]
P = ParamSpec("P")
R = TypeVar("R")
Objective = Callable[[Array, float], tuple[float, Array, float]]
"""`(potential, beta) -> (value, its gradient in the potential, its derivative in beta)`."""


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingDependencyError(
            "the neural methods need torch, which is not installed; install it with "
            "pip install 'thalweg[neural]'."
        ) from None
    return torch


def _one_thread(train: Callable[P, R]) -> Callable[P, R]:
    """Train on one thread: on networks this small several only wait for each other."""

    @wraps(train)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        torch = _torch()
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return train(*args, **kwargs)
        finally:
            torch.set_num_threads(before)

    return limited


# ------------------------------------------------------------------------ the paper's method


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
    mean = LogMean() if mobility is None else mobility
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
    """What the paper's network learned."""

    energy: FreeEnergy
    gradient: Array
    """The network's rows, `V(x) - V(y)` as it predicts them; no potential fits them exactly."""
    losses: Array
    """The mean loss over each tenth of the training."""
    n_steps: int
    status: Status


@_one_thread
def fit_neural(
    kernel: MarkovKernel,
    times: ArrayLike,
    counts: ArrayLike,
    probabilities: ArrayLike,
    *,
    seed: int = 0,
    hidden: int = 64,
    learning_rate: float = 5e-4,
    weight_decay: float = 1e-6,
    batch_size: int = 128,
    epochs: int = 2,
    mobility: Mobility | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> NeuralFit:
    """Algorithm 2 of the paper: train the network on the JKO condition at sampled states.

    For the sample `x` seen at `t_k` the residual is the row
    `grad V(x) + beta grad log rho_k(x) - v_k(x) / tau_k`, `v_k = v_geo(rho_k -> rho_{k-1})`. Every
    individual seen after the first time is a sample; batches mix times. The potential is recovered
    from the predicted rows by least squares, each row with the weight of its samples.
    """
    torch = _torch()
    times = _checks.as_times(times, minimum=2)
    p = _checks.as_probabilities(probabilities, kernel.n_states, "probabilities")
    table = _checks.as_array(counts, "counts")
    if p.shape[0] != times.size or table.shape != p.shape:
        raise InputError(
            f"counts have shape {table.shape} and probabilities {p.shape} for {times.size} times; "
            "give one row per time in both."
        )
    n, steps = kernel.n_states, np.diff(times)
    psi = np.stack(
        [
            geodesic_velocity(kernel, p[k], p[k - 1] - p[k], mobility) / steps[k - 1]
            for k in range(1, times.size)
        ]
    )
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    generator = torch.Generator().manual_seed(seed)

    def as_tensor(x: Array) -> Any:
        return torch.as_tensor(x, dtype=torch.float32, device=where)

    log_rho, psi_rows = as_tensor(np.log(p[1:] / kernel.stationary)), as_tensor(psi)
    weights = np.rint(table[1:]).astype(np.int64).ravel()
    samples = torch.as_tensor(np.repeat(np.arange(weights.size), weights))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        trunk = torch.nn.Sequential(
            torch.nn.Linear(n, hidden),
            torch.nn.ReLU(),
            torch.nn.Linear(hidden, hidden),
            torch.nn.ReLU(),
        ).to(where)
        heads = torch.nn.Linear(hidden, n + 1).to(where)
    parameters = [*trunk.parameters(), *heads.parameters()]
    optimiser = torch.optim.Adam(
        parameters, lr=learning_rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=weight_decay
    )
    states = torch.eye(n, device=where)
    n_batches = -(-samples.numel() // batch_size)
    total = epochs * n_batches
    history: list[float] = []
    window, step = torch.zeros((), device=where), 0
    status = Status.CONVERGED
    try:
        for _ in range(epochs):
            order = samples[torch.randperm(samples.numel(), generator=generator)].to(where)
            for batch in torch.split(order, batch_size):
                k, x = batch // n, batch % n
                out = heads(trunk(states[x]))
                # One beta for all: the head's mean over the batch.
                beta = torch.nn.functional.softplus(out[:, n].mean())
                score = log_rho[batch // n, x][:, None] - log_rho[k]
                velocity = psi_rows[k, x][:, None] - psi_rows[k]
                loss = ((out[:, :n] + beta * score - velocity) ** 2).sum(dim=1).mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                window = window + loss.detach()
                step += 1
                if step % max(total // 10, 1) == 0:
                    history.append(float(window) / max(total // 10, 1))
                    window = torch.zeros((), device=where)
                    if progress is not None:
                        progress("training the network", step, total)
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    with torch.no_grad():
        out = heads(trunk(states))
        seen = as_tensor(table[1:].sum(axis=0) / table[1:].sum())
        beta_value = float(torch.nn.functional.softplus(seen @ out[:, n]))
        rows = out[:, :n].cpu().numpy().astype(np.float64)
    if not (np.isfinite(rows).all() and np.isfinite(beta_value)):
        return NeuralFit(
            FreeEnergy(np.zeros(n), 0.0), rows, np.array(history), step, Status.NOT_FINITE
        )
    v = potential_from_gradient(rows, table[1:].sum(axis=0))
    energy = FreeEnergy(centred(v, kernel), beta_value)
    return NeuralFit(energy, rows, np.array(history), step, status)


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


# ------------------------------------------------------------------------ a network of features


@dataclass(frozen=True, eq=False)
class FeatureNetwork:
    """`V = net((features - shift) / scale)`, layers of `tanh` and a linear one, as arrays."""

    shift: Array
    scale: Array
    weights: tuple[Array, ...]
    biases: tuple[Array, ...]

    def predict_potential(self, features: ArrayLike) -> Array:
        """The potential of states with these features, on whatever graph they lie."""
        h = _feature_table(features)
        if h.shape[1] != self.shift.size:
            raise InputError(
                f"features have {h.shape[1]} columns, but the network was trained on "
                f"{self.shift.size}."
            )
        h = (h - self.shift) / self.scale
        for w, b in zip(self.weights[:-1], self.biases[:-1], strict=True):
            h = np.tanh(h @ w + b)
        return np.asarray((h @ self.weights[-1] + self.biases[-1])[:, 0])


@dataclass(frozen=True, eq=False)
class FeatureFit:
    """A free energy whose potential is a network of features."""

    energy: FreeEnergy
    network: FeatureNetwork
    loss: float
    """Relative to the best that a free potential reaches: 1 is as good, 0 is no potential."""
    n_steps: int
    status: Status

    def predict_potential(self, features: ArrayLike) -> Array:
        return self.network.predict_potential(features)


@_one_thread
def fit_feature_network(
    kernel: MarkovKernel,
    times: ArrayLike,
    probabilities: ArrayLike,
    features: ArrayLike,
    *,
    seed: int = 0,
    hidden: Sequence[int] = (64, 64),
    beta: float | None = None,
    quadrature: Quadrature = "trapezoid",
    mobility: Mobility | None = None,
    objective: Objective | None = None,
    warm_steps: int = 200,
    max_iterations: int = 300,
    weight_decay: float = 1e-5,
    device: str | None = None,
    progress: Progress | None = None,
) -> FeatureFit:
    """Train `V(x) = net(features_x)` on the weak loss, or on any `objective` with a gradient.

    The weak loss needs the data only through its normal equations, so a step costs one pass over
    the edges whatever the number of samples; beta is its best value for each `V`. `objective`
    (a likelihood, say) takes `(V, beta)` and gives a value to be minimised and its derivatives.
    Adam for `warm_steps`, then L-BFGS.
    """
    torch = _torch()
    p = _checks.as_probabilities(probabilities, kernel.n_states, "probabilities")
    when = _checks.as_times(times, minimum=2)
    x = _feature_table(features)
    if x.shape[0] != kernel.n_states:
        raise InputError(
            f"features have {x.shape[0]} rows for {kernel.n_states} states; give one per state."
        )
    shift, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    start = fit_weak(kernel, when, p, beta=beta, quadrature=quadrature, mobility=mobility)
    where = torch.device(device or "cpu")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        sizes = [x.shape[1], *hidden, 1]
        layers = [torch.nn.Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:], strict=True)]
    for layer in layers:
        layer.to(device=where, dtype=torch.float64)
    log_beta = torch.tensor(
        np.log(max(start.beta, 1e-2)), dtype=torch.float64, device=where, requires_grad=True
    )
    inputs = torch.as_tensor((x - shift) / scale, dtype=torch.float64, device=where)

    def potential() -> Any:
        h = inputs
        for layer in layers[:-1]:
            h = torch.tanh(layer(h))
        return layers[-1](h)[:, 0]

    if objective is None:
        evaluate, best = _weak_objective(torch, where, kernel, when, p, quadrature, mobility, beta)
    else:
        evaluate, best = _outer_objective(torch, objective, log_beta, beta, start), 1.0
    parameters = [q for layer in layers for q in layer.parameters()]
    if objective is not None and beta is None:
        parameters.append(log_beta)
    weights = [layer.weight for layer in layers]

    def loss() -> Any:
        decay = sum((w**2).sum() for w in weights)
        return evaluate(potential())[0] / best + weight_decay * decay

    n_steps, status = _train(torch, parameters, loss, warm_steps, max_iterations, progress)
    with torch.no_grad():
        v = potential()
        value, found_beta = evaluate(v)
        network = FeatureNetwork(
            shift,
            scale,
            tuple(layer.weight.detach().cpu().numpy().T.copy() for layer in layers),
            tuple(layer.bias.detach().cpu().numpy().copy() for layer in layers),
        )
        energy = FreeEnergy(centred(v.cpu().numpy(), kernel), max(float(found_beta), 0.0))
    if not np.isfinite(float(value)):
        status = Status.NOT_FINITE
    return FeatureFit(energy, network, -float(value) / best, n_steps, status)


def _train(
    torch: Any,
    parameters: list[Any],
    loss: Callable[[], Any],
    warm_steps: int,
    max_iterations: int,
    progress: Progress | None,
) -> tuple[int, Status]:
    n_steps = 0
    total = warm_steps + max_iterations
    try:
        adam = torch.optim.Adam(parameters, lr=5e-3)
        for _ in range(warm_steps):
            adam.zero_grad()
            loss().backward()
            adam.step()
            n_steps += 1
        newton = torch.optim.LBFGS(
            parameters, max_iter=20, history_size=20, line_search_fn="strong_wolfe"
        )

        def closure() -> Any:
            newton.zero_grad()
            value = loss()
            value.backward()
            return value

        last = np.inf
        for _ in range(max(max_iterations // 20, 0)):
            value = float(newton.step(closure).detach())
            n_steps += 20
            if progress is not None:
                progress("training the network", n_steps, total)
            if not value < last - 1e-8 * abs(last):
                break
            last = value
    except KeyboardInterrupt:
        return n_steps, Status.INTERRUPTED
    return n_steps, Status.CONVERGED


def _weak_objective(
    torch: Any,
    where: Any,
    kernel: MarkovKernel,
    times: Array,
    p: Array,
    quadrature: Quadrature,
    mobility: Mobility | None,
    known_beta: float | None,
) -> tuple[Callable[[Any], tuple[Any, Any]], float]:
    """The weak loss of a potential with beta eliminated, and how low a free potential gets it."""
    system = assemble(
        kernel,
        nodes_of(times, quadrature),
        p,
        weighting="metric",
        mobility=LogMean() if mobility is None else mobility,
        internal=Entropy(),
        with_beta=True,
        interactions=(),
        time_basis=None,
        deviations=(),
    )

    def tensor(values: ArrayLike) -> Any:
        return torch.as_tensor(np.asarray(values), dtype=torch.float64, device=where)

    source, target, _ = kernel.edges
    tails = torch.as_tensor(source.astype(np.int64), device=where)
    heads = torch.as_tensor(target.astype(np.int64), device=where)
    weights, load = tensor(system.weights[0, 0]), tensor(system.load[0])
    column, gram, moment = tensor(system.columns[0, :, 0]), system.gram[0, 0], system.moments[0]

    def evaluate(v: Any) -> tuple[Any, Any]:
        if known_beta is None:
            beta = torch.clamp((moment - column @ v) / gram, min=0.0)
        else:
            beta = tensor(known_beta)
        quadratic = (weights * (v[tails] - v[heads]) ** 2).sum()
        value = 0.5 * quadratic + beta * (column @ v) + 0.5 * gram * beta**2
        return value - load @ v - moment * beta, beta

    free = fit_weak(
        kernel, times, p, beta=known_beta, quadrature=quadrature, mobility=mobility, ridge=0.0
    )
    return evaluate, max(-float(evaluate(tensor(free.potential))[0]), 1e-300)


def _outer_objective(
    torch: Any, objective: Objective, log_beta: Any, known_beta: float | None, start: Any
) -> Callable[[Any], tuple[Any, Any]]:
    """An objective with its own derivatives, as a function torch can differentiate through."""
    scale = max(abs(objective(start.potential, max(start.beta, 1e-6))[0]), 1e-300)

    class Value(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, v: Any, beta: Any) -> Any:
            value, by_v, by_beta = objective(v.detach().cpu().numpy(), float(beta))
            context.save_for_backward(
                torch.as_tensor(by_v / scale).to(v), torch.as_tensor(by_beta / scale).to(v)
            )
            return torch.as_tensor(value / scale).to(v)

        @staticmethod
        def backward(context: Any, by_value: Any) -> tuple[Any, Any]:
            by_v, by_beta = context.saved_tensors
            return by_value * by_v, by_value * by_beta

    def evaluate(v: Any) -> tuple[Any, Any]:
        beta = torch.exp(log_beta) if known_beta is None else torch.tensor(known_beta).to(v)
        return Value.apply(v, beta), beta

    return evaluate


def _feature_table(features: ArrayLike) -> Array:
    table = _checks.as_array(features, "features")
    if table.ndim == 1:
        table = table[:, None]
    if table.ndim != 2:
        raise InputError(f"features have shape {table.shape}; give one row per state.")
    return table
