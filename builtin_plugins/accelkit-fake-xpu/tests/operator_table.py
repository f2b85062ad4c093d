"""Write the table of operators into the README: ``python operator_table.py``. All of op_db in six dtypes, under a minute on two cores."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import agreement
import torch

README = Path(__file__).parents[1] / "README.md"
START, END = "<!-- operators: made by tests/operator_table.py -->", "<!-- end of operators -->"


def make(judgements: Mapping[str, agreement.Judgement]) -> str:
    """The table, as it stands between the marks in the README."""
    lines = [
        f"torch {torch.__version__.partition('+')[0]}, at most 8 samples of each operator.",
        "",
        "| dtype | operators | agree forward | agree backward | do not agree |",
        "|---|---|---|---|---|",
    ]
    for dtype, judgement in judgements.items():
        total = len(judgement.agreed) + len(judgement.failed)
        backward = str(len(judgement.differentiated)) if judgement.differentiated else "no gradients"
        lines.append(f"| {dtype} | {total} | {len(judgement.agreed)} | {backward} | {len(judgement.failed)} |")
    lines += ["", "| what does not agree | in | why |", "|---|---|---|"]
    for name, (dtypes, reason) in agreement.EXPECTED_FAILURES.items():
        lines.append(f"| `{name}` | {'all' if len(dtypes) == len(judgements) else ', '.join(dtypes)} | {reason} |")
    return "\n".join(lines)


def written() -> str:
    """What the README says now."""
    return re.search(f"{START}\n(.*?)\n{END}", README.read_text(), re.DOTALL)[1]  # type: ignore[index]


def main() -> None:
    judgements = {dtype: agreement.judge(dtype) for dtype in agreement.DTYPES}
    for dtype, judgement in judgements.items():
        for name, reason in judgement.failed.items():
            if dtype not in agreement.EXPECTED_FAILURES.get(name, ((), ""))[0]:
                sys.exit(f"{name} in {dtype} is not expected to fail: {reason}")
    text = README.read_text()
    README.write_text(text.replace(written(), make(judgements)))
    print(make(judgements))


if __name__ == "__main__":
    main()
