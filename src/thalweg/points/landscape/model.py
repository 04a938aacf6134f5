"""Pushing clouds along `-grad V`, with the derivative of every moment in every parameter.

`V(x, t) = sum_jb theta_jb phi_j(x) P_b(t)`, `P_b` the Legendre polynomials over the observed times.
With one step per interval the push is `x - tau grad V(x)`, followed by noise of variance
`2 beta tau`, which the test functions are averaged over in closed form. With more, each step is a
midpoint rule with a sixth of its noise before, four sixths in the middle and a sixth after it: by
Simpson's rule a well has its width to 1 % even where a step is as long as its time. (With noise
after each step it is half as wide again at half of that.) The draws are fixed and
antithetic, and the last sixth is averaged over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from thalweg._types import Array
from thalweg.points.landscape.features import Basis, Moments
from thalweg.points.landscape.field import CHUNK, END, MIDDLE, Field, bounding_box, time_basis

T = TypeVar("T")

_LEAST_BETA = 1e-8
"""Least beta, in units of the model's scale."""
_KEPT_BYTES = 4e8
"""Largest size of the gradients that are kept."""
_FAR = 10.0
"""Bound at which expelled points are stopped, in extents of the cloud."""
_NEEDS = {
    "scale": ("clouds", "basis"),
    "_slopes": ("clouds", "basis"),
    "observed": ("clouds", "moments"),
}
"""What is computed once, and the fields that it depends on."""


def _before(step: int) -> float:
    """Root of the share of a step's noise before it: from the second on, two sixths."""
    return END if step == 0 else float(np.sqrt(2)) * END


def _antithetic(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Draws for the beginning and the middle of a step, followed by their opposites."""
    xi = rng.standard_normal((2, *shape))
    return np.concatenate([xi, -xi], axis=1)


def _halved(values: Array) -> Array:
    """The mean over each draw and its opposite."""
    half = len(values) // 2
    return np.asarray(0.5 * (values[:half] + values[half:]))


@dataclass(frozen=True, eq=False)
class PushModel:
    """Each snapshot pushed to the time of the next, as a function of the parameters `z`.

    `z` holds the weights in units of the typical gradient of their function, one time function
    after another, and last `beta` in units of `beta_scale`, where it is free.
    """

    times: Array
    clouds: tuple[Array, ...]
    basis: Basis
    moments: Moments
    order: int = 0
    beta: float | None = None
    steps: int = 1
    seed: int = 0

    def changed(self, **changes: Any) -> PushModel:
        """The same model but for some fields; what does not depend on them is kept."""
        new = replace(self, **changes)
        for name, needs in _NEEDS.items():
            if all(getattr(new, need) is getattr(self, need) for need in needs):
                new.__dict__[name] = getattr(self, name)
        return new

    @cached_property
    def scale(self) -> Array:
        """Root mean square gradient of each function over the clouds."""
        total = np.zeros(self.basis.size)
        for x in self.clouds:
            for a in range(0, len(x), CHUNK):
                g = self.basis.gradient(x[a : a + CHUNK])
                total += np.einsum("ndj,ndj->j", g, g) / len(x)
        return np.sqrt(total / len(self.clouds)) + 1e-12

    @cached_property
    def beta_scale(self) -> float:
        pool = np.concatenate(self.clouds)
        return float(pool.var(axis=0).mean() / (self.times[-1] - self.times[0]))

    @cached_property
    def _far(self) -> tuple[Array, Array]:
        """The bound at which points that a wild potential expels are stopped before overflow."""
        low, high = bounding_box(self.clouds)
        return low - _FAR * (high - low), high + _FAR * (high - low)

    @cached_property
    def observed(self) -> list[Array]:
        """Values of the moments' functions at the individuals."""
        return [self.moments.value(x) for x in self.clouds]

    @property
    def n_weights(self) -> int:
        return self.basis.size * (self.order + 1)

    @property
    def size(self) -> int:
        return self.n_weights + (self.beta is None)

    def read(self, z: Array) -> tuple[Array, float]:
        """Weights (one row per time function) and beta."""
        theta = z[: self.n_weights].reshape(self.order + 1, -1) / self.scale
        return theta, float(z[-1]) * self.beta_scale if self.beta is None else float(self.beta)

    def field(self, weights: Array) -> Field:
        """The potential with these weights, row after row."""
        rows = weights.reshape(self.order + 1, -1)
        return Field(self.basis, rows, self.times, bounding_box(self.clouds))

    # ---------------------------------------------------------------- weak form

    def weak(self) -> tuple[Array, Array]:
        """Rows and right-hand side of the trapezoid weak form, linear in `z`.

        `m_{k+1} - m_k = -tau (A_k + A_{k+1}) theta / 2 + beta tau (l_k + l_{k+1}) / 2` with
        `A = E[grad g . grad phi]`, `l = E[laplacian g]`.
        """
        known = [self._products(k) for k in range(len(self.clouds))]
        means = [v.mean(axis=0) for v in self.observed]
        rows, sides = [], []
        for k, tau in enumerate(np.diff(self.times)):
            row = -0.5 * tau * (known[k][0] + known[k + 1][0])
            noise = 0.5 * tau * (known[k][1] + known[k + 1][1])
            side = means[k + 1] - means[k]
            if self.beta is None:
                row = np.column_stack([row, self.beta_scale * noise])
            else:
                side = side - self.beta * noise
            rows.append(row)
            sides.append(side)
        return np.concatenate(rows), np.concatenate(sides)

    def _products(self, k: int) -> tuple[Array, Array]:
        """`A` times each time function, side by side, and `l` at snapshot `k`."""
        x = self.clouds[k]
        product = np.zeros((self.moments.rotation.shape[0], self.basis.size))
        laplacian = np.zeros(self.moments.rotation.shape[0])
        for a in range(0, len(x), CHUNK):
            part = x[a : a + CHUNK]
            test = self.moments.basis.gradient(part).reshape(part.size, -1)
            product += test.T @ self._slope(k, a).reshape(part.size, -1)
            laplacian += self.moments.basis.laplacian(part).sum(axis=0)
        rotated = self.moments.rotation.T @ product / len(x)
        when = time_basis(self.times, self.times[k], self.order)
        columns = np.concatenate([b * rotated for b in when], axis=1)
        return columns, self.moments.rotation.T @ laplacian / len(x)

    # ---------------------------------------------------------------- push

    def pushed(self, z: Array) -> list[Array]:
        """Per individual, the expected test functions at the time of the next snapshot."""
        return self._once("pushed", z, self._pushed)

    def _once(self, name: str, z: Array, compute: Callable[[Array], T]) -> T:
        """A result at `z`, kept until another `z` is asked for: fits, tests and bars share it."""
        key, known = z.tobytes(), self._latest.get(name)
        if known is None or known[0] != key:
            known = self._latest[name] = (key, compute(z))
        return cast(T, known[1])

    @cached_property
    def _latest(self) -> dict[str, tuple[bytes, object]]:
        return {}

    def _pushed(self, z: Array) -> list[Array]:
        out = []
        for k in range(self.times.size - 1):
            parts = []
            for a in range(0, len(self.clouds[k]), CHUNK):
                end, _, spread = self._carry(k, a, z, False)
                value = self.moments.value(end, spread)
                parts.append(_halved(value) if self._paired else value)
            out.append(np.concatenate(parts))
        return out

    def joint_values(self, k: int, z: Array | None) -> tuple[Array, Array]:
        """Test functions now and, expected, at the next time, over all individuals at time `k`.

        These are snapshot `k` and its neighbours carried to the same time.
        """
        if z is None:
            return self.observed[k], self.observed[k]
        theta, beta = self.read(z)
        field, rng = self.field(theta), np.random.default_rng([self.seed, 5, k])
        t, last, one = self.times, self.times.size - 1, self.steps == 1
        known = [self.clouds[k]]
        if k > 0:
            x, span = self.clouds[k - 1], (t[k - 1], t[k])
            known.append(field.flow(x, span, self.steps, beta=beta, rng=rng, euler=one))
        if k < last:
            x, span = self.clouds[k + 1], (t[k + 1], t[k])
            known.append(field.flow(x, span, max(2, self.steps)))
        pool = np.concatenate([x[np.isfinite(x).all(axis=1)] for x in known])
        now = self.moments.value(pool)
        if k == last:
            return now, now
        h = (t[k + 1] - t[k]) / self.steps
        if one:
            end = field.flow(pool, (t[k], t[k + 1]), 1, euler=True)
            return now, self.moments.value(end, 2 * beta * h)
        end, size = np.concatenate([pool, pool]), np.sqrt(2 * beta * h)
        for s in range(self.steps):
            first, second = size * _antithetic(pool.shape, rng)
            end = field.step(end + _before(s) * first, t[k] + (s + 0.5) * h, h, MIDDLE * second)
        return now, _halved(self.moments.value(end, beta * h / 3))

    def residual(self, z: Array) -> Array:
        """Moments predicted less moments seen, interval after interval."""
        pairs = zip(self.pushed(z), self.observed[1:], strict=True)
        return np.concatenate([there.mean(axis=0) - seen.mean(axis=0) for there, seen in pairs])

    def jacobian(self, z: Array) -> Array:
        """Derivative of `residual` in `z`."""
        return self._once("jacobian", z, self._jacobian)

    def _jacobian(self, z: Array) -> Array:
        out = []
        for k, tau in enumerate(np.diff(self.times)):
            n = len(self.clouds[k]) * (2 if self._paired else 1)
            total = np.zeros((self.moments.rotation.shape[0], self.size))
            for a in range(0, len(self.clouds[k]), CHUNK):
                end, slopes, spread = self._carry(k, a, z, True)
                test = self.moments.basis.gradient(end, spread).reshape(end.size, -1)
                total[:, : slopes.shape[2]] += test.T @ slopes.reshape(end.size, -1)
                if self.beta is None:
                    lap = self.moments.basis.laplacian(end, spread).sum(axis=0)
                    total[:, -1] += self.beta_scale * self._last(tau) * lap
            out.append(self.moments.rotation.T @ total / n)
        return np.concatenate(out)

    def score_noise(self, z: Array, inverse: Array) -> tuple[Array, Array]:
        """Expected value at the truth of `J' S^-1 r`, and the part of `J' S^-1 J` that is noise.

        The same individuals enter the derivatives `J` and the residuals `r`, so that each moment
        adds a little of one sign to the score, and the scatter of `J` about its mean looks like
        information. `inverse` is `S^-1`.
        """
        m, copies = self.moments.size, 2 if self._paired else 1
        bias, noise = np.zeros(self.size), np.zeros((self.size, self.size))
        moved, full = self.pushed(z), self.jacobian(z)
        for k, tau in enumerate(np.diff(self.times)):
            here, before = slice(k * m, (k + 1) * m), slice((k - 1) * m, k * m)
            n = len(self.clouds[k])
            pull = (moved[k] - moved[k].mean(axis=0)) @ inverse[here, here]
            if k > 0:
                seen = self.observed[k] - self.observed[k].mean(axis=0)
                pull -= seen @ inverse[before, here]
            root = np.linalg.cholesky(inverse[here, here])
            pull = np.linalg.solve(root, pull.T).T
            rotation, share = self.moments.rotation @ root, 1 / (copies * n**2)
            for a in range(0, n, CHUNK):
                end, slopes, spread = self._carry(k, a, z, True)
                u = np.concatenate([pull[a : a + CHUNK]] * copies)
                test = self.moments.basis.gradient(end, spread) @ rotation
                flat, w = slopes.reshape(end.size, -1), slopes.shape[2]
                felt = np.einsum("ndk,nk->nd", test, u, optimize=True)
                bias[:w] += share * felt.ravel() @ flat
                metric = test @ test.transpose(0, 2, 1)
                noise[:w, :w] += share * flat.T @ (metric @ slopes).reshape(end.size, -1)
                if self.beta is None:
                    lap = self.moments.basis.laplacian(end, spread) @ rotation
                    lap *= self.beta_scale * self._last(tau)
                    felt = np.einsum("ndk,nk->nd", test, lap, optimize=True)
                    cross = share * felt.ravel() @ flat
                    bias[-1] += share * float((lap * u).sum())
                    noise[-1, :w] += cross
                    noise[:w, -1] += cross
                    noise[-1, -1] += share * float((lap**2).sum())
            mean = full[here]
            noise -= mean.T @ inverse[here, here] @ mean / n
        return bias, noise

    def _last(self, tau: float) -> float:
        """Half the derivative in beta of the variance that is averaged over."""
        return tau if self.steps == 1 else tau / self.steps / 6

    @property
    def _paired(self) -> bool:
        return self.steps > 1 and self.beta != 0

    def _slope(self, k: int, a: int) -> Array:
        """Scaled gradients of the functions at a chunk of individuals; cached if they are few."""
        if (k, a) in self._slopes:
            return self._slopes[k, a]
        g = self.basis.gradient(self.clouds[k][a : a + CHUNK])
        g /= self.scale
        if self._kept:
            self._slopes[k, a] = g
        return g

    @property
    def _kept(self) -> bool:
        return 8.0 * self.basis.size * sum(x.size for x in self.clouds) < _KEPT_BYTES

    @cached_property
    def _slopes(self) -> dict[tuple[int, int], Array]:
        return {}

    def _carry(self, k: int, a: int, z: Array, wanted: bool) -> tuple[Array, Array, float]:
        """A chunk pushed over interval `k`: end points, derivatives (if wanted), variance left."""
        x, start = self.clouds[k][a : a + CHUNK], self.times[k]
        tau = float(self.times[k + 1] - start)
        theta, beta = self.read(z)
        beta = max(beta, 0.0)
        if self.steps == 1:
            when = time_basis(self.times, start + 0.5 * tau, self.order)
            if not (wanted or self._kept):
                end = np.clip(x - tau * self.basis.slope(x, when @ theta), *self._far)
                return end, np.empty(0), 2 * beta * tau
            g = self._slope(k, a)
            end, stopped = self._stop(x - tau * (g @ ((when @ theta) * self.scale)))
            slopes = np.empty(0)
            if wanted:
                slopes = -tau * np.concatenate([b * g for b in when], axis=2)
                slopes[stopped] = 0.0
            return end, slopes, 2 * beta * tau
        rng, h, shape = np.random.default_rng([self.seed, k, a]), tau / self.steps, x.shape
        x = np.concatenate([x, x]) if self._paired else x
        slopes = np.zeros((*x.shape, self.size if wanted else 0))
        size = np.sqrt(2 * h * max(beta, _LEAST_BETA * self.beta_scale))
        kick, change = np.zeros((2, 1, 1)), np.zeros((2, 1, 1))
        for s in range(self.steps):
            if self._paired:
                xi = _antithetic(shape, rng) * np.reshape([_before(s), MIDDLE], (2, 1, 1))
                kick, change = size * xi, self.beta_scale * h / size * xi
            x = x + kick[0]
            if wanted and self.beta is None:
                slopes[:, :, -1] += change[0]
            when = time_basis(self.times, start + (s + 0.5) * h, self.order)
            x, slopes = self._step(x, slopes, (h, when, when @ theta), (kick[1], change[1]))
            x, stopped = self._stop(x)
            slopes[stopped] = 0.0
        return x, slopes, beta * h / 3

    def _stop(self, x: Array) -> tuple[Array, NDArray[np.bool_]]:
        """Points stopped far outside the cloud, and the coordinates that no longer change."""
        low, high = self._far
        return np.clip(x, low, high), ~((x >= low) & (x <= high))

    def _step(
        self, x: Array, slopes: Array, how: tuple[float, Array, Array], noise: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        """One midpoint step (length, time functions, weights) and its exact derivative, if wanted.

        `noise`: an impulse at the middle and its derivative in beta.
        """
        (h, when, theta), (kick, change) = how, noise
        middle, stopped = self._stop(x - 0.5 * h * self.basis.slope(x, theta) + 0.5 * kick)
        end = x - h * self.basis.slope(middle, theta) + kick
        if not slopes.size:
            return end, slopes
        m = self.n_weights
        inner = slopes - (0.5 * h * self.basis.hessian(x, theta)) @ slopes
        inner[:, :, :m] -= self._columns(x, 0.5 * h * when)
        if self.beta is None:
            inner[:, :, -1] += 0.5 * change
        inner[stopped] = 0.0
        slopes = slopes - (h * self.basis.hessian(middle, theta)) @ inner
        slopes[:, :, :m] -= self._columns(middle, h * when)
        if self.beta is None:
            slopes[:, :, -1] += change
        return end, slopes

    def _columns(self, x: Array, factors: Array) -> Array:
        """Gradients of the functions per unit of `z`, times one factor per time function."""
        g = self.basis.gradient(x)
        if self.order == 0:
            g *= factors[0] / self.scale
            return g
        return np.concatenate([g * (b / self.scale) for b in factors], axis=2)
