"""Predict published rows and score them."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from corpus.children import run_each
from corpus.external.rows import MLP, TIMM, TRANSFORMER, XMEM, Row

MIB = 1 << 20
TIMEOUT_SECONDS = 300.0
UNLIMITED_BYTES = 1 << 50
"""Rows are runs that finished; a refusal halfway would say less than the figure it needs."""


@dataclass(frozen=True)
class Predicted:
    row: Row
    reserved_mib: float | None
    allocated_mib: float | None
    seconds: float
    parameters: int | None = None
    error: str = ""


def predict_row(row: Row) -> tuple[int, int, int]:
    """(peak reserved, peak allocated, parameters of the model) on the row's card."""
    from vramcast.virtual_gpu import virtual_gpu

    recipe = importlib.import_module(f"corpus.external.recipes.{row.source}")
    torch.manual_seed(0)
    with virtual_gpu(row.gpu, allocator_conf="", limit_bytes=UNLIMITED_BYTES) as gpu:
        parameters = recipe.run(row)
    prediction = gpu.prediction()
    return prediction.peak_reserved_bytes, prediction.peak_allocated_bytes, parameters


def predict_rows(rows: Iterable[Row], jobs: int = 2) -> Iterator[Predicted]:
    preload()
    for row, outcome in run_each(predict_row, rows, jobs=jobs, timeout_seconds=TIMEOUT_SECONDS):
        if outcome.error:
            yield Predicted(row, None, None, outcome.seconds, error=outcome.error)
        else:
            reserved, allocated, parameters = outcome.value
            yield Predicted(row, reserved / MIB, allocated / MIB, outcome.seconds, parameters)


def preload() -> None:
    """What every child would import, once."""
    for name in ("torch._dynamo", "vramcast.virtual_gpu", "vramcast.memory"):
        importlib.import_module(name)
    for source in (MLP, TRANSFORMER, "cnn", TIMM, XMEM):
        importlib.import_module(f"corpus.external.recipes.{source}")
