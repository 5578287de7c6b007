"""Answer all questions of a grid that have no answer yet."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.features.sweep.grid import Grid
from vramcast.features.sweep.journal import Journal, import_parquet, left_over, write_parquet
from vramcast.features.sweep.workers import answers_here, answers_on_ray

_PARQUET = ".parquet"


@dataclass(frozen=True, slots=True)
class Sweep:
    questions: int
    asked: int
    """Those that had no answer yet."""
    verdicts: dict[str, int]
    """How often each was the answer, of those asked now."""
    seconds: float
    path: Path
    lines: Path
    """The answers as CSV, which a Parquet file is made of."""


def sweep(
    grid: Grid,
    out: Path,
    *,
    workers: int,
    ray: str | None = None,
    allow_code: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Sweep:
    """Answers go to `out` as they come; for a Parquet file they are kept in a CSV file beside it until then."""
    is_parquet = out.suffix == _PARQUET
    if is_parquet:
        import_parquet()
    path = out.with_name(f"{out.name}.csv") if is_parquet else out
    began = time.monotonic()
    verdicts: dict[str, int] = {}
    with Journal(path, grid) as journal:
        waiting = left_over(grid, journal.answered)
        if ray is None:
            found = answers_here(waiting, workers, allow_code)
        else:
            found = answers_on_ray(waiting, ray, allow_code, connect_to_ray)
        for done, (question, answer) in enumerate(found, 1):
            journal.add(question, answer)
            verdicts[answer.verdict] = verdicts.get(answer.verdict, 0) + 1
            progress(_how_far(done, len(waiting), time.monotonic() - began))
    if is_parquet:
        write_parquet(path, out)
    return Sweep(len(grid), len(waiting), verdicts, time.monotonic() - began, out, path)


def connect_to_ray(address: str) -> Any:
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise UsageError("--ray needs Ray: pip install 'vramcast[ray]'") from None
    try:
        ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UsageError(f"--ray {address}: {' '.join(str(error).split())[:300]}") from None
    return ray


def _how_far(done: int, of: int, seconds: float) -> str:
    left = seconds / done * (of - done)
    return f"{done:,} of {of:,} answered, {done / max(seconds, 1e-9):.1f} a second, {_span(left)} left"


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
