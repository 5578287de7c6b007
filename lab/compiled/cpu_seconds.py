"""How many seconds of a processor a prediction takes, beside those that it takes with earlier code.

    python -m lab.compiled.cpu_seconds BEFORE [--times N] [NAME ...]     BEFORE: a checkout of the earlier code

Needs no GPU. The workloads are those of the speed record, unless some are named. Both kinds of code take turns, each
prediction in a process of its own, and the least of their seconds are written down, with what `python -m
lab.compiled.speed` then estimates. Importing torch is not counted, nor in the speed record.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from lab.compiled.speed import CPU_SECONDS, RECORD

ROOT = Path(__file__).parents[2]
ONE = """
import json, sys, time
from lab.compiled.predict import predict
begin = time.process_time()
last = predict(sys.argv[1])["steps"][-1]
print(json.dumps([time.process_time() - begin, last["peak_reserved"], last["peak_allocated"]]))
"""


def one(checkout: Path, name: str) -> tuple[float, list[int]]:
    """Seconds and peaks of a prediction."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout), str(checkout / "src")])}
    command = [sys.executable, "-c", ONE, name]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=checkout, env=environment)
    seconds, *peaks = json.loads(done.stdout.splitlines()[-1])
    return seconds, peaks


def main(before: Path, names: list[str], times: int) -> None:
    found = json.loads(CPU_SECONDS.read_text()) if CPU_SECONDS.exists() else {}
    for name in names or json.loads(RECORD.read_text()):
        turns = [(one(before, name), one(ROOT, name)) for _ in range(times)]
        if len({str(peaks) for turn in turns for _, peaks in turn}) > 1:
            print(f"{name}: other peaks than before")
        least = [round(min(turn[code][0] for turn in turns), 2) for code in (0, 1)]
        found[name] = dict(zip(("before", "now"), least, strict=True))
        print(f"{name:28} before {least[0]:5.1f} s, now {least[1]:5.1f} s: {least[1] / least[0]:.2f} x", flush=True)
        CPU_SECONDS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--times", type=int, default=2)
    arguments = parser.parse_args()
    main(arguments.before.resolve(), arguments.names, arguments.times)
