"""Runs every script of `examples/` when the site is built, and makes a page of each.

A script starts with a docstring: its first line is the title, the rest the introduction. Comments
that begin with `# %%` start a new passage of text. What it prints appears below its code, and so
does every figure that it passes to `show`.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent


def on_files(files: Files, config: Any) -> Files:
    from plotly.offline import get_plotlyjs

    files.append(File.generated(config, "assets/plotly.min.js", content=get_plotlyjs()))
    rows = []
    for script in sorted((ROOT / "examples").glob("*.py")):
        title, lead, page = _page(script)
        name = f"gallery/{script.stem}.md"
        files.append(File.generated(config, name, content=page))
        rows.append(f"- [{title}]({script.stem}.md): {lead}")
    for page in sorted((ROOT / "docs" / "gallery").glob("*.md")):
        first = page.read_text(encoding="utf-8").splitlines()
        rows.append(
            f"- [{first[0].lstrip('# ')}]({page.name}): {first[2] if len(first) > 2 else ''}"
        )
    index = "\n".join(
        ["# Gallery", "", "Every page here was run when this site was built.", "", *rows]
    )
    files.append(File.generated(config, "gallery/index.md", content=index))
    return files


def _page(script: Path) -> tuple[str, str, str]:
    source = script.read_text(encoding="utf-8")
    tree = ast.parse(source)
    title, _, rest = (ast.get_docstring(tree) or script.stem).partition("\n")
    lead = re.split(r"(?<=[.:]) ", rest.strip().replace("\n", " "))[0]
    body = source[source.index('"""', 3) + 3 :].lstrip("\n")
    shown: list[Any] = []
    scope: dict[str, Any] = {"__name__": "__main__", "show": shown.append, "__file__": str(script)}
    code = '<script src="../assets/plotly.min.js"></script>'
    parts = [f"# {title}", "", code, "", rest.strip(), ""]
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
            html = figure.to_html(include_plotlyjs=False, full_html=False)
            parts += [f'<div class="plot">{html}</div>', ""]
    return title, lead, "\n".join(parts)


def _split(passage: str) -> tuple[str, str]:
    """The comment lines at the head of a passage are text, the rest is code."""
    lines = passage.split("\n")
    text = [lines[0]]
    k = 1
    while k < len(lines) and lines[k].startswith("# "):
        text.append(lines[k][2:])
        k += 1
    return " ".join(text).strip(), "\n".join(lines[k:])
