"""A potential as a network of the features of a state: `V(x) = net(features of x)`.

Unlike a table of numbers, it generalises to states and graphs that were never seen. Predicting with
a trained network needs numpy only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from thalweg import _checks
from thalweg._types import Array, Progress
from thalweg.energy import FreeEnergy, centred
from thalweg.errors import InputError
from thalweg.kernel import MarkovKernel
from thalweg.learn.limits import exhausted, limit_status, spend
from thalweg.learn.network import load_torch, one_thread
from thalweg.learn.weak.fit import fit_weak
from thalweg.learn.weak.terms import Quadrature, Setting, assemble, nodes_of
from thalweg.mobility import Mobility, as_mobility
from thalweg.status import Status

Objective = Callable[[Array, float], tuple[float, Array, float]]
"""`(potential, beta) -> (value, its gradient in the potential, its derivative in beta)`."""

_WARM_STEPS, _MAX_ITERATIONS = 200, 300
"""Steps of Adam; then at most so many iterations of L-BFGS."""
_WEIGHT_DECAY = 1e-5
"""Penalty on the squared weights, relative to the loss of the best free potential."""


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
    """Loss relative to the best free potential: 1 is as good, 0 is no potential."""
    n_steps: int
    status: Status

    def predict_potential(self, features: ArrayLike) -> Array:
        return self.network.predict_potential(features)


@one_thread
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
    device: str | None = None,
    progress: Progress | None = None,
) -> FeatureFit:
    """Train `V(x) = net(features_x)` on the weak loss, or on any `objective` with a gradient.

    The weak loss needs the data only through its normal equations, so a step costs one pass over
    the edges whatever the number of samples; beta is its best value for each `V`. `objective`
    (a likelihood, say) takes `(V, beta)` and returns a value to be minimised and its derivatives.
    Adam first, then L-BFGS.
    """
    torch = load_torch()
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
        return evaluate(potential())[0] / best + _WEIGHT_DECAY * decay

    n_steps, status = _train(torch, parameters, loss, progress)
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
    torch: Any, parameters: list[Any], loss: Callable[[], Any], progress: Progress | None
) -> tuple[int, Status]:
    n_steps, total = 0, _WARM_STEPS + _MAX_ITERATIONS
    try:
        adam = torch.optim.Adam(parameters, lr=5e-3)
        for _ in range(_WARM_STEPS):
            if exhausted():
                return n_steps, limit_status()
            spend()
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
        for _ in range(_MAX_ITERATIONS // 20):
            if exhausted():
                return n_steps, limit_status()
            value = float(newton.step(closure).detach())
            n_steps += 20
            spend(20)
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
    """The weak loss of a potential with beta eliminated, and its minimum for a free potential."""
    setting = Setting(as_mobility(mobility))
    system = assemble(kernel, nodes_of(times, quadrature), p, setting)

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
