"""How long a prediction takes beside compiling on the machine with the card.

    python -m lab.compiled.speed [FOLDER]     FOLDER: new measurements, which are put into the record

Measured on one machine with the same number of processes at a time: workloads that compile there, by torch's own clocks
(NAME.json of measure.py), and their predictions from the first line to the last (NAME.predicted). What kernels take to
be compiled is left out of the former: the time to load generated code, which waits for them. A prediction also imports
the compilers, builds the model and runs the steps; so does the workload, and the second ratio is to all of that.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

RECORD = Path(__file__).parent / "measured" / "compile-seconds-h200.json"
CPU_SECONDS = Path(__file__).parent / "measured" / "prediction-cpu-seconds.json"
"""Of predictions with the code that was measured and with later code, on a machine without a GPU (cpu_seconds.py)."""
COMPILING = ("_compile.compile_inner", "backward._backward_impl")
KERNELS = "PyCodeCache.load_by_key_path"


def collect(folder: Path) -> None:
    found = {}
    for path in sorted(folder.glob("*.predicted")):
        name = path.stem
        record = folder / f"{name}.json"
        measured = json.loads(record.read_text()) if record.exists() else {}
        clocks, lines = measured.get("compile_times"), path.read_text().splitlines()
        if clocks and lines:
            found[name] = {
                "compiling": round(sum(clocks.get(clock, 0.0) for clock in COMPILING), 1),
                "kernels": round(clocks.get(KERNELS, 0.0), 1),
                "whole": measured["seconds"],
                "predicted": json.loads(lines[-1])["seconds"],
            }
    RECORD.write_text(json.dumps(found, indent=1) + "\n")


def estimate() -> None:
    """What the ratios would be with later code: predictions take as much less time as they take less of a processor."""
    record, seconds = json.loads(RECORD.read_text()), json.loads(CPU_SECONDS.read_text())
    shares = {name: seconds[name]["now"] / seconds[name]["before"] for name in record if name in seconds}
    ratios = [
        record[name]["predicted"] * share / (record[name]["compiling"] - record[name]["kernels"])
        for name, share in shares.items()
    ]
    print(
        f"estimated for later code, not measured: predictions take {statistics.median(shares.values()):.2f} x the time "
        f"of a processor; of compiling: median {statistics.median(ratios):.2f} x, largest {max(ratios):.2f} x"
    )


def main() -> None:
    if len(sys.argv) > 1:
        collect(Path(sys.argv[1]))
    ratios, whole = [], []
    for name, row in json.loads(RECORD.read_text()).items():
        without_kernels = row["compiling"] - row["kernels"]
        ratios.append(row["predicted"] / without_kernels)
        whole.append(row["predicted"] / (row["whole"] - row["kernels"]))
        print(
            f"{name:28} compiling {without_kernels:5.1f} s (kernels {row['kernels']:4.1f} s more), "
            f"predicted in {row['predicted']:5.1f} s: {ratios[-1]:.2f} x, of the whole run {whole[-1]:.2f} x"
        )
    for what, found in (("compiling", ratios), ("the whole run", whole)):
        print(f"of {what}: median {statistics.median(found):.2f} x, largest {max(found):.2f} x, of {len(found)}")
    if CPU_SECONDS.exists():
        estimate()


if __name__ == "__main__":
    main()
