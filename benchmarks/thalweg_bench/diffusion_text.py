"""Characters of the project's own documentation: a masked diffusion against a bigram model.

The text is the markdown of the project (where the source tree is at hand) and the docstrings of the
package, read when the benchmark runs. It is cut into blocks, some of which are held out; both
models see the same blocks.
"""

from __future__ import annotations

import ast
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import thalweg
from thalweg._types import Array, Tokens
from thalweg.diffusion import (
    HammingProcess,
    LogLinearSchedule,
    NetworkModel,
    TransformerDenoiser,
    absorbing_tokens,
    infill,
    likelihood_bound,
    sample,
    train,
)
from thalweg_bench import BenchSettings
from thalweg_bench.diffusion_learned import Row, figure_row, one_torch_thread

__all__ = ["Corpus", "TextResult", "bigram_bits", "corpus", "text_rows"]

LENGTH = 64
"""Characters per sequence,"""
_BLOCK = 8 * LENGTH
"""and per block, of which a tenth is held out."""
_RARE = 20
"""Least number of times that a character of the alphabet occurs."""


@dataclass(frozen=True)
class Corpus:
    """An alphabet and blocks of encoded text, split in two."""

    alphabet: str
    train: Tokens
    test: Tokens

    def decode(self, row: Tokens) -> str:
        return "".join(self.alphabet[token] for token in row)

    def encode(self, text: str) -> Tokens:
        return np.array([max(self.alphabet.find(character), 0) for character in text])

    def windows(self) -> Tokens:
        """The held-out text as sequences of `LENGTH`."""
        return self.test.reshape(-1, LENGTH)


@dataclass(frozen=True)
class TextResult:
    """Rows of the table, generated text, the loss curve, and sentences."""

    rows: list[Row]
    samples: list[str]
    filled: list[str]
    losses: Array
    notes: tuple[str, ...]


def corpus(rng: np.random.Generator) -> Corpus:
    """The documentation as blocks of text, a tenth of them held out.

    Characters seen fewer than 20 times are written as `?`, the first of the alphabet.
    """
    package = Path(thalweg.__file__).parent
    root = package.parents[1]
    pages = [*sorted(root.glob("*.md")), *sorted((root / "docs").glob("**/*.md"))]
    parts = [page.read_text(encoding="utf-8") for page in pages]
    for source in sorted(package.glob("**/*.py")):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                parts.append(ast.get_docstring(node) or "")
    text = "\n".join(part for part in parts if part)
    kinds, counts = np.unique(np.array(list(text)), return_counts=True)
    kept = [str(kind) for kind, count in zip(kinds, counts, strict=True) if count >= _RARE]
    alphabet = "?" + "".join(character for character in kept if character != "?")
    index = {character: k for k, character in enumerate(alphabet)}
    codes = np.array([index.get(character, 0) for character in text], dtype=np.int64)
    blocks = codes[: codes.size // _BLOCK * _BLOCK].reshape(-1, _BLOCK)
    order = rng.permutation(blocks.shape[0])
    held = max(1, blocks.shape[0] // 10)
    return Corpus(alphabet, blocks[order[held:]], blocks[order[:held]])


def bigram_bits(text: Corpus) -> float:
    """Held-out bits per character of the best interpolated bigram model, on the same windows.

    `p(b | a) = (count(a, b) + s p(b)) / (count(a) + s)`; the strength `s` is chosen on the held-out
    text itself, in the bigram model's favour.
    """
    n = len(text.alphabet)
    pairs = np.zeros((n, n))
    np.add.at(pairs, (text.train[:, :-1].ravel(), text.train[:, 1:].ravel()), 1.0)
    single = np.bincount(text.train.ravel(), minlength=n) + 0.5
    single = single / single.sum()
    windows = text.windows()
    best = np.inf
    for strength in (0.3, 1.0, 3.0, 10.0, 30.0):
        smooth = (pairs + strength * single) / (pairs.sum(axis=1, keepdims=True) + strength)
        bits = -np.log2(single[windows[:, 0]]).sum()
        bits -= np.log2(smooth[windows[:, :-1], windows[:, 1:]]).sum()
        best = min(best, float(bits / windows.size))
    return best


@one_torch_thread()
def text_rows(settings: BenchSettings) -> TextResult:
    """Train the small transformer under masking noise and compare with the bigram model."""
    import torch

    text = corpus(np.random.default_rng(settings.seed))
    n = len(text.alphabet)
    n_steps = 60 if settings.quick else 800
    process = HammingProcess(absorbing_tokens(n, backward=1e-5), LENGTH)
    schedule = LogLinearSchedule(10.0 * LENGTH, unit=float(LENGTH))
    torch.manual_seed(settings.seed)
    network = TransformerDenoiser(n + 1, LENGTH, mask=n)

    def windows(rng: np.random.Generator, count: int) -> Tokens:
        block = rng.integers(text.train.shape[0], size=count)[:, None]
        first = rng.integers(_BLOCK - LENGTH + 1, size=count)[:, None]
        return text.train[block, first + np.arange(LENGTH)]

    started = time.process_time()
    result = train(
        process,
        schedule,
        network,
        windows,
        n_steps=n_steps,
        batch_size=64,
        learning_rate=3e-3,
        averaging=0.98,
        seed=settings.seed,
        progress=lambda what, done, total: settings.progress("text", done, total),
    )
    assert isinstance(result.model, NetworkModel)
    rng = np.random.default_rng(settings.seed + 1)
    held = text.windows()[: 40 if settings.quick else None]
    bound = likelihood_bound(result.model, schedule, held, rng=rng, n_times=16)
    bigram = bigram_bits(text)
    drawn = sample(result.model, schedule, 6, rng=rng, n_steps=LENGTH, temperature=0.7)
    template = np.full(LENGTH, -1)
    start, end = text.encode("The gradient flow "), text.encode(" of the kernel.")
    template[: start.size], template[-end.size :] = start, end
    filled = infill(
        result.model, schedule, template, 3, rng=rng, n_steps=LENGTH, corrector_steps=0,
        temperature=0.7,
    )  # fmt: skip
    seconds = time.process_time() - started
    row = figure_row(
        "text of the documentation, length 64",
        f"{n_steps} training steps, {n} characters, {text.train.size} to learn from",
        "held-out bits per character (bound)", bound.bits, bigram, seconds,
    )  # fmt: skip
    note = (
        f"Held-out text: at most {bound.bits:.3f} bits per character (standard error "
        f"{bound.stderr:.3f}) against {bigram:.3f} of a bigram model of the same text."
    )
    return TextResult(
        [row],
        [text.decode(one) for one in drawn],
        [text.decode(one) for one in filled],
        result.losses,
        (note,),
    )
