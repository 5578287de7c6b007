"""The random draw of published rows, recorded before any of them is predicted.

    python -m lab.published.draw MEGATRON_REPOSITORY

writes `drawn_memory.csv`, `drawn_speed.csv` and, for every row that is left out, `excluded.csv` with the reason.
"""

from __future__ import annotations

import csv
import random
import sys
from pathlib import Path
from typing import Any

from lab.published.pool import MEGATRON, Pool, Row, read_rows

SEED = 19_2026
MEMORY_ROWS, SPEED_ROWS = 120, 75
FOLDER = Path(__file__).parent
COLUMNS = (
    *("source", "model", "gpu", "n_gpus", "dp", "fsdp", "tp", "pp", "cp", "ep", "zero"),
    *("global_batch", "micro_batch", "seq", "precision", "recompute", "optimizer", "compile"),
)


def main() -> None:
    pool = Pool(read_rows(), Path(sys.argv[1]))
    left_out = []
    for name, exclusion, figures, count in (
        ("memory", pool.memory_exclusion, ("peak_memory_gib", "memory_kind"), MEMORY_ROWS),
        ("speed", pool.speed_exclusion, ("tokens_per_s_per_gpu", "step_s"), SPEED_ROWS),
    ):
        reasons = {row.number: exclusion(row) for row in pool.rows}
        eligible = [row for row in pool.rows if not reasons[row.number]]
        drawn = sorted(random.Random(SEED).sample(eligible, count), key=lambda row: row.number)
        _write(f"drawn_{name}.csv", [_entry(pool, row, figures) for row in drawn])
        for why in sorted(set(reasons.values()) - {""}):
            numbers = [number for number, reason in reasons.items() if reason == why]
            left_out.append({"of": name, "rows": len(numbers), "why": why, "numbers": ranges(numbers)})
        print(f"{name}: {len(drawn)} drawn of {len(eligible)} that state enough, of {len(pool.rows)}")
    _write("excluded.csv", left_out)


def ranges(numbers: list[int]) -> str:
    """Rising numbers with runs drawn together: `3 7-9`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return " ".join("-".join(map(str, run)) for run in runs)


def _entry(pool: Pool, row: Row, figures: tuple[str, ...]) -> dict[str, Any]:
    recorded = pool.recorded.get(row.path) if row.source == MEGATRON else None
    return {
        "row": row.number,
        "by": row.source,
        **{name: row[name] for name in (*COLUMNS, *figures)},
        "recorded_commit": recorded.commit if recorded else "",
        "container": recorded.container if recorded else "",
        "notes": row["notes"],
    }


def _write(name: str, entries: list[dict[str, Any]]) -> None:
    with (FOLDER / name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(entries[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(entries)


if __name__ == "__main__":
    main()
