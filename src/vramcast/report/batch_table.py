"""The table of cards, sizes and batches as text and as JSON."""

from __future__ import annotations

from typing import Any

from vramcast.base.units import GIB
from vramcast.features.table.result import BatchTable, Cell
from vramcast.report.page import Grid, Line, Page

TABLE_FORMAT = "vramcast-table"
TABLE_VERSION = 1


def table_page(batch_table: BatchTable) -> Page:
    page: list[Line | Grid] = [_largest(batch_table)] if not batch_table.batches else [_given(batch_table)]
    if batch_table.batches:
        page.append(Line("GiB on the device; – does not fit"))
    else:
        line = "largest batch, and what it takes in GiB on the device; 0: one sample needs more"
        page.append(Line(line + _margins(batch_table)))
    page += [Line(f"no figure: {problem}", "bad") for problem in batch_table.problems]
    if batch_table.size_does_not_matter:
        page.append(Line(f"every {batch_table.size_name} gives the same: no input of the job uses it", "bad"))
    page.append(Line(f"{batch_table.job}; {batch_table.traces} runs traced", "aside"))
    return page


def _margins(batch_table: BatchTable) -> str:
    """The margin that stays free beside the largest batch: each card and size has its own."""
    shares = sorted({cell.margin for cell in batch_table.cells if cell.margin})
    if not shares:
        return ""
    texts = list(dict.fromkeys(f"{100 * share:.2g} %" for share in (shares[0], shares[-1])))
    return f"; a margin of {' to '.join(texts)} stays free"


def _largest(batch_table: BatchTable) -> Grid:
    """One line a card, one column a size."""
    headings = [batch_table.size_name or "card", "GiB"]
    for size in batch_table.sizes:
        headings += [size or "largest batch", "takes"]
    rows = []
    for gpu in batch_table.gpus:
        row = [gpu.id, f"{gpu.total_memory_bytes / GIB:.1f}"]
        for size in batch_table.sizes:
            cell = batch_table.cell(gpu, size)
            row += ["–", ""] if cell.problem else [f"{cell.batch:,}", _gib(cell)]
        rows.append(tuple(row))
    return Grid(tuple(headings), tuple(rows))


def _given(batch_table: BatchTable) -> Grid:
    """One line a size and batch, one column a card."""
    headings = (
        *((batch_table.size_name,) if batch_table.size_name else ()),
        "batch",
        *(gpu.id for gpu in batch_table.gpus),
    )
    rows = []
    for size in batch_table.sizes:
        for batch in batch_table.batches:
            cells = [batch_table.cell(gpu, size, batch) for gpu in batch_table.gpus]
            texts = [_gib(cell) if cell.fits else "–" for cell in cells]
            rows.append((*((size,) if batch_table.size_name else ()), f"{batch:,}", *texts))
    return Grid(headings, tuple(rows), text_columns=1 if batch_table.size_name else 0)


def _gib(cell: Cell) -> str:
    return f"{cell.device_bytes / GIB:.1f}"


def table_document(batch_table: BatchTable) -> dict[str, Any]:
    return {
        "format": TABLE_FORMAT,
        "version": TABLE_VERSION,
        "job": batch_table.job,
        "size_name": batch_table.size_name or None,
        "sizes": list(batch_table.sizes),
        "batches": list(batch_table.batches) or None,
        "traces": batch_table.traces,
        "gpus": [{"id": gpu.id, "name": gpu.name, "limit_bytes": gpu.total_memory_bytes} for gpu in batch_table.gpus],
        "cells": [
            {
                "gpu": cell.gpu.id,
                "size": cell.size or None,
                "batch": cell.batch,
                "fits": cell.fits,
                "device_bytes": None if cell.problem else cell.device_bytes,
                "limit_bytes": cell.limit_bytes,
                "margin": cell.margin or None,
                "problem": cell.problem or None,
            }
            for cell in batch_table.cells
        ],
    }
