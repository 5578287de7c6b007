"""What the host takes to issue an op, from a few figures for kinds of op.

An eager program spends most of its host time on the way from a Python call through dispatcher and autograd to the
driver. That time hardly depends on sizes: a view costs less than a kernel, a kernel that autograd records more than one
it does not. `features` takes an op apart into such kinds; a calibration says what each of them takes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from statistics import geometric_mean
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.timing.costs.calibration import Calibration
from vramcast.timing.costs.families.elementwise import LARGEST_KEPT_BLOCK
from vramcast.timing.costs.signature import parse_arguments
from vramcast.timing.queues import Latencies
from vramcast.timing.settings import timing_settings
from vramcast.trace.calls import (
    AUTOCAST,
    BACKWARD,
    CHECKPOINT,
    COMPILED,
    COMPILED_GRAPH,
    ENGINE,
    GRAD,
    HOOK,
    ITERATION,
    LOADING,
    MARKS,
    MODULE,
    OPTIMIZER,
    OPTIMIZER_END,
    PYTHON,
    RECOMPUTED,
    REPLAY,
    OpCalls,
    parameter_count,
)

"""The host that everything in this process and its children is predicted for."""
UNDISTURBED, HERE = "undisturbed", "here"
_FASTEST, _SLOWEST = 0.05, 100.0

LISTS = ("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad", "_amp_foreach_")
"""Ops on lists of tensors: the host works for each of them."""

_MARK_FEATURES = {
    HOOK: "hook", CHECKPOINT: "checkpoint", MODULE: "module", BACKWARD: "backward", ITERATION: "iteration",
    REPLAY: "replay",
}  # fmt: skip

_FEW_KERNELS = 20
"""A library that launches more than this in one call does so in a loop of its own, with little between two launches."""

_FEW_ROWS = 60
"""Between the optimizers of two parameters, inside a backward pass, lie the ops of a layer."""

NEW_PAGE = "new page"
_PAGE_BYTES = 4096
_READ = "_local_scalar_dense"

_SUMS = ("aten.add.Tensor", "aten.add_.Tensor")
"""What the engine itself calls to add up gradients, without a node of the graph for it."""

HOST_BYTE = "host byte"
_BYTES_PER_SECOND = 12e9
"""What ops on tensors of the host read and write: conversions of 237 MB from float64 to float32 in a zoo script's step
(ltsf-linear, two threads), which also make the memory they write to."""
_HOST_VIEWS = frozenset({
    "alias", "as_strided", "detach", "diagonal", "expand", "lift_fresh", "movedim", "narrow", "permute", "reshape",
    "select", "slice", "split", "split_with_sizes", "squeeze", "swapaxes", "t", "transpose", "unbind", "unfold",
    "unsqueeze", "view", "view_as", "_reshape_alias", "_unsafe_view", "empty", "empty_like", "empty_strided",
})  # fmt: skip

Features = tuple[tuple[str, float], ...]


def features(op: str, arguments: str, flags: int, kernels: float, is_next: bool = False) -> Features:
    """Kinds of host work in one call, each with how often. `is_next`: in an optimizer that follows another at once."""
    if flags & LOADING and (op == MODULE or is_on_host(arguments)):
        return ()  # data is loaded beside the step, or its time is stated
    if op in MARKS:
        if op == OPTIMIZER:
            return ("next optimizer" if is_next else "optimizer", 1.0), ("parameter", parameter_count(arguments))
        if op == COMPILED_GRAPH:
            return ("compiled graph", 1.0), ("compiled input", float(arguments or 0))
        if op == PYTHON:
            return (("python call", float(arguments)),)
        name = _MARK_FEATURES.get(op)
        return ((name, 1.0),) if name is not None else ()
    namespace, _, name = op.partition(".")
    if flags & COMPILED:
        if is_on_host(arguments):
            return ()  # in a real run a part of one small kernel in C++ (card/compiled/host_ops.py)
        if namespace == "triton":
            return (("compiled launch", 1.0),)
        if "convolution" in name:
            return (("compiled convolution", 1.0),)
        return (("compiled call" if kernels else "compiled allocation", 1.0), *_further(kernels))
    if name.startswith(LISTS):
        return ("next list op" if is_next else "list op", 1.0), ("tensor of a list", float(arguments.count("(")))
    if namespace == "profiler":  # a mark for a profiler that does not run
        return (("host op", 1.0),)
    if namespace != "aten":
        return (("library op", 1.0),)
    if is_on_host(arguments):
        if name.startswith(_READ):
            return (("host read", 1.0),)
        return ("host op", 1.0), (HOST_BYTE, host_bytes(name, arguments))
    if name.startswith(_READ):
        return (("read", 1.0),)
    if flags & ENGINE and not flags & RECOMPUTED:
        where = "backward"
    else:
        where = "forward" if flags & GRAD else "unrecorded"
    kind = f"{where} {'op' if kernels else 'view'}"
    if where == "backward" and op in _SUMS:
        kind = "accumulated gradient"
    work = [(kind, 1.0), *_further(kernels)]
    if "convolution" in name or "cudnn" in name:
        work.append(("library call", 1.0))
    if name.startswith("_cudnn_rnn"):
        # Each call describes all weights to cuDNN. A backward call is two: for the data and for the weights.
        weights = arguments.partition("]")[0].partition("[")[2].count("(")
        work.append(("recurrent weight", float(weights * (2 if "backward" in name else 1))))
    if flags & AUTOCAST and kernels and where != "backward":
        work.append(("autocast", 1.0))
    pages, copied = new_pages(name, arguments), copied_indices(name, arguments)
    if pages:
        work.append((NEW_PAGE, pages))
    if copied:
        work.append(("unrecorded op", float(copied)))
    return tuple(work)


def new_pages(name: str, arguments: str) -> float:
    """Pages of ordinary memory that a copy from the card is the first to write to."""
    if not name.startswith("_to_copy") or "device=cpu" not in arguments:
        return 0.0
    moved = sum(tensor.nbytes for tensor in parse_arguments(arguments).tensors)
    return moved / _PAGE_BYTES if moved > LARGEST_KEPT_BLOCK else 0.0


def copied_indices(name: str, arguments: str) -> int:
    """Indices of the host, which an op on the card copies there first, one after the other."""
    if not name.startswith(("index.", "index_put", "_index_put_impl_", "_unsafe_index")):
        return 0
    return arguments.partition("[")[2].partition("]")[0].count("cpu:")


def host_bytes(name: str, arguments: str) -> float:
    """What an op on tensors of the host reads, and as much as the largest of it, which it writes."""
    if name.partition(".")[0] in _HOST_VIEWS:
        return 0.0
    sizes = [tensor.nbytes for tensor in parse_arguments(arguments).tensors]
    return float(sum(sizes) + max(sizes, default=0))


def _further(kernels: float) -> Features:
    """The kernels of a call after its first."""
    work = []
    if kernels > 1:
        work.append(("further kernel", float(min(kernels, _FEW_KERNELS) - 1)))
    if kernels > _FEW_KERNELS:
        work.append(("kernel of many", float(kernels - _FEW_KERNELS)))
    return tuple(work)


def next_optimizers(calls: OpCalls, rows: range) -> list[bool]:
    """For each row, whether it is of an optimizer that follows another after a few ops.

    Where each parameter has an optimizer of its own that runs inside the backward pass, all but the first find their
    code and data in the processor's caches, and take a third of the time of one that runs once in a step.
    """
    flags, is_next, ended = [], False, -_FEW_ROWS - 1
    for row in rows:
        op = calls.ops[calls.call[row]]
        if op == OPTIMIZER:
            is_next = row - ended <= _FEW_ROWS
        flags.append(is_next)
        if op == OPTIMIZER_END:
            is_next, ended = False, row
    return flags


def is_on_host(arguments: str) -> bool:
    """Whether nothing lies on the card or is moved there."""
    if arguments.count("(") != arguments.count("cpu:"):
        return False
    return "device=cuda" not in arguments and ("cpu:" in arguments or "device=cpu" in arguments)


@dataclass(frozen=True, slots=True)
class HostModel:
    """Seconds by kind of work, and the latencies of talking to a card."""

    seconds: Mapping[str, float]
    latencies: Latencies
    source: str
    factor: float = 1.0
    """This host's times relative to those of the undisturbed one."""
    label: str = UNDISTURBED
    """Which host it is, in words."""

    def issue_seconds(self, op: str, arguments: str, flags: int, kernels: float, is_next: bool = False) -> float:
        work = features(op, arguments, flags, kernels, is_next)
        moved = sum(n for name, n in work if name == HOST_BYTE) / _BYTES_PER_SECOND
        return self.factor * (moved + sum(self.seconds.get(name, 0.0) * n for name, n in work))

    def mark_seconds(self, mark: str) -> float:
        return self.issue_seconds(mark, "", 0, 0)

    def scaled(self, factor: float, label: str = "") -> HostModel:
        """The same program on a host that takes `factor` times as long."""
        factor *= self.factor
        return replace(self, factor=factor, label=label or f"one that {takes(factor)}")


@cache
def _packaged() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(files("vramcast.timing").joinpath("host.json").read_text(encoding="utf-8"))
    return document


@cache
def undisturbed_host() -> HostModel:
    """The host of the machine that the package's measurements come from, when nothing else slows it down."""
    data = _packaged()
    return HostModel(data["seconds"], Latencies(**data["latencies"]), str(data["source"]))


def packaged_calls() -> dict[str, float]:
    """What the undisturbed host took for single calls to a card, by kind."""
    return dict(_packaged()["calls"])


def reference_dispatch() -> dict[str, float]:
    """What the undisturbed host took for the small benchmark without a card (features/measure/host_benchmark.py)."""
    return dict(_packaged()["dispatch"])


def host_of(calibration: Calibration | None) -> HostModel:
    """The host to predict for: the one that was chosen, else the one that a calibration was made on, else the
    undisturbed one. It differs from that only by how many times as long it takes."""
    wanted = timing_settings().host
    if wanted:
        factor, is_here = parse_host(wanted)
        if not is_here and factor == 1.0:
            return undisturbed_host()
        return undisturbed_host().scaled(factor, f"this computer, which {takes(factor)}" if is_here else "")
    factor_there = None if calibration is None else factor_between(calibration.host, packaged_calls())
    if factor_there is None:
        return undisturbed_host()
    return undisturbed_host().scaled(factor_there, f"the one of the calibration, which {takes(factor_there)}")


def takes(factor: float) -> str:
    return f"takes {factor:.2f} times as long as an undisturbed one"


def parse_host(text: str) -> tuple[float, bool]:
    """How many times as long a host takes as the undisturbed one, and whether that was measured here:
    `undisturbed`, `1.3`, or `1.3:here` as `--host here` leaves it for the processes it starts."""
    number, _, place = text.partition(":")
    if number == UNDISTURBED:
        return 1.0, False
    try:
        factor = float(number)
    except ValueError:
        factor = math.nan
    if not _FASTEST <= factor <= _SLOWEST or place not in ("", HERE):
        raise UsageError(
            f"the host is {UNDISTURBED!r}, {HERE!r}, or how many times as long it takes as an undisturbed one "
            f"({_FASTEST:g} to {_SLOWEST:g}, as in 1.3), not {text[:40]!r}"
        )
    return factor, place == HERE


def factor_between(theirs: Mapping[str, float], ours: Mapping[str, float]) -> float | None:
    """How much slower a host is, from what both took for the same kinds of calls (geometric mean)."""
    common = [theirs[name] / ours[name] for name in theirs if ours.get(name, 0) > 0 and theirs[name] > 0]
    return geometric_mean(common) if common else None
