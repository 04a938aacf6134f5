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
from thalweg.learn.inputs import feature_table
from thalweg.learn.limits import exhausted, limit_status, spend
from thalweg.learn.network import linear_layers, load_torch, one_thread
from thalweg.learn.weak.fit import fit_weak
from thalweg.learn.weak.options import WeakOptions
from thalweg.learn.weak.terms import Nodes, Quadrature, Setting, assemble
from thalweg.mobility import Mobility, as_mobility
from thalweg.status import Status

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
        h = feature_table(features)
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


class WeakLoss:
    """The weak loss of a potential, with beta known or at its best value for each potential.

    It needs the data only through its normal equations, so a value costs one pass over the edges
    whatever the number of samples.

    Parameters
    ----------
    kernel : MarkovKernel
        The graph.
    times : array
        Times of the snapshots.
    probabilities : array
        Their probabilities, one row per time.
    beta : float, optional
        The noise, if known.
    quadrature : {"trapezoid", "right", "midpoint"}
        How the loss is integrated in time; see `fit_weak`.
    mobility : Mobility, optional
        By default the logarithmic mean.
    """

    def __init__(
        self,
        kernel: MarkovKernel,
        times: ArrayLike,
        probabilities: ArrayLike,
        *,
        beta: float | None = None,
        quadrature: Quadrature = "trapezoid",
        mobility: Mobility | None = None,
    ) -> None:
        p = _checks.as_probabilities(probabilities, kernel.n_states, "probabilities")
        when = _checks.as_times(times, minimum=2)
        self.kernel, self.beta = kernel, beta
        options = WeakOptions(quadrature=quadrature, mobility=mobility, ridge=0.0)
        self.best = fit_weak(kernel, when, p, beta=beta, options=options).potential
        self.system = assemble(kernel, Nodes(when, quadrature), p, Setting(as_mobility(mobility)))

    def on(self, torch: Any, where: Any) -> Callable[[Any], tuple[Any, Any]]:
        """The loss and beta as functions of a potential on a torch device."""
        system = self.system

        def tensor(values: ArrayLike) -> Any:
            return torch.as_tensor(np.asarray(values), dtype=torch.float64, device=where)

        tails, heads = (
            torch.as_tensor(ends.astype(np.int64), device=where) for ends in self.kernel.edges[:2]
        )
        weights, load = tensor(system.weights[0, 0]), tensor(system.load[0])
        column, gram, moment = tensor(system.columns[0, :, 0]), system.gram[0, 0], system.moments[0]

        def evaluate(v: Any) -> tuple[Any, Any]:
            if self.beta is None:
                beta = torch.clamp((moment - column @ v) / gram, min=0.0)
            else:
                beta = tensor(self.beta)
            quadratic = (weights * (v[tails] - v[heads]) ** 2).sum()
            value = 0.5 * quadratic + beta * (column @ v) + 0.5 * gram * beta**2
            return value - load @ v - moment * beta, beta

        return evaluate


@one_thread
def fit_feature_network(
    loss: WeakLoss,
    features: ArrayLike,
    *,
    seed: int = 0,
    hidden: Sequence[int] = (64, 64),
    device: str | None = None,
    progress: Progress | None = None,
) -> FeatureFit:
    """Train `V(x) = net(features_x)` on the weak loss: Adam first, then L-BFGS."""
    torch, kernel = load_torch(), loss.kernel
    x = feature_table(features, kernel.n_states)
    shift, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    where = torch.device(device or "cpu")
    layers = linear_layers(torch, [x.shape[1], *hidden, 1], seed)
    for layer in layers:
        layer.to(device=where, dtype=torch.float64)
    inputs = torch.as_tensor((x - shift) / scale, dtype=torch.float64, device=where)

    def potential() -> Any:
        h = inputs
        for layer in layers[:-1]:
            h = torch.tanh(layer(h))
        return layers[-1](h)[:, 0]

    evaluate = loss.on(torch, where)
    free = torch.as_tensor(loss.best, dtype=torch.float64, device=where)
    best = max(-float(evaluate(free)[0]), 1e-300)

    def penalised() -> Any:
        decay = sum((layer.weight**2).sum() for layer in layers)
        return evaluate(potential())[0] / best + _WEIGHT_DECAY * decay

    parameters = [q for layer in layers for q in layer.parameters()]
    n_steps, status = _train(torch, parameters, penalised, progress)
    with torch.no_grad():
        v = potential()
        value, beta = evaluate(v)
        network = FeatureNetwork(
            shift,
            scale,
            tuple(layer.weight.detach().cpu().numpy().T.copy() for layer in layers),
            tuple(layer.bias.detach().cpu().numpy().copy() for layer in layers),
        )
        energy = FreeEnergy(centred(v.cpu().numpy(), kernel), max(float(beta), 0.0))
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
