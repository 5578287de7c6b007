"""The fewest cards that hold a job, as lines and as a document."""

from __future__ import annotations

from typing import Any

from vramcast.base.units import format_gib
from vramcast.features.advise.fewest import Fewest, FewestCards
from vramcast.report.wording import seconds


def fewest_lines(found: FewestCards, where: str) -> list[str]:
    card = found.gpu.short_name
    if not found.ways:
        return [f"not even 1,024 {card} hold it under FSDP: a smaller batch, tensor or pipeline parallel may"]
    lines = []
    for way in found.ways:
        machines = f" ({way.nodes} machines)" if way.nodes > 1 else ""
        lines.append(f"{way.count:,} {card}{machines}, FSDP, {way.text}: {_needs(way)}{_pace(way)}")
        if way.next_smaller is not None and way.next_smaller_bytes is not None:
            how = "traced" if way.was_traced else "estimated"
            peak = format_gib(way.next_smaller_bytes)
            lines.append(f"  {way.next_smaller:,} would not hold it: {peak} allocated at the peak, {how}")
        settings = " ".join(f"--set {key}={value}" for key, value in way.changes.items())
        lines.append(f"  vramcast predict {where} --gpu {found.gpu.id} {settings}")
    lines.append(
        f"{found.traces} runs traced; NCCL's own buffers are not in the figures; a card's batch stays as it is"
    )
    return lines


def fewest_document(found: FewestCards) -> dict[str, Any]:
    return {
        "gpu": found.gpu.id,
        "traces": found.traces,
        "ways": [
            {
                "count": way.count,
                "changes": dict(way.changes),
                "peak_allocated_bytes": way.prediction.peak_allocated_bytes,
                "peak_reserved_bytes": way.prediction.peak_reserved_bytes,
                "device_bytes": way.prediction.device_bytes,
                "step_seconds": None if way.time is None else way.time.seconds,
                "next_smaller": way.next_smaller,
                "next_smaller_allocated_bytes": way.next_smaller_bytes,
                "next_smaller_was_traced": way.was_traced,
            }
            for way in found.ways
        ],
    }


def _needs(way: Fewest) -> str:
    return (
        f"needs {format_gib(way.prediction.device_bytes)} of {format_gib(way.prediction.limit_bytes)} on each, "
        f"{format_gib(way.prediction.peak_allocated_bytes)} allocated at the peak"
    )


def _pace(way: Fewest) -> str:
    return "" if way.time is None else f"; a step takes {seconds(way.time.seconds)}"
