"""`thalweg compare`: are the landscapes behind two data sets the same?"""

from __future__ import annotations

import json
from typing import Any

from thalweg._files import atomic_write
from thalweg.cli.options import MapOutput
from thalweg.cli.output import finish, say, write_table
from thalweg.cli.problem import Problem
from thalweg.cli.progress import progress_bars
from thalweg.dynamics import compare
from thalweg.dynamics.joint import ScoreTest
from thalweg.errors import InputError
from thalweg.learn import FreeEnergyRegressor
from thalweg.report import caution
from thalweg.report.dynamics import comparison_page


def run_compare(
    first: Problem, second: Problem, names: tuple[str, str], seed: int, output: MapOutput
) -> None:
    """Fit both, test, and write a table (.csv) or a page (.html)."""
    for each in (first, second):
        if each.own_states:
            raise InputError(
                f"the states of {each.name} are groups of its own cells, which no other file has; "
                "give --state-key, a column of clusters that both files have."
            )
    out = output.out
    with progress_bars() as progress:
        models = [
            FreeEnergyRegressor(seed=seed, progress=progress).fit(first.kernel, each.snapshots)
            for each in (first, second)
        ]
    answer = compare(*models)
    cautions = [
        f"{name}: {line}" for name, model in zip(names, models, strict=True)
        for line in caution(model)
    ]  # fmt: skip
    table = answer.to_frame()
    if out is not None and not output.as_page:
        write_table(table, out)
    elif out is not None:
        with atomic_write(out) as file:
            title = f"{names[0]} and {names[1]}"
            file.write(comparison_page(answer, names, title, cautions))
    different = table[table["q_value"] <= 0.05]
    if output.json:
        facts: dict[str, Any] = {
            "status": answer.status.name,
            "same": _test(answer.same),
            "same_landscape": _test(answer.same_landscape),
            "same_beta": _test(answer.same_beta),
            "beta": list(answer.beta),
            "cautions": cautions,
            "different_states": [str(x) for x in different["state"]],
        }
        if out is not None:
            facts["files"] = [str(out)]
        print(json.dumps(facts))
    else:
        for line in cautions:
            say(f"! {line}", stderr=True)
        say(str(answer))
        if len(different):
            say(f"the potential behind {names[0]} minus that behind {names[1]}, where they differ:")
        for row in different.sort_values("q_value").head(20).itertuples():
            say(f"  {row.state}: {row.difference:+.3g} ± {row.stderr:.2g}")
        if out is not None:
            say(f"written to {out}")
    finish(answer.status)


def _test(test: ScoreTest | None) -> dict[str, float] | None:
    return None if test is None else {"p_value": test.p_value, "statistic": test.statistic}
