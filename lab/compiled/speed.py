"""How long a prediction takes beside compiling on the machine with the card.

    python -m lab.compiled.speed [FOLDER]     FOLDER: new measurements, which are put into the record

Measured on one machine with the same number of processes at a time: a workload that compiles and makes six steps, with
Triton's kernels compiled by an earlier run (NAME.warm.json) and without (NAME.cold.json), and its prediction
(NAME.predicted).
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

RECORD = Path(__file__).parent / "measured" / "compile-seconds-h200.json"


def collect(folder: Path) -> None:
    found = {}
    for path in sorted(folder.glob("*.warm.json")):
        name = path.name.removesuffix(".warm.json")
        prediction = folder / f"{name}.predicted"
        lines = prediction.read_text().splitlines() if prediction.exists() else []
        if not lines:
            continue
        cold = folder / f"{name}.cold.json"
        found[name] = {
            "with_kernels": json.loads(cold.read_text())["seconds"] if cold.exists() else None,
            "without_kernels": json.loads(path.read_text())["seconds"],
            "predicted": json.loads(lines[-1])["seconds"],
        }
    RECORD.write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    if len(sys.argv) > 1:
        collect(Path(sys.argv[1]))
    ratios = []
    for name, row in json.loads(RECORD.read_text()).items():
        ratios.append(row["predicted"] / row["without_kernels"])
        print(
            f"{name:32} compiled and run {row['without_kernels']:6.1f} s (with Triton's own compilation "
            f"{row['with_kernels'] or 0:6.1f} s), predicted {row['predicted']:6.1f} s: {ratios[-1]:.2f} x"
        )
    print(f"median {statistics.median(ratios):.2f} x, largest {max(ratios):.2f} x, of {len(ratios)}")


if __name__ == "__main__":
    main()
