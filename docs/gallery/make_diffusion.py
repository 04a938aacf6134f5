"""Makes the pictures of the two pages on discrete diffusion, and prints their numbers.

Run it from the root of the project: `python docs/gallery/make_diffusion.py`.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from thalweg import FreeEnergy, gradient_flow, hamming_kernel
from thalweg.diffusion import (
    HammingProcess,
    TokenProcess,
    absorbing_tokens,
    entropy_gradient,
    hamming_path,
    ordinal_tokens,
    reverse_rates,
    score_ratios,
    scores_from_entropy_gradient,
    tilted_path,
    time_reversal,
    uniform_tokens,
)
from thalweg.flow import velocity
from thalweg_bench import BenchSettings
from thalweg_bench.diffusion_exact import steering
from thalweg_bench.diffusion_learned import potts

Array = NDArray[np.float64]
FOLDER = Path(__file__).parent / "figures"
COLOURS = ("#3b5bdb", "#e8590c", "#2f9e44", "#9c36b5", "#868e96")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    descent()
    pictures()
    steered()


def descent() -> None:
    """The entropy along three noising processes, and the identities behind it."""
    length, total = 4, 12.0
    p = potts(4, length, np.random.default_rng(0))
    kinds: dict[str, TokenProcess] = {
        "uniform": uniform_tokens(4),
        "absorbing (mask is the fourth token)": absorbing_tokens(3, backward=1e-3),
        "ordinal (nearest neighbour)": ordinal_tokens(4),
    }
    clocks = np.concatenate([[1e-3], np.linspace(0.1, total, 60)])
    curves = {}
    for name, tokens in kinds.items():
        process = HammingProcess(tokens, length)
        kernel = process.kernel()
        law = p
        if tokens.mask is not None:
            masked = (process.decode(np.arange(process.n_states)) == tokens.mask).any(axis=1)
            law = np.where(masked, 0.0, p) / p[~masked].sum()
        path = hamming_path(process, law, total)
        energy = FreeEnergy(np.zeros(kernel.n_states), beta=1.0)
        curves[name] = (clocks, np.array([energy(kernel, path.probability(c)) for c in clocks]))

        now = path.probability(1.0)
        grad = entropy_gradient(kernel, now)
        gap = abs(scores_from_entropy_gradient(kernel, grad) - score_ratios(kernel, now))
        score_gap = (gap / score_ratios(kernel, now).max()).max()
        heat = now @ kernel.matrix - now
        flow_gap = abs(heat - velocity(kernel, energy, now)).max() / abs(heat).max()
        back_gap = abs(now @ reverse_rates(kernel, now) + heat).max() / abs(heat).max()
        h = 1e-4
        falls = energy(kernel, path.probability(1 + h)) - energy(kernel, path.probability(1 - h))
        slope = -float(heat @ energy.first_variation(kernel, now))
        returned = 0.5 * abs(time_reversal(path).final - law).sum()
        print(
            f"{name}: score against exp(-gradient) {score_gap:.1e}; heat flow against gradient "
            f"flow {flow_gap:.1e}; reversed velocity {back_gap:.1e}; "
            f"-dH/dt {-falls / (2 * h):.6f} against |grad H|^2 {slope:.6f}; "
            f"reversal returns to p_0 within {returned:.1e}"
        )
    line_plot(
        FOLDER / "diffusion_entropy.svg", curves, "clock", "entropy relative to the base",
        log_y=True,
    )  # fmt: skip


def pictures() -> None:
    """A law on 24 x 24 'sequences' of two ordinal tokens, noised without and with a potential."""
    n = 24
    kernel = hamming_kernel(n, 2, ordinal_tokens(n).token_kernel())
    x, y = np.meshgrid(np.arange(n), np.arange(n), indexing="ij")

    def blob(a: float, b: float, width: float) -> Array:
        return np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * width**2))

    data = blob(6, 7, 1.6) + 0.8 * blob(17, 5, 1.3) + 1e-6
    data = data.ravel() / data.sum()
    radius = np.hypot(x - 11.5, y - 11.5)
    potential = 0.25 * (radius - 8.0).ravel() ** 2
    plain = FreeEnergy(np.zeros(n * n), beta=1.0)
    steered_energy = FreeEnergy(potential, beta=1.0)
    clocks = [0.0, 10.0, 40.0, 150.0, 1500.0]
    rows = []
    for name, energy in (("no potential", plain), ("a ring-shaped valley", steered_energy)):
        flow = gradient_flow(kernel, energy, data, clocks)
        base = energy.equilibrium(kernel)
        away = 0.5 * abs(flow.final - base).sum()
        print(f"picture, {name}: at clock {clocks[-1]:g} {away:.1e} away from the base")
        rows.append([p.reshape(n, n) for p in flow.probabilities])
    path = tilted_path(kernel, steered_energy, data, 40.0, rtol=1e-10)
    back = time_reversal(path, rtol=1e-8)
    print(f"picture, tilted flow reversed from clock 40: {0.5 * abs(back.final - data).sum():.1e}")
    write_png(FOLDER / "diffusion_pictures.png", montage(rows))


def steered() -> None:
    """The cost of a short clock, with and without a potential: the benchmark's own figures."""
    _, curves = steering(BenchSettings())
    for name, (clocks, errors) in curves.items():
        shown = ", ".join(f"{e:.4f} at {c:g}" for c, e in zip(clocks, errors, strict=True))
        print(f"from the base, {name}: {shown}")
    line_plot(
        FOLDER / "diffusion_steering.svg", curves, "clock of the noising process",
        "total variation to p_0", log_y=True,
    )  # fmt: skip


# -------------------------------------------------------------------- drawing


def line_plot(
    file: Path,
    curves: dict[str, tuple[Array, Array]],
    x_title: str,
    y_title: str,
    *,
    log_y: bool,
) -> None:
    width, height, left, bottom, top = 640, 380, 70, 50, 20 + 18 * len(curves)
    xs = np.concatenate([x for x, _ in curves.values()])
    ys = np.concatenate([y for _, y in curves.values()])
    shape = np.log10 if log_y else np.asarray
    low, high = float(shape(ys).min()), float(shape(ys).max())
    low, high = (np.floor(low), np.ceil(high)) if log_y else (min(low, 0.0), high)

    def place(x: float, y: float) -> tuple[float, float]:
        across = left + (width - left - 20) * (x - xs.min()) / np.ptp(xs)
        up = (float(shape(np.float64(y))) - low) / (high - low)
        return across, height - bottom - (height - bottom - top) * up

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for level in np.arange(low, high + 0.5) if log_y else np.linspace(low, high, 5):
        value = 10.0**level if log_y else level
        _, y = place(xs.min(), value)
        parts.append(
            f'<line x1="{left}" x2="{width - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dee2e6"/>'
            f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>'
        )
    for value in np.linspace(round(float(xs.min())), xs.max(), 5):
        x, _ = place(value, ys.max())
        parts.append(
            f'<text x="{x:.1f}" y="{height - bottom + 18}" text-anchor="middle">{value:.3g}</text>'
        )
    for k, (name, (x_values, y_values)) in enumerate(curves.items()):
        colour = COLOURS[k % len(COLOURS)]
        points = " ".join(
            "{:.1f},{:.1f}".format(*place(float(x), float(y)))
            for x, y in zip(x_values, y_values, strict=True)
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        row = 18 + 18 * k
        parts.append(
            f'<line x1="{left}" x2="{left + 24}" y1="{row - 4}" y2="{row - 4}" '
            f'stroke="{colour}" stroke-width="3"/><text x="{left + 32}" y="{row}">{name}</text>'
        )
    middle = (left + width - 20) / 2
    parts.append(f'<text x="{middle}" y="{height - 10}" text-anchor="middle">{x_title}</text>')
    parts.append(
        f'<text transform="translate(16 {(top + height - bottom) / 2}) rotate(-90)" '
        f'text-anchor="middle">{y_title}</text></svg>'
    )
    file.write_text("\n".join(parts) + "\n", encoding="utf-8")


def montage(rows: list[list[Array]]) -> NDArray[np.uint8]:
    """Rows of laws as one picture, dark where there is little mass, each scaled by itself."""
    scale, gap = 5, 6
    stops = np.array([[13, 8, 60], [94, 38, 140], [205, 72, 90], [250, 160, 60], [252, 250, 190]])
    lines = []
    for row in rows:
        tiles = []
        for law in row:
            level = np.sqrt(law / law.max()) * (len(stops) - 1)
            colours = np.stack(
                [np.interp(level, np.arange(len(stops)), stops[:, c]) for c in range(3)], -1
            )
            tile = np.kron(colours, np.ones((scale, scale, 1)))
            tiles.append(np.pad(tile, ((gap, 0), (gap, 0), (0, 0)), constant_values=255))
        lines.append(np.concatenate(tiles, axis=1))
    return np.concatenate(lines, axis=0).round().astype(np.uint8)


def write_png(file: Path, pixels: NDArray[np.uint8]) -> None:
    height, width, _ = pixels.shape

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    raw = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    file.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(raw, 9))
        + chunk(b"IEND", b"")
    )


if __name__ == "__main__":
    main()
