"""`table(job, gpus)`: cards × batch × resolution or sequence, or the largest batch in each cell."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError, VramcastError
from vramcast.base.shown import Shown
from vramcast.features.table.result import BatchTable, Cell
from vramcast.gpus import GpuSpec, find_gpu
from vramcast.jobs.load import LoadedJob, with_overrides
from vramcast.jobs.schema import Job
from vramcast.memory.margin import has_many_convolutions, margin_for
from vramcast.prediction.predict import as_loaded
from vramcast.prediction.scaling import Batches

DEFAULT_CARDS = ("v100-16gb", "rtx-4090", "a100-40gb", "a100-80gb")
_RESOLUTION = re.compile(r"(\d{1,8})(?:\s*[x×]\s*(\d{1,8}))?")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, repr=False)
class JobTable(Shown):
    table: BatchTable


def table(
    job: Job | LoadedJob | Mapping[str, Any] | str | Path,
    gpus: Sequence[str | GpuSpec] = DEFAULT_CARDS,
    batches: Sequence[int] = (),
    *,
    resolutions: Sequence[int | str] = (),
    heights: Sequence[int] = (),
    widths: Sequence[int] = (),
    sequences: Sequence[int] = (),
    margin: float | None = None,
    steps: int = 3,
    allow_code: bool = False,
    progress: Progress = lambda text: None,
) -> JobTable:
    """What each of `batches` takes on each card, or, without any, the largest batch that each card holds.

    `resolutions` are sides of a square (256) or "height x width"; or each of `heights` with each of `widths`;
    `sequences` are lengths. The largest batch leaves `margin` of what it takes free, by default the margin of such
    predictions, and has the workspaces that its convolutions ask for. `allow_code`: a file that `job`
    names may name code to run.
    """
    if resolutions and (heights or widths):
        raise UsageError("resolutions and heights or widths say the same in one table; leave one out")
    if margin is not None and not 0 <= margin < 1:
        raise UsageError(f"margin: a share from 0 to 1 is needed, e.g. 0.07, not {margin:g}")
    if (resolutions or heights or widths) and sequences:
        raise UsageError("resolutions and sequence lengths cannot be asked for in one table; leave one out")
    if any(batch < 1 for batch in batches):
        raise UsageError(f"batches: whole numbers above zero are needed, not {min(batches)}")
    loaded = as_loaded(job, allow_code=allow_code)
    cards = [find_gpu(gpu) if isinstance(gpu, str) else gpu for gpu in gpus]
    if not cards:
        raise UsageError("gpus: at least one card is needed, e.g. rtx-4090")
    cards = list({card.id: card for card in cards}.values())
    sizes = dict(_sizes(resolutions, heights, widths, sequences))
    cells: list[Cell] = []
    traces = 0
    first: VramcastError | None = None
    for label, changes in sizes.items():
        base = with_overrides(loaded.job, changes, loaded.where or "the options")
        where = loaded.where or "the options"
        runs = Batches(
            base, steps=steps, progress=_named(progress, label), where=where, smaller_workspaces=bool(batches)
        )
        for card in cards:
            try:
                cells += _row(runs, card, label, batches, margin)
            except VramcastError as error:
                first = first or error
                cells += [_failed(card, label, batch, str(error)) for batch in (batches or (0,))]
        traces += runs.n_traced
    if first is not None and all(cell.problem for cell in cells):
        raise first
    name = "resolution" if resolutions or (heights and widths) else "sequence" if sequences else ""
    name = name or ("height" if heights else "width" if widths else "")
    return JobTable(
        BatchTable(
            job=loaded.job.name,
            size_name=name,
            gpus=tuple(cards),
            sizes=tuple(sizes),
            batches=tuple(batches),
            cells=tuple(cells),
            traces=traces,
        )
    )


def _row(runs: Batches, card: GpuSpec, label: str, batches: Sequence[int], margin: float | None) -> Iterator[Cell]:
    if batches:
        for batch in batches:
            fits, device_bytes = runs.needs(batch, card)
            yield Cell(gpu=card, size=label, batch=batch, fits=fits, device_bytes=device_bytes,
                       limit_bytes=card.total_memory_bytes)  # fmt: skip
        return
    share = _margin(runs, card) if margin is None else margin
    largest = runs.largest(card, limit_bytes=_within(runs, card, share) if share else None)
    yield Cell(gpu=card, size=label, batch=largest.batch, fits=largest.batch > 0, device_bytes=largest.device_bytes,
               limit_bytes=card.total_memory_bytes, margin=share)  # fmt: skip


def _margin(runs: Batches, card: GpuSpec) -> float:
    trace = runs.trace(runs.axis.first[0], card)
    return margin_for(card.id, trace.notes, many_convolutions=has_many_convolutions(trace)).share


def _within(runs: Batches, card: GpuSpec, margin: float) -> int:
    """What PyTorch may reserve so that the margin stays free."""
    kept_bytes = card.total_memory_bytes - int(card.total_memory_bytes / (1 + margin))
    return runs.capacity(runs.axis.first[0], card) - kept_bytes


def _failed(card: GpuSpec, label: str, batch: int, problem: str) -> Cell:
    return Cell(gpu=card, size=label, batch=batch, fits=False, device_bytes=0, limit_bytes=card.total_memory_bytes,
                problem=problem)  # fmt: skip


def _sizes(
    resolutions: Sequence[int | str], heights: Sequence[int], widths: Sequence[int], sequences: Sequence[int]
) -> Iterator[tuple[str, dict[str, int]]]:
    """A label, and the sizes of the job that it stands for."""
    if heights or widths:
        for sides in itertools.product(heights or (None,), widths or (None,)):
            sizes = {f"sizes.{name}": side for name, side in zip(("height", "width"), sides, strict=True) if side}
            yield " × ".join(map(str, sizes.values())), sizes
        return
    for resolution in resolutions:
        match = _RESOLUTION.fullmatch(str(resolution).strip())
        if match is None:
            raise UsageError(f"resolution {resolution}: write a number, 256, or height x width, 480x832")
        height, width = int(match[1]), int(match[2] or match[1])
        yield f"{height} × {width}", {"sizes.height": height, "sizes.width": width}
    for length in sequences:
        yield f"{length}", {"sizes.sequence": length}
    if not resolutions and not sequences:
        yield "", {}


def _named(progress: Progress, label: str) -> Progress:
    return (lambda text: progress(f"{label}: {text}")) if label else progress
