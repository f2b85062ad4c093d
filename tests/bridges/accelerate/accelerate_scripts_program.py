"""Run Accelerate's own test scripts on a plugin's device, one after the other, and print one line of JSON.

``accelerate_scripts_program.py ACCELERATOR SCRIPT ...``

Statements that ``script_assumptions.py`` lists are expected to fail, as it says how.
"""

import ast
import contextlib
import importlib.util
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from script_assumptions import SCRIPTS, Assumption

NUM_PROCESSES = int(os.environ.get("WORLD_SIZE", "1"))


class StaleAssumptionError(Exception):
    """What was expected to fail works: the list is to be corrected."""


class Expected:
    """The context that a listed statement of one script runs in."""

    def __init__(self, assumptions: list[Assumption]) -> None:
        self.assumptions = assumptions
        self.reached: set[int] = set()

    @contextlib.contextmanager
    def __call__(self, index: int, is_made: bool = True, is_wrong: Callable[[], bool] = lambda: True) -> Iterator[None]:
        assumption = self.assumptions[index]
        if not is_made:
            yield
            return
        self.reached.add(index)
        try:
            yield
        except Exception as error:
            if not assumption.raises or not re.search(assumption.raises, f"{type(error).__name__}: {error}"):
                raise
        else:
            if assumption.raises or not is_wrong():
                raise StaleAssumptionError(f"{assumption.statement or 'the script'} works: {assumption.reason}")


class _Wrapping(ast.NodeTransformer):
    """Puts each listed statement into a ``with __expected__(...):``."""

    def __init__(self, assumptions: list[Assumption]) -> None:
        self._assumptions = assumptions
        self._places = {ast.unparse(ast.parse(one.statement)): index for index, one in enumerate(assumptions) if one.statement}
        self.missing = set(self._places)

    def visit(self, node: ast.AST) -> ast.AST | list[ast.stmt]:
        if isinstance(node, ast.stmt) and (text := ast.unparse(node)) in self._places:
            self.missing.discard(text)
            index = self._places[text]
            assumption = self._assumptions[index]
            lines = f"with __expected__({index}, {assumption.when}, lambda: {assumption.gives}):\n    pass\n{assumption.instead}"
            block, follows = ast.parse(lines).body
            assert isinstance(block, ast.With)
            block.body = [node]
            for part in (block, follows):
                for inside in ast.walk(part):
                    if not hasattr(inside, "lineno") or part is not node:
                        ast.copy_location(inside, node)
            return [block, follows]
        return self.generic_visit(node)


def run(name: str) -> list[int]:
    """Run a script as ``__main__``. Returns which assumptions it came to, by their place in the list.

    Raises:
        StaleAssumptionError: If one of them holds, or is no part of the script any more.
        Exception: What the script raises.
    """
    spec = importlib.util.find_spec(f"accelerate.test_utils.scripts.{name}")
    assert spec is not None
    assert spec.origin is not None
    listed = list(SCRIPTS[name].assumptions)
    wrapping = _Wrapping([one if NUM_PROCESSES in one.processes else Assumption("") for one in listed])
    tree = ast.fix_missing_locations(wrapping.visit(ast.parse(Path(spec.origin).read_text())))
    if wrapping.missing:
        raise StaleAssumptionError(f"{name} has no such statement: {sorted(wrapping.missing)}")
    expected = Expected(listed)
    code = compile(tree, spec.origin, "exec")
    whole = [index for index, one in enumerate(listed) if one.statement is None]
    with contextlib.ExitStack() as stack:
        for index in whole:
            stack.enter_context(expected(index))
        exec(code, {"__name__": "__main__", "__file__": spec.origin, "__expected__": expected})
    return sorted(expected.reached)


def draw_the_same_data_every_time() -> None:
    """Give a seed to what draws without one.

    ``RegressionDataset`` does, and test_sync compares a model that steps after each batch with one that steps after two: for one in
    fifty of such datasets the two differ by more than it allows, on the CPU without a plugin too.
    """
    seeded = np.random.default_rng
    np.random.default_rng = lambda seed=None: seeded(0 if seed is None else seed)


def main() -> None:
    name, *scripts = sys.argv[1:]
    draw_the_same_data_every_time()
    from accelerate.state import AcceleratorState, GradientState

    from accelkit.bridges.accelerate import install

    found = {}
    for script in scripts:
        install(name)
        began = time.perf_counter()
        with contextlib.redirect_stdout(sys.stderr):
            found[script] = run(script)
        print(f"{script}: {time.perf_counter() - began:.1f} s", file=sys.stderr)
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
