"""The long profile: so many cases, all failures at the end, and how the others ended.

``make fuzz CASES=5000 SEED=0`` runs it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.cases import Case, cases, outcome
from hypothesis import HealthCheck, Phase, given, seed, settings


def where(error: BaseException) -> str:
    """The innermost line of ours that an error came through."""
    frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
    own = [f for f in frames if os.sep + "skscalablegp" + os.sep in f.filename]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    given_arguments = parser.parse_args()
    ends: Counter[str] = Counter()
    failures: dict[tuple[str, str], tuple[int, Case]] = {}
    started = time.perf_counter()

    @seed(given_arguments.seed)
    @settings(
        max_examples=given_arguments.cases,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases())
    def every(case: Case) -> None:
        try:
            end = outcome(case)
            ends["predicts" if end == "predicts" else end.partition(":")[0]] += 1
        except Exception as error:
            key = (str(error)[:120], where(error))
            count, first = failures.get(key, (0, case))
            failures[key] = count + 1, first

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every()
    for (message, line), (count, case) in failures.items():
        print(f"{count} times: {message} [{line}]\n{case!r}\n")
    failed = sum(count for count, _ in failures.values())
    seconds = time.perf_counter() - started
    print(f"{sum(ends.values()) + failed} cases in {seconds:.0f} s: {dict(ends)}, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
