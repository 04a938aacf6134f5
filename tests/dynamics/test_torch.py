"""The flow inside torch: the flow itself, and its gradients."""

from __future__ import annotations

import numpy as np
import pytest

from strategies import random_kernel
from thalweg import FreeEnergy, InputError, gradient_flow

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def case():
    rng = np.random.default_rng(0)
    kernel = random_kernel(5, rng)
    values = (0.5 * rng.normal(size=5), 0.4, rng.dirichlet(np.full(5, 3.0)))
    tensors = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in values]
    return kernel, values, tensors, np.array([0.0, 0.3, 1.0])


def test_the_flow_is_the_flow(case):
    from thalweg.torch import flow

    kernel, (v, beta, p0), tensors, times = case
    exact = gradient_flow(kernel, FreeEnergy(v, beta), p0, times, rtol=1e-11).probabilities
    errors = [
        np.abs(flow(kernel, *tensors, times, substeps=k).detach().numpy() - exact).max()
        for k in (8, 32)
    ]
    assert errors[1] < 3e-5
    assert errors[0] / errors[1] > 8  # second order


def test_gradients_of_flow_and_likelihood(case):
    from thalweg.torch import flow, log_likelihood

    kernel, _, tensors, times = case
    counts = torch.tensor([[5, 1, 0, 2, 3], [1, 2, 3, 4, 5], [2, 2, 2, 0, 9]])
    assert torch.autograd.gradcheck(lambda *x: flow(kernel, *x, times), tensors)
    assert torch.autograd.gradcheck(lambda *x: log_likelihood(kernel, *x, times, counts), tensors)


def test_wrong_shapes_get_one_sentence(case):
    from thalweg.torch import flow, log_likelihood

    kernel, _, (v, beta, p0), times = case
    with pytest.raises(InputError, match="one number per state"):
        flow(kernel, v[:3], beta, p0, times)
    with pytest.raises(InputError, match="must be positive"):
        flow(kernel, v, -beta, p0, times)
    with pytest.raises(InputError, match="one row per time"):
        log_likelihood(kernel, v, beta, p0, times, torch.ones(2, 5))
