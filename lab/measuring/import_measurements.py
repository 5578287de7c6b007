"""Turn a recorder's output (`lab.measuring.measure_corpus --mode memory`) into a file that the repository keeps.

    python -m lab.measuring.import_measurements results/memory.jsonl

writes lab/data/measurements/<card>-torch<version>.jsonl: the environment on the first line, then one workload a line.
A file that exists is completed: workloads measured again are replaced, the others stay.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lab import DATA

FOLDER = DATA / "measurements"
_SECONDS_DIGITS = 6


def trim(record: dict[str, Any]) -> dict[str, Any]:
    """What predictions are compared with, and the times; nothing that can be worked out from the rest."""
    kept = {key: record[key] for key in ("name", "factory", "args", "tags", "seed")}
    kept |= {key: record[key] for key in _PEAKS}
    if record["num_alloc_retries"]:
        kept["num_alloc_retries"] = record["num_alloc_retries"]
    optimizer_steps = record.get("extra", {}).get("optimizer_steps")
    if optimizer_steps is not None and optimizer_steps < len(record["steps"]):
        kept["optimizer_steps"] = optimizer_steps
    kept["driver"] = {key: value for key, value in record["driver"].items() if value is not None}
    if "offload" in record["tags"]:
        kept["host"] = record["host"]
    kept["setup"] = {key: record["setup"][key] for key in _PEAKS}
    kept["setup_seconds"] = _seconds(record["setup_seconds"])
    kept["step_seconds"] = _seconds(record["step_seconds"])
    kept["warmup_steps"] = record["warmup_steps"]
    kept["steps"] = [_trim_step(step) for step in record["steps"]]
    return kept


_PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_requested_bytes")


def _trim_step(step: dict[str, Any]) -> dict[str, Any]:
    return {key: step[key] for key in _PEAKS} | {
        "phases": {
            phase: {key: point[key] for key in ("peak_allocated_bytes", "peak_reserved_bytes")}
            | {"seconds": _seconds(step["phase_seconds"][phase])}
            for phase, point in step["phase_peaks"].items()
        },
        "wall_seconds": _seconds(step["wall_seconds"]),
    }


def _seconds(value: float) -> float:
    return round(value, _SECONDS_DIGITS)


def environment_of(records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The one environment of a recording; the packages of all its workloads together."""
    common: dict[str, Any] = {}
    packages: dict[str, str] = {}
    for record in records:
        environment = dict(record["environment"])
        packages |= environment.pop("packages", {})
        if common and environment != common:
            raise SystemExit(f"{record['name']} was measured in another environment: {environment} beside {common}")
        common = environment
    return common | {"packages": dict(sorted(packages.items()))}


def file_name(environment: dict[str, Any]) -> str:
    card = re.sub(r"[^a-z0-9]+", "-", environment["gpu"].lower().replace("nvidia", "")).strip("-")
    return f"{card}-torch{environment['torch'].partition('+')[0]}.jsonl"


def load(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """(environment, workloads by name) of a kept file."""
    first, *rest = path.read_text().splitlines()
    return json.loads(first)["environment"], {record["name"]: record for record in map(json.loads, rest)}


def store(path: Path, environment: dict[str, Any], workloads: dict[str, dict[str, Any]]) -> None:
    lines = [{"environment": environment}, *(workloads[name] for name in sorted(workloads))]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, nargs="+", help="JSON lines written by lab.measuring.measure_corpus")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args(arguments)
    records = [json.loads(line) for path in options.recordings for line in path.read_text().splitlines()]
    failed = [r["name"] for r in records if "error" in r]
    records = [r for r in records if "error" not in r and r.get("mode") == "memory"]
    if not records:
        print("no memory measurement in these files", file=sys.stderr)
        return 2
    environment = environment_of(records)
    path = options.folder / file_name(environment)
    workloads: dict[str, dict[str, Any]] = {}
    if path.exists():
        before, workloads = load(path)
        environment["packages"] = before.pop("packages", {}) | environment["packages"]
        changed = {key for key in before if before[key] != environment[key]}
        if changed:
            print(f"{path.name} was measured with another {', '.join(sorted(changed))}", file=sys.stderr)
            return 2
    workloads |= {record["name"]: trim(record) for record in records}
    store(path, environment, workloads)
    print(f"{path}: {len(records)} new or replaced, {len(workloads)} in all, {path.stat().st_size / 1024:.0f} KiB")
    if failed:
        print(f"failed in the recording, left out: {', '.join(failed)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
