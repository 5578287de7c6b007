"""Run the cases under the profiler and keep every operator with its device time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice, zip_longest
from time import perf_counter
from typing import Any

import torch

from vramcast.measure.calibration import dense_cases, memory_cases
from vramcast.measure.calibration.draws import Case
from vramcast.measure.op_times import record_op_times
from vramcast.measure.phases import PhaseWatcher

_CASES_A_ROUND = 20
_REPEATS = 3
# The families and how many cases of each; they take turns, so that a sweep cut short has some of all.
_FAMILIES: tuple[tuple[Callable[[int, int], Iterator[Case]], int], ...] = (
    (dense_cases.products, 160), (dense_cases.batched_products, 60), (dense_cases.convolutions, 240),
    (dense_cases.other_convolutions, 30), (dense_cases.attentions, 90), (memory_cases.elementwise, 100),
    (memory_cases.copies, 24), (memory_cases.reductions, 30), (memory_cases.softmaxes, 30), (memory_cases.norms, 24),
    (memory_cases.lists, 16), (memory_cases.indices, 20), (memory_cases.images, 30), (memory_cases.sequences, 10),
)  # fmt: skip


def cases(largest_bytes: int) -> list[Case]:
    turns = zip_longest(*(family(largest_bytes, count) for family, count in _FAMILIES))
    return [case for case in chain.from_iterable(turns) if case is not None]


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
