"""`python -m lab.attacks.fuzz`: see the package."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

from lab import ROOT
from lab.attacks.fuzz import __doc__ as what
from lab.attacks.fuzz.run import make_case, run, run_case


def main() -> int:
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the number of the first case")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2, metavar="N")
    parser.add_argument("--only", type=int, metavar="N", help="one case, with what it is and what comes of it")
    parser.add_argument("--failures", type=Path, default=ROOT / "build" / "fuzz", metavar="FOLDER")
    args = parser.parse_args()
    if args.only is not None:
        return _only(args.seed, args.only)
    failures = run(args.seed, args.first, args.count, args.workers, args.failures)
    for text, number in Counter(
        f"{failure.target}: {failure.what.strip().splitlines()[-1][:150]}" for failure in failures
    ).most_common():
        print(f"{number:6,} × {text}")
    return 1 if failures else 0


def _only(seed: int, number: int) -> int:
    case = make_case(seed, number)
    print(f"{case.target}: {case.words!r}")
    for name, data in list(case.files.items())[:1]:
        print(f"{name}: {data[:2000]!r}")
    failure = run_case(case)
    print(failure or "no failure")
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
