"""Run the cases under the profiler and keep every operator with its device time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from time import perf_counter
from typing import Any

import torch

from vramcast.measure.calibration import dense_cases, memory_cases
from vramcast.measure.calibration.draws import Case
from vramcast.measure.op_times import record_op_times
from vramcast.measure.phases import PhaseWatcher

_CASES_A_ROUND = 40
_REPEATS = 3
# The families and how many cases of each.
_FAMILIES: tuple[tuple[Callable[[int, int], Iterator[Case]], int], ...] = (
    (dense_cases.products, 150), (dense_cases.batched_products, 50), (dense_cases.convolutions, 220),
    (dense_cases.other_convolutions, 20), (dense_cases.attentions, 80), (memory_cases.elementwise, 70),
    (memory_cases.copies, 20), (memory_cases.reductions, 25), (memory_cases.softmaxes, 20), (memory_cases.norms, 20),
    (memory_cases.image_norms, 50), (memory_cases.lists, 12), (memory_cases.indices, 14), (memory_cases.images, 20),
    (memory_cases.sequences, 8),
)  # fmt: skip


def cases(largest_bytes: int) -> list[Case]:
    """Of all families in turn, by their share: a sweep cut short has some of each."""
    placed: list[tuple[float, Case]] = []
    for family, count in _FAMILIES:
        made = list(family(largest_bytes, count))
        placed += [((place + 0.5) / len(made), case) for place, case in enumerate(made)]
    return [case for _, case in sorted(placed, key=lambda pair: pair[0])]


def sweep(seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Rows as `record_op_times` gives them, of as many cases as the time allows; and what failed."""
    free, _ = torch.cuda.mem_get_info()
    rest = iter(cases(min(free // 16, 1 << 31)))
    watcher = PhaseWatcher(lambda ended: None)
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    done, started = 0, perf_counter()
    torch.manual_seed(0)
    while (some := list(islice(rest, _CASES_A_ROUND))) and perf_counter() - started < seconds:
        able = [case for case in some if _warm_up(case, failed)]
        recorded = record_op_times(_repeated(able), watcher)
        rows += [row for row in recorded["rows"] if row["total_ns"]]
        done += len(able)
        say(f"{done} cases, {len(rows)} operators, {perf_counter() - started:.0f} s")
    return {"rows": rows, "cases": done, "failed": failed, "seconds": perf_counter() - started}


def _warm_up(case: Case, failed: list[str]) -> bool:
    """Kernels are loaded and chosen; a case that this card cannot run is left out."""
    try:
        case.run()
        case.run()
        torch.cuda.synchronize()
    except (RuntimeError, torch.OutOfMemoryError) as error:
        failed.append(f"{case.name}: {str(error).splitlines()[0][:120]}")
        torch.cuda.empty_cache()
        return False
    return True


def _repeated(some: list[Case]) -> Callable[[], None]:
    def step() -> None:
        for case in some:
            for _ in range(_REPEATS):
                case.run()

    return step
