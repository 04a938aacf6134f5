"""The page 'Reproducing the paper', made from the files that benchmarks wrote.

`make_page(folder)` looks below the folder for `NAME.json`, `NAME.csv` and the pictures beside them.
A benchmark that was run several times counts by its fullest run: complete before quick, more
instances before fewer, later before earlier. What was not run is named as missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from thalweg.errors import InputError
from thalweg_bench.published import COLLAPSED, TABLE1, TIME_GRID
from thalweg_bench.reproduce_text import CLOSING, ERRATA, KEPT, OPENING, SECTIONS

__all__ = ["Run", "find_runs", "make_page"]

_LARGEST_SVG = 400_000
"""Size in bytes above which the page shows the PNG picture."""
_METHODS = {
    "likelihood": "likelihood (ours)",
    "likelihood_free": "likelihood, start not known (ours)",
    "weak": "weak form (ours)",
    "paper": "the paper's network, run here",
    "truth": "the true energy",
    "ctmc_least_squares": "free chain, least squares",
    "ctmc_likelihood": "free chain, likelihood",
    "markov_state_model": "Markov-state model (sees trajectories)",
    "no_movement": "no movement",
    "histograms": "raw histograms",
    "cramer_rao_limit": "Cramér-Rao limit (median)",
    "cramer_rao_limit_free": "the same, start not known (median)",
}
_READINGS = {
    "empirical": "**Empirical rates**, as the paper writes: the population's own density sets them",
    "mean-field": "**Mean-field rates**: the density of the infinite population sets them",
}


@dataclass(frozen=True)
class Run:
    """What one run of a benchmark left behind."""

    name: str
    folder: Path
    settings: dict[str, Any]
    table: pd.DataFrame

    @property
    def command(self) -> str:
        """What to type to get the same."""
        words = [f"thalweg bench {self.name}"]
        if self.settings.get("quick"):
            words.append("--quick")
        if self.settings.get("instances"):
            words.append(f"--instances {self.settings['instances']}")
        if self.settings.get("seed"):
            words.append(f"--seed {self.settings['seed']}")
        return " ".join([*words, f"--out results/{self.name}"])

    @property
    def pictures(self) -> dict[str, bytes]:
        """One picture of each figure: SVG, or PNG where that would be heavy."""
        found = {}
        for svg in sorted(self.folder.glob(f"{self.name}-*.svg")):
            png = svg.with_suffix(".png")
            small = svg.stat().st_size <= _LARGEST_SVG or not png.exists()
            chosen = svg if small else png
            found[chosen.name] = chosen.read_bytes()
        return found


def find_runs(folder: Path) -> dict[str, Run]:
    """The fullest run of each benchmark below the folder."""
    runs: dict[str, Run] = {}
    rank: dict[str, tuple[bool, int, float]] = {}
    for path in sorted(folder.rglob("*.json")):
        try:
            settings = json.loads(path.read_text(encoding="utf-8"))
            table = pd.read_csv(path.with_suffix(".csv"))
        except (OSError, ValueError):
            continue
        name = settings.get("benchmark") if isinstance(settings, dict) else None
        if name != path.stem:
            continue
        order = (
            not settings.get("quick"),
            int(settings.get("instances") or 1000),
            path.stat().st_mtime,
        )
        if name not in rank or order > rank[name]:
            runs[name], rank[name] = Run(name, path.parent, settings, table), order
    return runs


def make_page(folder: Path, previous: str = "") -> tuple[str, dict[str, bytes]]:
    """The page in Markdown, and the pictures it shows (in `images/reproducing/`).

    Parameters
    ----------
    folder : Where the results are looked for, at any depth.
    previous : The page as it stands; sections without results here are kept from it as they are.
    """
    runs = find_runs(folder)
    if not runs:
        raise InputError(
            f"no results below {folder}; run thalweg bench NAME --out {folder}/NAME first."
        )
    parts, pictures = [OPENING], {}
    missing = []
    kept = {part.split("\n", 1)[0]: part for part in previous.split("\n## ")[1:]}
    for name, (title, text) in SECTIONS.items():
        run = runs.get(name)
        if run is None:
            if title in kept:
                parts.append(_kept(title, text, kept[title]))
            else:
                missing.append(name)
            continue
        lines = [f"## {title}", f"`{run.command}`", text]
        lines.append(_by_reading(_TABLES.get(name, _plain), run.table))
        for file, content in run.pictures.items():
            pictures[file] = content
            lines.append(f"![{title}](images/reproducing/{file}){{ width=100% }}")
        notes = [note for note in run.settings.get("notes", []) if "finished" not in note]
        lines += [f"- {note}" for note in notes]
        lines.append(_provenance(run))
        parts.append(_joined(lines))
    if missing:
        parts.append(
            "## Not in these results\n\n" + ", ".join(f"`{name}`" for name in missing)
            + ": run `thalweg bench NAME --out results/NAME`, then make this page again."
        )  # fmt: skip
    parts += [ERRATA, CLOSING]
    return "\n\n".join(part.strip() for part in parts) + "\n", pictures


def _kept(title: str, text: str, before: str) -> str:
    """A section of the page as it stands, under today's words, marked as such."""
    blocks = before.strip().split("\n\n")[1:]
    command = [block for block in blocks[:1] if block.startswith("`thalweg bench")]
    rest = [block for block in blocks[2 if command else 0 :] if block != KEPT]
    return "\n\n".join([f"## {title}", *command, *([text] if command else []), KEPT, *rest])


def _joined(lines: list[str]) -> str:
    """Paragraphs apart, items of a list together."""
    out = ""
    for before, line in zip(["", *lines], lines, strict=False):
        close = before.startswith("- ") and line.startswith("- ")
        out += ("\n" if close else "\n\n") + line.strip()
    return out.strip()


def _provenance(run: Run) -> str:
    s = run.settings
    packages = s.get("packages", {})
    versions = ", ".join(
        f"{name} {packages[name]}" for name in ("numpy", "scipy") if name in packages
    )
    kind = "quick run" if s.get("quick") else "full run"
    if s.get("instances"):
        kind = f"run of {s['instances']} instance(s) of each family"
    if any(str(note).startswith("stopped early") for note in s.get("notes", [])):
        kind += ", not finished"
    return (
        f"*{kind[0].upper()}{kind[1:]}, seed {s.get('seed', 0)}; thalweg {s.get('thalweg', '?')}, "
        f"Python {s.get('python', '?')}, {versions}.*"
    )


# ------------------------------------------------------------------------ tables


def _markdown(rows: list[dict[str, str]]) -> str:
    if not rows:
        return "(empty)"
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
    for row in rows:
        lines.append("| " + " | ".join(row.get(column, "") for column in columns) + " |")
    return "\n".join(lines)


def _number(value: Any) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{value:.4g}"
    return str(value).replace("|", "\\|")


def _plain(table: pd.DataFrame) -> str:
    rows = [{c: _number(v) for c, v in row.items()} for row in table.to_dict("records")]
    if len(rows) > 40:
        return f"(a table of {len(rows)} rows; it is in the CSV file)"
    return _markdown([{str(c): v for c, v in row.items()} for row in rows])


def _by_reading(render: Callable[[pd.DataFrame], str], table: pd.DataFrame) -> str:
    """One table for each reading of the paper's rates, the headline first."""
    if "reading" not in table:
        return render(table)
    shown = []
    for reading, title in _READINGS.items():
        part = table[table["reading"] == reading]
        if len(part):
            shown.append(f"{title}.\n\n{render(part.drop(columns='reading'))}")
    return "\n\n".join(shown)


def _value(part: pd.DataFrame) -> str:
    """`mean ± deviation` of a method, or the median of the limit; then how well it describes."""
    if part.empty:
        return ""
    row = part.iloc[0]
    if str(row["method"]).startswith("cramer_rao_limit"):
        return f"{row.get('median', row['error']):.4f}"
    failed = f" ({int(row['failed'])} of {int(row['runs'])} failed)" if row["failed"] else ""
    if row["failed"] == row["runs"]:
        return "does not apply"
    skewed = row["deviation"] > row["error"] and "median" in row
    median = f" (median {row['median']:.4f})" if skewed else ""
    deviance = row.get("deviance", float("nan"))
    fit = f" [{deviance:.3g}]" if deviance == deviance else ""
    rejected = f" ({int(row['rejected'])} rejected)" if row.get("rejected", 0) else ""
    spread = "" if row["deviation"] != row["deviation"] else f" ± {row['deviation']:.4f}"
    return f"{row['error']:.4f}{spread}{median}{fit}{rejected}{failed}"


def _limit(table: pd.DataFrame) -> str:
    """Problems down; each method's error over the limit, its deviance, and fits to doubt."""
    rows = []
    for problem, group in table.groupby("problem", sort=False):
        parts = {str(part["method"].iloc[0]): part for _, part in group.groupby("method")}
        row = {"problem": str(problem)}
        for method in ("likelihood", "likelihood_free", "weak", "paper"):
            if method not in parts:
                continue
            one = parts[method].iloc[0]
            value = f"{one['over_limit']:.2f}"
            if one["runs"] > 1:
                value += (
                    f" ± {one['over_limit_stderr']:.2f} (median {one['median_over_limit']:.2f})"
                )
            if one["deviance"] == one["deviance"]:
                value += f" [{one['deviance']:.3g}]"
            row[_METHODS[method]] = value
        for method in ("cramer_rao_limit", "cramer_rao_limit_free"):
            if method in parts:
                row[_METHODS[method]] = _value(parts[method])
        ours = parts["likelihood"].iloc[0]
        row["ours: unconverged or partial, rejected"] = (
            f"{int(ours['unconverged'])}, {int(ours['rejected'])} of {int(ours['runs'])}"
        )
        row["ours: CPU s (median)"] = f"{ours['seconds']:.2f}"
        rows.append(row)
    return _markdown(rows)


def _methods(table: pd.DataFrame, axes: list[str], label: str) -> str:
    """Methods down, the sweep's axis across."""
    rows = []
    for method, shown in _METHODS.items():
        part = table[table["method"] == method]
        if part.empty or method == "truth":
            continue
        row = {"method": shown}
        for values, group in part.groupby(axes, sort=False):
            values = values if isinstance(values, tuple) else (values,)
            row[label.format(*values)] = _value(group)
        rows.append(row)
    fits = table[table["method"] == "likelihood"]
    counted = {label.format(*r[axes]): str(r["runs"]) for _, r in fits.iterrows()}
    return _markdown([*rows, {"method": "graphs (rivals: fewer)", **counted}])


def _table1(table: pd.DataFrame) -> str:
    parts = []
    for (horizon, steps), group in table.groupby(["horizon", "steps"], sort=False):
        rows = []
        for method, shown in _METHODS.items():
            part = group[group["method"] == method]
            if part.empty:
                continue
            row = {"method": shown}
            for beta, cell in part.groupby("beta", sort=False):
                row[f"beta = {beta:g}"] = _value(cell)
                sampled = cell["sampled"].iloc[0]
                if sampled == sampled:
                    row[f"sampled, {beta:g}"] = f"{sampled:.4f}"
            rows.append(row)
        fits = group[group["method"] == "likelihood"]
        counted = {f"beta = {r['beta']:g}": str(r["runs"]) for _, r in fits.iterrows()}
        rows.append({"method": "graphs", **counted})
        for name, shown in (("paper", "the paper"), ("openfim", "OpenFIM")):
            row = {"method": f"**published**: {shown}"}
            row |= {f"sampled, {beta:g}": f"*{TABLE1[beta][name]}*" for beta in TABLE1}
            rows.append(row)
        parts.append(f"Horizon T = {horizon:g}, M = {steps} steps:\n\n{_markdown(rows)}")
    return "\n\n".join(parts)


def _timegrid(table: pd.DataFrame) -> str:
    published = (
        f"Published, all grids together: the paper *{TIME_GRID['paper']}*, OpenFIM "
        f'*{TIME_GRID["openfim"]}* ("approximately").'
    )
    return _down(table, {"grid": "{}", "steps": "{}"}) + "\n\n" + published


def _size(table: pd.DataFrame) -> str:
    published = (
        f'Published as a figure without numbers: growth "approximately linear" in N, and about '
        f"{100 * COLLAPSED:g} % of the learned distributions collapsed."
    )
    return _methods(table, ["n_states"], "N = {0}") + "\n\n" + published


def _samples(table: pd.DataFrame) -> str:
    published = (
        'Published as a figure without numbers: "largely insensitive" to the number of samples, '
        "slightly worse at 500."
    )
    return _methods(table, ["n"], "n = {0}") + "\n\n" + published


def _energy(table: pd.DataFrame) -> str:
    return _down(table, {"amplitude": "± {:g}", "beta": "{:g}"})


def _down(table: pd.DataFrame, axes: dict[str, str]) -> str:
    """The sweep's axes down, methods across."""
    ran = set(table["method"]) - {"truth", "ctmc_least_squares"}
    shown = [name for name in _METHODS if name in ran]
    rows = []
    for values, group in table.groupby(list(axes), sort=False):
        row = {
            axis: form.format(value)
            for (axis, form), value in zip(axes.items(), values, strict=True)
        }
        for method in shown:
            row[_METHODS[method]] = _value(group[group["method"] == method]) or "not run"
        row["graphs"] = str(group.loc[group["method"] == "likelihood", "runs"].max())
        rows.append(row)
    return _markdown(rows)


def _speed(table: pd.DataFrame) -> str:
    """Processor seconds: six states over all cases, growing graphs, the large one."""
    growing = table["case"].str.startswith("growing")
    large = table["one solve"].notna()
    small = table[~growing & ~large]
    rows = []
    for method, group in small.groupby("method", sort=False):
        row = {"N = 6": str(method), "seconds (median)": f"{group['seconds'].median():.4g}"}
        row["Hellinger (mean)"] = f"{group['hellinger'].mean():.4f}"
        rows.append({**row, "cases": str(len(group))})
    grown = []
    for method, group in table[growing].groupby("method", sort=False):
        row = {"seconds (Hellinger)": str(method)}
        for case, seconds, error, status in zip(
            group["case"], group["seconds"], group["hellinger"], group["status"], strict=True
        ):
            extra = "" if error != error else f" ({error:.4f})"
            extra += "" if status in ("CONVERGED", None) or status != status else f", {status}"
            row[str(case).removeprefix("growing, ")] = f"{seconds:.3g}{extra}"
        grown.append(row)
    last = [
        {c: _number(v) for c, v in row.items() if v == v} for row in table[large].to_dict("records")
    ]
    return "\n\n".join(_markdown(part) for part in (rows, grown, last))


_TABLES: dict[str, Callable[[pd.DataFrame], str]] = {
    "limit": _limit,
    "speed": _speed,
    "table1": _table1,
    "size": _size,
    "samples": _samples,
    "timegrid": _timegrid,
    "energy": _energy,
}
