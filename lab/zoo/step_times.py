"""Step times of the zoo: what was timed on a quiet GPU (`quiet.py`), kept here, and what is predicted."""

from __future__ import annotations

import gzip
import json
import statistics
from pathlib import Path
from typing import Any

from lab.zoo.records import PREDICTED, Records

TIMED = Path(__file__).with_name("timed.json")
UNDISTURBED = 1.1
"""A block counts where a loop in Python took at most this times its fastest, before and after it."""
FEWEST = 3
NEAR = 0.2


def keep(folders: list[Path], path: Path = TIMED) -> None:
    """Sum up the records in these folders; a later one takes the place of an earlier one."""
    found = {file.name.partition(".")[0]: file for folder in folders for file in sorted(folder.glob("*.gz"))}
    raw = {name: json.loads(gzip.decompress(file.read_bytes())) for name, file in found.items()}
    fastest = min((record["loop_seconds"] for record in raw.values() if record["blocks"]), default=1.0)
    records = Records(path)
    for name, record in raw.items():
        if len(record["blocks"]) >= FEWEST:
            records.keep(name, summary(record, fastest))


def summary(record: dict[str, Any], fastest: float) -> dict[str, Any]:
    """Seconds of a step without its loaders: the median of the blocks that nothing disturbed; where there are too few,
    a tenth of all blocks is faster. And where they go, as the profile of one step has it."""
    count = record["steps_in_block"]
    blocks = [
        (max(block["loops"]) / fastest, block["seconds"] - block["loader_seconds"] / count)
        for block in record["blocks"]
    ]
    every = sorted(seconds for _, seconds in blocks)
    quiet = sorted(seconds for slow, seconds in blocks if slow <= UNDISTURBED)
    chosen = quiet[len(quiet) // 2] if len(quiet) >= FEWEST else every[len(every) // 10]
    profile = record["profile"] or {"kernels": {}}
    called = profile.get("calls", {}).get("functions", {})
    return {
        "step_seconds": chosen,
        "median_seconds": every[len(every) // 2],
        "quiet_blocks": len(quiet),
        "blocks": len(every),
        "loader_seconds_per_step": record["loader_seconds_per_step"],
        "card_seconds": sum(spent for _, spent in profile["kernels"].values()) / 1e6,
        "kernels": sum(count for count, _ in profile["kernels"].values()),
        "python_calls": sum(called.values()) - called.get("torch", 0),
        "slowdown": round(statistics.geometric_mean(slow for slow, _ in blocks), 2),
        **{key: record[key] for key in ("gpu", "torch", "python")},
    }


def errors(timed: dict[str, dict[str, Any]], predicted: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Predicted over measured, less one, of each script that has both."""
    return {
        name: predicted[name]["step_seconds"] / record["step_seconds"] - 1
        for name, record in timed.items()
        if predicted.get(name, {}).get("step_seconds")
    }


def told(timed: Path = TIMED, predicted: Path = PREDICTED) -> str:
    """A line of all, and one of each script, the farthest off first."""
    measured, guessed = Records(timed).by_script, Records(predicted).by_script
    found = errors(measured, guessed)
    sizes = sorted(map(abs, found.values()))
    if not sizes:
        return "no step has been timed"
    near = sum(size <= NEAR for size in sizes)
    middle = statistics.median(sizes)
    lines = [f"{len(sizes)} scripts, {middle:.1%} off at the median, {near / len(sizes):.0%} within 20 %"]
    for name, error in sorted(found.items(), key=lambda item: -abs(item[1])):
        record = measured[name]
        seconds = (guessed[name]["step_seconds"], record["step_seconds"], record["card_seconds"])
        figures = "  ".join(f"{1e3 * value:9.2f}" for value in seconds)
        lines.append(f"{error:+8.1%}  {name:32} predicted, measured, of it on the card (ms): {figures}")
    return "\n".join(lines)
