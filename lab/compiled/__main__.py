"""Predict the compiled workloads that were measured, and write down what came out.

    python -m lab.compiled [--traces FOLDER] [NAME ...]        (all that were measured, unless some are named)

Each runs in a process of its own, once compiled and once as eager code (its time alone). lab/compiled/table.py makes
the tables of docs/lab/compiled-code.md, lab/fitting/fit_compiled_host.py fits the host's figures to the traces.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from lab.compiled.records import PREDICTED, Slowdowns, measured, predicted, timed_in_turns


def predict(name: str, *, host: float, eager: bool = False, trace: Path | None = None) -> dict[str, Any] | None:
    command = [sys.executable, "-m", "lab.compiled.predict", name, "--host", str(host)]
    if trace is not None:
        command += ["--trace", str(trace)]
    environment = {**os.environ, "TORCHDYNAMO_DISABLE": "1"} if eager else None
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return None if done.returncode else json.loads(done.stdout.splitlines()[-1])


def summary(compiled: dict[str, Any], eager: dict[str, Any] | None, in_turns: bool) -> dict[str, Any]:
    """What is kept of a prediction. `there`: compiled and eager seconds on the host on which both took turns."""
    last = compiled["steps"][-1]
    found = {
        "name": compiled["name"], "peak_reserved": last["peak_reserved"], "peak_allocated": last["peak_allocated"],
        "step_seconds": compiled["step_seconds"], "seconds": compiled["seconds"],
        "eager_step_seconds": None if eager is None else eager["step_seconds"],
    }  # fmt: skip
    if eager is not None and in_turns:
        found["there"] = [compiled["step_seconds_there"], eager["step_seconds_there"]]
    return found


def main(names: list[str], traces: Path | None) -> None:
    results, records, slowdowns = predicted(), measured(), Slowdowns()
    for name in names or [name for name, record in records.items() if record["steps"]]:
        host = slowdowns.of(records[name])
        compiled = predict(name, host=host, trace=None if traces is None else traces / f"{name}.trace")
        if compiled is None:
            print(f"{name}: failed")
            continue
        eager = predict(name, host=host, eager=True) if "eager" in records[name].get("times", {}) else None
        results[name] = summary(compiled, eager, timed_in_turns(records[name]))
        off = results[name]["peak_reserved"] / records[name]["steps"][-1]["peak_reserved"] - 1
        print(f"{name:36} {off:+8.2%}", flush=True)
        PREDICTED.write_text("".join(f"{json.dumps(results[name])}\n" for name in sorted(results)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--traces", type=Path, metavar="FOLDER", help="keep the traces of compiled workloads here")
    arguments = parser.parse_args()
    main(arguments.names, arguments.traces)
