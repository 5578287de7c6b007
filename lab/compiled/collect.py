"""Put what measure_all wrote into the records.

    python -m lab.compiled.collect MEMORY_FOLDER [TIMES_FOLDER]

A workload that was measured before keeps its record of memory; whether the new one differs is said. One that ended in
an error is recorded with the error.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from lab.compiled.records import MEASURED, read_lines


def of_memory(record: dict[str, Any]) -> dict[str, Any]:
    kept = {"name": record["name"], "steps": record["steps"], "compile_and_run_seconds": record["seconds"]}
    if record["error"]:
        kept["error"] = record["error"].partition("Stack trace")[0]
    return kept | {"versions": record["versions"]}


def of_times(record: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Seconds of a step: in a row without waiting in between (the fastest of several runs), of one by itself (the
    median), and of the last by itself. What was measured before is kept where it is faster: it was disturbed less.
    Where compiled and eager code took turns, the seconds of each turn are kept too."""
    now: dict[str, Any] = {
        kind: {
            "in_a_row": round(min(record[kind]["in_a_row"]), 6),
            "alone": round(statistics.median(record[kind]["each"]), 6),
            "last": round(record[kind]["each"][-1], 6),
            "host": round(record[kind]["host"][-1], 6),
        }
        for kind in ("compiled", "eager")
        if kind in record
    }
    times = {
        kind: min(now[kind], before.get(kind, now[kind]), key=lambda t: min(t["in_a_row"], t["alone"])) for kind in now
    }
    if len(now) == 2 and len(record["compiled"]["in_a_row"]) > 2:
        pairs = zip(record["compiled"]["in_a_row"], record["eager"]["in_a_row"], strict=True)
        times["turns"] = [[round(seconds, 6) for seconds in pair] for pair in pairs]
    return times


def main(folders: list[Path]) -> None:
    lines = read_lines()
    by_name = {record["name"]: record for record in lines if "name" in record}
    for path in sorted(path for folder in folders for path in folder.glob("*.json")):
        record = json.loads(path.read_text())
        if path.name.endswith(".times.json"):
            if record["name"] not in by_name:
                print(f"{record['name']}: timed, but its memory was not recorded")
                continue
            known = by_name[record["name"]]
            known["times"] = of_times(record, known.get("times", {}))
        elif "steps" in record:
            old = by_name.setdefault(record["name"], of_memory(record))
            if old["steps"] != record["steps"]:
                print(
                    f"{record['name']}: measured before, and not the same: {old['steps'][-1:]}, {record['steps'][-1:]}"
                )
    head = [record for record in lines if "name" not in record]
    MEASURED.write_text("".join(f"{json.dumps(line)}\n" for line in [*head, *by_name.values()]))


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]])
