"""Runs the scripts of `examples/` when the site is built, and makes a page of each.

A script that reads data which the repository does not hold (it names `THALWEG_DATA`) is not run:
its page and its pictures are kept in `docs/gallery/kept`, where this file, run as a program with
the scripts as arguments and the data available, puts them. Pictures and numbers are kept, not data.

A script starts with a docstring: its first line is the title, the rest the introduction. Comments
that begin with `# %%` start a new passage of text. What it prints appears below its code, and so
does every figure that it passes to `show`.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parent.parent
PLOTLY = '<script src="../assets/plotly.min.js"></script>'
WHERE = """

!!! note "The data"
    {source} Put the file where the head of the script looks for it, below the folder that the
    environment variable `THALWEG_DATA` names. `python docs/gallery_hook.py examples/{name}.py`
    made this page from the data.
"""
CELLS = (
    "Mouse blood cells of Weinreb and others (2020) in two dimensions, as distributed in the "
    "repositories of TIGON and DeepRUOT (MIT)."
)
SOURCES = {
    "alanine_dipeptide": "Dihedral angles of ten runs of 10 ns, derived from the trajectories of "
    "msmb_data (CC-BY, doi 10.6084/m9.figshare.1026131).",
    "blood_cells": CELLS,
    "blood_fates": CELLS,
    "us_states": "Population of the 48 contiguous states, US Census Bureau; which of them touch, "
    "from libpysal (BSD).",
}
KEPT = ROOT / "docs" / "gallery" / "kept"


def on_files(files: Files, config: Any) -> Files:
    from mkdocs.structure.files import File
    from plotly.offline import get_plotlyjs

    files.append(File.generated(config, "assets/plotly.min.js", content=get_plotlyjs()))
    rows = []
    for script in sorted((ROOT / "examples").glob("*.py")):
        name = f"gallery/{script.stem}.md"
        kept = KEPT / f"{script.stem}.md"
        if "THALWEG_DATA" in script.read_text(encoding="utf-8"):
            if not kept.is_file():
                continue
            page = kept.read_text(encoding="utf-8")
            title, lead = page.splitlines()[0].lstrip("# "), _lead(page.split("\n", 2)[2])
        else:
            title, lead, page = _page(script, _interactive)
        files.append(File.generated(config, name, content=page))
        rows.append(f"- [{title}]({script.stem}.md): {lead}")
    for page in sorted((ROOT / "docs" / "gallery").glob("*.md")):
        first = page.read_text(encoding="utf-8").splitlines()
        rows.append(
            f"- [{first[0].lstrip('# ')}]({page.name}): {first[2] if len(first) > 2 else ''}"
        )
    index = "\n".join(
        [
            "# Gallery",
            "",
            "Pages with sliders were run when this site was built; the others were run with data "
            "that the repository does not hold, and say how to get them.",
            "",
            *rows,
        ]
    )
    files.append(File.generated(config, "gallery/index.md", content=index))
    for book in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        name = f"notebooks/{book.stem}.md"
        files.append(File.generated(config, name, content=_notebook(book)))
    return files


def _notebook(book: Path) -> str:
    """A notebook as a page: text, code, and what it printed and drew."""
    parts = []
    for cell in json.loads(book.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts += [text, ""]
            continue
        parts += ["```python", text, "```", ""]
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                picture = "".join(data["image/png"]).replace("\n", "")
                parts += [f'<img alt="output" src="data:image/png;base64,{picture}">', ""]
            elif "text/html" in data:
                parts += ["".join(data["text/html"]).replace("\n", ""), ""]
            elif "".join(data.get("text/plain", "")).strip():
                parts += ["```text", "".join(data["text/plain"]).rstrip(), "```", ""]
    title, rest = parts[0].split("\n", 1) if "\n" in parts[0] else (parts[0], "")
    link = f"[This page as a notebook]({book.name})"
    return "\n".join([title, "", link, "", rest, *parts[1:]])


def _page(script: Path, draw: Callable[[Any], str]) -> tuple[str, str, str]:
    source = script.read_text(encoding="utf-8")
    tree = ast.parse(source)
    title, _, rest = (ast.get_docstring(tree) or script.stem).partition("\n")
    lead = _lead(rest)
    body = source[source.index('"""', 3) + 3 :].lstrip("\n")
    shown: list[Any] = []
    scope: dict[str, Any] = {"__name__": "__main__", "show": shown.append, "__file__": str(script)}
    parts = [f"# {title}", "", PLOTLY, "", rest.strip(), ""]
    for number, passage in enumerate(re.split(r"(?m)^# %% ?", body)):
        text, code = _split(passage) if number else ("", passage)
        shown.clear()
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(script), "exec"), scope)
        if text:
            parts += [text, ""]
        if code.strip():
            shown_code = re.sub(r"  # noqa.*", "", code.strip())
            parts += ["```python", shown_code, "```", ""]
        if printed.getvalue().strip():
            parts += ["```text", printed.getvalue().rstrip(), "```", ""]
        for figure in shown:
            parts += [draw(figure), ""]
    return title, lead, "\n".join(parts)


def _lead(text: str) -> str:
    """The first sentence."""
    plain = re.sub(r"<script.*?</script>", "", text, flags=re.S).strip()
    return re.split(r"(?<=[.:]) ", plain.split("\n\n")[0].replace("\n", " "))[0]


def _interactive(figure: Any) -> str:
    html = figure.to_html(include_plotlyjs=False, full_html=False)
    return f'<div class="plot">{html}</div>'


def keep(script: Path) -> None:
    """Run a script with its data, and keep its page with still pictures."""
    count = 0

    def still(figure: Any) -> str:
        nonlocal count
        count += 1
        name = f"{script.stem}-{count}.png"
        _photograph(figure, KEPT / name)
        return f"![{script.stem.replace('_', ' ')}, picture {count}](kept/{name})"

    KEPT.mkdir(exist_ok=True)
    page = _page(script, still)[2].replace(PLOTLY, "")
    (KEPT / f"{script.stem}.md").write_text(
        page + WHERE.format(source=SOURCES[script.stem], name=script.stem), encoding="utf-8"
    )


def _photograph(figure: Any, target: Path) -> None:
    """The figure as a picture, taken by a browser."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    height = int(figure.layout.height or 500)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "figure.html"
        figure.write_html(page, include_plotlyjs=True, config={"displayModeBar": False})
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        flags += [f"--window-size=900,{height + 20}"]
        flags += [f"--screenshot={target}", "--virtual-time-budget=8000", page.as_uri()]
        subprocess.run([str(browser), *flags], check=True, capture_output=True)


def _split(passage: str) -> tuple[str, str]:
    """The comment lines at the head of a passage are text, the rest is code."""
    lines = passage.split("\n")
    text = [lines[0]]
    k = 1
    while k < len(lines) and lines[k].startswith("# "):
        text.append(lines[k][2:])
        k += 1
    return " ".join(text).strip(), "\n".join(lines[k:])


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        keep(Path(argument).resolve())
