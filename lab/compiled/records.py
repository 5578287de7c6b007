"""What was measured and what was predicted, one JSON object a line."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

MEASURED = Path(__file__).parent / "measured" / "h200-torch2.11.0.jsonl"
PREDICTED = Path(__file__).parent / "predicted" / "h200-torch2.11.0.jsonl"
VARYING = ("dynamic", "evaluated")
"""Workloads whose steps differ have this in their names: the last step is compared, not the mean."""


def read_lines(path: Path = MEASURED) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def measured() -> dict[str, dict[str, Any]]:
    """The workloads by name."""
    return {record["name"]: record for record in read_lines() if "name" in record}


def predicted() -> dict[str, dict[str, Any]]:
    return {record["name"]: record for record in read_lines(PREDICTED)}


def measured_seconds(record: dict[str, Any], kind: str) -> float | None:
    """Seconds of a step, compiled or eager. Steps in a row are at least as fast as steps one by one, unless something
    disturbed them: the faster of both counts."""
    times = record.get("times", {}).get(kind)
    if times is None:
        return None
    varies = any(word in record["name"] for word in VARYING)
    return float(times["last"] if varies else min(times["in_a_row"], times["alone"]))


def compiled_to_eager(record: dict[str, Any]) -> float | None:
    """Time of compiled code as a share of eager code's: the median of turns that followed each other where there were
    such, since the host's speed changes from second to second; else of two measurements one after the other."""
    turns = record.get("times", {}).get("turns")
    if turns:
        return statistics.median(compiled / eager for compiled, eager in turns)
    compiled, eager = (measured_seconds(record, kind) for kind in ("compiled", "eager"))
    return None if compiled is None or eager is None else compiled / eager


HOST_BOUND = 0.93
"""An eager step whose host was busy for this share of it waited for the host, not for the card."""


class Slowdowns:
    """How many times as long as an undisturbed one the host took while workloads were timed.

    Eager steps that wait for the host tell: the median of their measured over their predicted times. There are two such
    figures, since the workloads that were timed in turns were timed on another day, with more beside them.
    """

    def __init__(self) -> None:
        predictions, ratios = predicted(), dict[bool, list[float]]()
        for name, record in measured().items():
            eager = record.get("times", {}).get("eager")
            ours = predictions.get(name, {}).get("eager_step_seconds")
            if eager is not None and ours is not None and eager["host"] > HOST_BOUND * eager["last"]:
                seconds = self.seconds(record, "eager")
                assert seconds is not None
                ratios.setdefault(timed_in_turns(record), []).append(seconds / ours)
        self._medians = {in_turns: statistics.median(found) for in_turns, found in ratios.items()}

    def of(self, record: dict[str, Any]) -> float:
        return self._medians.get(timed_in_turns(record), 1.0)

    @staticmethod
    def seconds(record: dict[str, Any], kind: str) -> float | None:
        """Seconds of a step, compiled or eager, on the host that `of` is about."""
        if timed_in_turns(record):
            column = ("compiled", "eager").index(kind)
            return float(statistics.median(turn[column] for turn in record["times"]["turns"]))
        return measured_seconds(record, kind)


def timed_in_turns(record: dict[str, Any]) -> bool:
    """Whether compiled and eager code took turns. The host of that day was much slower than an undisturbed one."""
    return "turns" in record.get("times", {})
