"""The table of cards, sizes and batches as text and as JSON."""

from __future__ import annotations

from typing import Any

from vramcast.base.units import GIB
from vramcast.features.table.result import BatchTable, Cell
from vramcast.report.page import Grid, Line, Page

TABLE_FORMAT = "vramcast-table"
TABLE_VERSION = 1


def table_page(found: BatchTable) -> Page:
    page: list[Line | Grid] = [_largest(found)] if not found.batches else [_given(found)]
    if found.batches:
        page.append(Line("GiB on the device; – does not fit"))
    else:
        margin = f" with a margin of {found.margin:.0%}" if found.margin else ""
        page.append(Line(f"largest batch{margin}, and what it takes in GiB on the device; 0: one sample needs more"))
    page += [Line(f"no figure: {problem}", "bad") for problem in found.problems]
    if found.size_does_not_matter:
        page.append(Line(f"every {found.size_name} gives the same: no input of the job uses it", "bad"))
    page.append(Line(f"{found.job}; {found.traces} runs traced", "aside"))
    return page


def _largest(found: BatchTable) -> Grid:
    """One line a card, one column a size."""
    headings = [found.size_name or "card", "GiB"]
    for size in found.sizes:
        headings += [size or "largest batch", "takes"]
    rows = []
    for gpu in found.gpus:
        row = [gpu.id, f"{gpu.total_memory_bytes / GIB:.1f}"]
        for size in found.sizes:
            cell = found.cell(gpu, size)
            row += ["–", ""] if cell.problem else [f"{cell.batch:,}", _gib(cell)]
        rows.append(tuple(row))
    return Grid(tuple(headings), tuple(rows))


def _given(found: BatchTable) -> Grid:
    """One line a size and batch, one column a card."""
    headings = (*((found.size_name,) if found.size_name else ()), "batch", *(gpu.id for gpu in found.gpus))
    rows = []
    for size in found.sizes:
        for batch in found.batches:
            cells = [found.cell(gpu, size, batch) for gpu in found.gpus]
            texts = [_gib(cell) if cell.fits else "–" for cell in cells]
            rows.append((*((size,) if found.size_name else ()), f"{batch:,}", *texts))
    return Grid(headings, tuple(rows), text_columns=1 if found.size_name else 0)


def _gib(cell: Cell) -> str:
    return f"{cell.device_bytes / GIB:.1f}"


def table_document(found: BatchTable) -> dict[str, Any]:
    return {
        "format": TABLE_FORMAT,
        "version": TABLE_VERSION,
        "job": found.job,
        "size_name": found.size_name or None,
        "sizes": list(found.sizes),
        "batches": list(found.batches) or None,
        "margin": found.margin,
        "traces": found.traces,
        "gpus": [{"id": gpu.id, "name": gpu.name, "limit_bytes": gpu.total_memory_bytes} for gpu in found.gpus],
        "cells": [
            {
                "gpu": cell.gpu.id,
                "size": cell.size or None,
                "batch": cell.batch,
                "fits": cell.fits,
                "device_bytes": None if cell.problem else cell.device_bytes,
                "limit_bytes": cell.limit_bytes,
                "problem": cell.problem or None,
            }
            for cell in found.cells
        ],
    }
