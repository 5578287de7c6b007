"""Compare predictions of compiled training with what was measured.

    python -m lab.compiled [NAME ...]        (all that were measured, unless some are named)

Each workload runs in a process of its own; a table says what the last step took and by how much the prediction is off.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import Any

from lab.compiled.records import measured


def predicted(name: str) -> dict[str, Any] | None:
    command = [sys.executable, "-m", "lab.compiled.predict", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if done.returncode else json.loads(done.stdout.splitlines()[-1])


def main(names: list[str]) -> None:
    records = measured()
    errors = []
    print(f"{'workload':28} {'reserved, MiB':>14} {'predicted':>10} {'off by':>9} {'peak allocated':>15}")
    for name in names or list(records):
        truth = records[name]["steps"][-1]
        result = predicted(name)
        if result is None:
            print(f"{name:28} {truth['peak_reserved'] / 2**20:14.0f} {'failed':>10}")
            continue
        last = result["steps"][-1]
        off = {key: last[key] / truth[key] - 1 for key in ("peak_reserved", "peak_allocated")}
        errors.append(abs(off["peak_reserved"]))
        print(
            f"{name:28} {truth['peak_reserved'] / 2**20:14.0f} {last['peak_reserved'] / 2**20:10.0f} "
            f"{off['peak_reserved']:+9.2%} {off['peak_allocated']:+15.2%}",
            flush=True,
        )
    if errors:
        print(f"reserved: median {statistics.median(errors):.2%}, largest {max(errors):.2%} of {len(errors)}")


if __name__ == "__main__":
    main(sys.argv[1:])
