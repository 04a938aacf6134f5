"""The examples that `thalweg demo` has, by name."""

from __future__ import annotations

import json

from thalweg.cli.output import say

DEMOS = {
    "valleys": "five hundred places on a plane, several valleys (the default)",
    "cells": "cells that mature from one stem state into three fates, along a branching tree",
    "molecule": "a molecule with three basins over two dihedral angles, a torus",
}


def print_demos(as_json: bool) -> None:
    """Print the names of the demos and what each shows."""
    if as_json:
        print(json.dumps(DEMOS, indent=2))
        return
    for name, what in DEMOS.items():
        say(f"{name:10s} {what}")
