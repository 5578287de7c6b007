"""What was alive when memory ran out: a page of text and a JSON document, written side by side."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vramcast.base.units import format_gib, format_size
from vramcast.memory.alive import Alive, Beside
from vramcast.report.console import emit
from vramcast.report.page import Grid, Line, Page, print_page
from vramcast.report.wording import place

ALIVE_FORMAT = "vramcast-out-of-memory"
ALIVE_VERSION = 1
_MODULES_SHOWN = 15


def alive_page(alive: Alive) -> Page:
    page: list[Line | Grid] = [
        Line(f"Out of memory: the card refused {format_size(alive.tried_bytes)} after {alive.steps} steps", "bad"),
        Line(
            f"allocated {format_gib(alive.allocated_bytes)}, reserved {format_gib(alive.reserved_bytes)}, "
            f"free on the card {format_gib(alive.free_bytes)} of {format_gib(alive.total_bytes)}"
        ),
    ]
    if alive.limit_bytes is not None:
        page.append(Line(f"this process may reserve {format_gib(alive.limit_bytes)}"))
    page.append(Line(_prediction(alive)))
    page.append(_grid("alive", alive.parts))
    if alive.modules:
        page.append(_grid("module", alive.modules[:_MODULES_SHOWN]))
        if len(alive.modules) > _MODULES_SHOWN:
            page.append(Line(f"and {len(alive.modules) - _MODULES_SHOWN} more modules (the .json lists all)", "aside"))
    page.append(
        Grid(
            ("the largest blocks", "what", "shape", "held by", "size"),
            tuple(
                (
                    block.kind + (" (by its size)" if block.known_by == "size" else ""),
                    block.name or block.where or "–",
                    block.shape or "–",
                    block.variable or "–",
                    format_size(block.size_bytes) + (f" × {block.count}" if block.count > 1 else ""),
                )
                for block in alive.largest
            ),
            text_columns=4,
        )
    )
    page.append(Line(_how_known(alive), "aside"))
    return page


def alive_document(alive: Alive) -> dict[str, Any]:
    prediction = alive.prediction
    return {
        "format": ALIVE_FORMAT,
        "version": ALIVE_VERSION,
        "tried_bytes": alive.tried_bytes,
        "allocated_bytes": alive.allocated_bytes,
        "reserved_bytes": alive.reserved_bytes,
        "free_bytes": alive.free_bytes,
        "total_bytes": alive.total_bytes,
        "limit_bytes": alive.limit_bytes,
        "steps": alive.steps,
        "parts": {row.name: asdict(row) for row in alive.parts},
        "modules": {row.name: asdict(row) for row in alive.modules},
        "largest": [asdict(block) for block in alive.largest],
        "blocks": alive.blocks,
        "unowned_bytes": alive.unowned_bytes,
        "matched_bytes": alive.matched_bytes,
        "predicted": prediction
        and {
            "at": alive.predicted_at,
            "fits": prediction.fits,
            "peak_allocated_bytes": prediction.peak_allocated_bytes,
            "peak_reserved_bytes": prediction.peak_reserved_bytes,
            "device_bytes": prediction.device_bytes,
            "limit_bytes": prediction.limit_bytes,
        },
    }


def write_alive(alive: Alive, folder: Path) -> Path:
    """Write vramcast-oom-PID-N.txt and .json; the path of the text."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while (path := folder / f"vramcast-oom-{os.getpid()}-{number}.txt").exists():
        number += 1
    with path.open("w", encoding="utf-8") as file:
        emit(lambda console: print_page(alive_page(alive), console), file, width=160)
    path.with_suffix(".json").write_text(json.dumps(alive_document(alive), indent=1), encoding="utf-8")
    return path


def _grid(heading: str, rows: tuple[Beside, ...]) -> Grid:
    has_prediction = any(row.predicted_bytes is not None for row in rows)
    headings = (heading, "alive", "predicted") if has_prediction else (heading, "alive")
    cells = []
    for row in rows:
        predicted = "–" if row.predicted_bytes is None else format_size(row.predicted_bytes)
        cells.append((row.name, format_size(row.alive_bytes), predicted)[: len(headings)])
    return Grid(headings, tuple(cells))


def _prediction(alive: Alive) -> str:
    prediction = alive.prediction
    if prediction is None:
        return "there was no prediction"
    if prediction.out_of_memory is not None:
        return f"predicted: out of memory at {place(prediction.out_of_memory.at)}; set beside that moment"
    return (
        f"predicted: it fits, {format_gib(prediction.device_bytes)} at most, at {place(prediction.account.moment)}; "
        "set beside that moment"
    )


def _how_known(alive: Alive) -> str:
    text = f"{alive.blocks} blocks; parameters, gradients, optimizer state and buffers by their address"
    if alive.prediction is not None:
        text += (
            f"; of the other {format_size(alive.unowned_bytes)}, {format_size(alive.matched_bytes)} by a block of the "
            "same size in the prediction"
        )
    return text
