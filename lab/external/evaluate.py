"""Predict published rows, each in a child process."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lab.external.rows import FILES, Row
from lab.measuring.children import run_each

MIB = 1 << 20
TIMEOUT_SECONDS = 300.0
UNLIMITED_BYTES = 1 << 50
CONVOLUTION_HEAVY = 4
"""With this many spatial convolutions or more, a model counts as a convolutional network."""


@dataclass(frozen=True)
class Predicted:
    """A row beside its prediction; `error` says why there is none."""

    row: Row
    reserved_mib: float
    seconds: float
    convolution: bool
    refused: bool = False
    """The virtual card ran out of memory; the figure is what the run needs without a limit."""
    error: str = ""


def predict_row(row: Row) -> dict[str, Any]:
    """Runs in the child. Under the card's own limit, for rows near it were squeezed by it."""
    recipe = importlib.import_module(f"lab.external.recipes.{row.source}")
    refused = False
    try:
        reserved, built = _run(recipe, row, None)
    except torch.OutOfMemoryError:
        refused = True
        reserved, built = _run(recipe, row, UNLIMITED_BYTES)
    return {"reserved": reserved, "built": built, "refused": refused}


def _run(recipe: Any, row: Row, limit_bytes: int | None) -> tuple[int, Any]:
    from vramcast.card.device.context import virtual_gpu

    torch.manual_seed(0)
    with virtual_gpu(row.gpu, allocator_conf="", limit_bytes=limit_bytes) as gpu:
        built = recipe.run(row)
    return gpu.prediction().peak_reserved_bytes, built


def predict_rows(rows: Iterable[Row], jobs: int = 2) -> Iterator[Predicted]:
    preload()
    for row, outcome in run_each(predict_row, rows, jobs=jobs, timeout_seconds=TIMEOUT_SECONDS):
        if outcome.error:
            yield Predicted(row, 0.0, outcome.seconds, False, error=outcome.error)
            continue
        built = outcome.value["built"]
        stated = stated_parameters(row)
        error = ""
        if stated is not None and stated != built.parameters:
            error = f"{MISMATCH}: {built.parameters:,} parameters built, {stated:,} stated"
        yield Predicted(
            row,
            outcome.value["reserved"] / MIB,
            outcome.seconds,
            built.spatial_convolutions >= CONVOLUTION_HEAVY,
            outcome.value["refused"],
            error,
        )


MISMATCH = "another model"


def stated_parameters(row: Row) -> int | None:
    text = row.fields.get("expected_params") or row.notes().get("params")
    return int(text) if text else None


def preload() -> None:
    """What every child would import, once."""
    for name in ("torch._dynamo", "vramcast.card.device.context", "vramcast.memory"):
        importlib.import_module(name)
    for source in FILES:
        importlib.import_module(f"lab.external.recipes.{source}")
    importlib.import_module("lab.external.recipes.xmem_language").load_classes()
