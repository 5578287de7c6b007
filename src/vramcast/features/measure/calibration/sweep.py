"""Run the cases under the profiler and keep every operator with its device time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from time import perf_counter
from typing import Any

import torch

from vramcast.features.measure.calibration import convolution_cases, dense_cases, memory_cases, network_cases
from vramcast.features.measure.calibration.draws import Case, Draw
from vramcast.features.measure.op_times import record_op_times
from vramcast.features.measure.phases import PhaseWatcher

_CASES_A_ROUND = 40
_REPEATS = 3
# The families and how many cases of each.
_FAMILIES: tuple[tuple[str, Callable[[Draw, int], Iterator[Case]], int], ...] = (
    ("products", dense_cases.products, 150), ("batched products", dense_cases.batched_products, 60),
    ("tf32 products", dense_cases.tf32_products, 30), ("experts", dense_cases.grouped_products, 8),
    ("attention", dense_cases.attentions, 100),
    ("image convolutions", convolution_cases.images, 260), ("groups", convolution_cases.groups, 150),
    ("depthwise", convolution_cases.depthwise, 160), ("signals", convolution_cases.signals, 70),
    ("volumes", convolution_cases.volumes, 50), ("transposed", convolution_cases.transposed, 40),
    ("elementwise", memory_cases.elementwise, 60), ("copies", memory_cases.copies, 20),
    ("reductions", memory_cases.reductions, 25), ("softmax", memory_cases.softmaxes, 25),
    ("norms", memory_cases.norms, 30), ("image norms", memory_cases.image_norms, 60), ("lists", memory_cases.lists, 16),
    ("indices", memory_cases.indices, 20), ("images", memory_cases.images, 25),
    ("sequences", memory_cases.sequences, 20),
    ("image layers", network_cases.image_layers, 60), ("activations", network_cases.activations, 40),
    ("other norms", network_cases.norms, 40), ("windows", network_cases.windows, 20),
    ("losses", network_cases.losses, 16), ("selections", network_cases.selections, 16),
    ("samples", network_cases.samples, 12), ("volume pools", network_cases.volume_pools, 8),
    ("updates", network_cases.updates, 16), ("transfers", network_cases.transfers, 16),
)  # fmt: skip


def cases(largest_bytes: int, turn: int = 1) -> list[Case]:
    """Cases of all families, interleaved by their share, so that a sweep cut short has some of each."""
    placed: list[tuple[float, Case]] = []
    for name, family, count in _FAMILIES:
        made = list(family(Draw(name, largest_bytes, turn), count))
        placed += [((place + 0.5) / len(made), case) for place, case in enumerate(made)]
    return [case for _, case in sorted(placed, key=lambda pair: pair[0])]


def sweep(seconds: float, say: Callable[[str], None], turn: int = 1) -> dict[str, Any]:
    """Rows as `record_op_times` gives them, of as many cases as the time allows; and what failed."""
    free, _ = torch.cuda.mem_get_info()
    rest = iter(cases(min(free // 16, 1 << 31), turn))
    watcher = PhaseWatcher(lambda ended: None)
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    done, started = 0, perf_counter()
    torch.manual_seed(0)
    while (some := list(islice(rest, _CASES_A_ROUND))) and perf_counter() - started < seconds:
        for tf32 in (False, True):
            with _tf32(tf32):
                able = [case for case in some if case.tf32 is tf32 and _warm_up(case, failed)]
                recorded = record_op_times(_repeated(able), watcher)["rows"] if able else []
            marked = {"tf32": True} if tf32 else {}
            rows += [row | marked for row in recorded if row["total_ns"]]
            done += len(able)
        say(f"{done} cases, {len(rows)} operators, {perf_counter() - started:.0f} s")
    return {"rows": rows, "cases": done, "failed": failed, "seconds": perf_counter() - started}


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


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
