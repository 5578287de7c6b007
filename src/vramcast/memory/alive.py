"""What was alive when the card refused an allocation, beside what had been predicted for that moment.

The blocks come from the allocator's own snapshot. What a block holds is known for certain where a parameter, its
gradient, optimizer state or a buffer lies in it. For the rest the prediction is asked: a block as large as one that is
alive there at the same moment is taken for that one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from vramcast.memory.account import FRAGMENTATION, ROUNDING
from vramcast.memory.lengthening import lengthened
from vramcast.memory.prediction import Prediction
from vramcast.memory.replay import replay
from vramcast.trace.schema import KINDS

UNKNOWN = "activations and other"
"""Blocks that no parameter, optimizer or prediction explains."""
OUTSIDE = "outside PyTorch's allocator"
OTHERS = "other processes"
OUTSIDE_OR_OTHERS = "other processes and outside PyTorch's allocator"
"""Where it is not known how much of it belongs to this process."""
_NOT_RESERVED = (OUTSIDE, OTHERS, OUTSIDE_OR_OTHERS)
_LARGEST = 20
_MODULE_PARTS = 4
"""GPT2LMHeadModel.transformer.h.0: deeper ones are added to these."""


@dataclass(frozen=True, slots=True)
class LiveBlock:
    """One block that was in use."""

    address: int
    size_bytes: int
    requested_bytes: int
    where: str = ""
    """file:line that allocated it, when the allocator's history was on."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A tensor that somebody holds, by the address of its memory."""

    address: int
    kind: str
    name: str
    """Name of the parameter or buffer, with its module's path before the last dot."""
    shape: str = ""


@dataclass(frozen=True, slots=True)
class Variable:
    """A tensor that a variable of the program holds."""

    address: int
    name: str
    where: str
    shape: str


@dataclass(frozen=True, slots=True)
class Beside:
    """One line of the account: alive, and predicted."""

    name: str
    alive_bytes: int
    predicted_bytes: int | None
    """None without a prediction, or where it has no such part."""


@dataclass(frozen=True, slots=True)
class NamedBlock:
    """One block, or `count` of which the same can be said."""

    size_bytes: int
    """Size of one block."""
    kind: str
    name: str
    shape: str
    known_by: str
    """owner, size (as predicted), or nothing."""
    variable: str = ""
    """Variables that hold it: "logits (train.py:31)"."""
    where: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """The account of the moment at which memory ran out. `parts` sum to what was in use on the card."""

    tried_bytes: int
    total_bytes: int
    free_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    limit_bytes: int | None
    """The limit from set_per_process_memory_fraction."""
    parts: tuple[Beside, ...]
    modules: tuple[Beside, ...]
    """By module; what belongs to none is left out."""
    largest: tuple[NamedBlock, ...]
    blocks: int
    matched_bytes: int
    """Bytes without an owner that were recognised by their size."""
    unowned_bytes: int
    steps: int
    """Optimizer steps that had been made."""
    prediction: Prediction | None
    predicted_at: str
    """The moment of the prediction that it is set beside: "refusal" or "peak"; empty without one."""


@dataclass(frozen=True, slots=True)
class _Expected:
    """A block of the prediction."""

    kind: str
    module: str
    shape: str


def account_of_alive(
    blocks: Sequence[LiveBlock],
    owners: Iterable[Owner],
    variables: Iterable[Variable] = (),
    *,
    reserved_bytes: int,
    tried_bytes: int,
    total_bytes: int,
    free_bytes: int,
    process_bytes: int | None = None,
    limit_bytes: int | None = None,
    steps: int = 0,
    prediction: Prediction | None = None,
) -> Alive:
    """`process_bytes` is what the driver counts as this process's; None where it does not say."""
    owned = _by_block(blocks, owners)
    held = _by_block(blocks, variables)
    expected = _Expectation(prediction)
    by_kind: dict[str, int] = defaultdict(int)
    by_module: dict[str, int] = defaultdict(int)
    named: Counter[NamedBlock] = Counter()
    matched = unowned = 0
    for block in sorted(blocks, key=lambda block: -block.requested_bytes):
        size = block.requested_bytes
        owner = owned.get(block.address, [None])[0]
        if owner is not None:
            kind, name, shape, known_by = owner.kind, owner.name, owner.shape, "owner"
            module = name.rpartition(".")[0]
            expected.take(size, kind)
        else:
            unowned += size
            match = expected.find(size)
            kind, module, shape = (match.kind, match.module, match.shape) if match else (UNKNOWN, "", "")
            name, known_by = module, "size" if match else ""
            matched += size if match else 0
        by_kind[kind] += size
        if module:
            by_module[_shortened(module)] += size
        holders = ", ".join(f"{holder.name} ({holder.where})" for holder in held.get(block.address, [])[:3])
        shape = shape or next((holder.shape for holder in held.get(block.address, [])), "")
        named[NamedBlock(size, kind, name, shape, known_by, holders, block.where)] += 1
    allocated = sum(block.size_bytes for block in blocks)
    by_kind[ROUNDING] = allocated - sum(block.requested_bytes for block in blocks)
    by_kind[FRAGMENTATION] = reserved_bytes - allocated
    by_kind |= _not_reserved(total_bytes - free_bytes, reserved_bytes, process_bytes)
    if expected.parts and OUTSIDE_OR_OTHERS in by_kind:
        expected.parts[OUTSIDE_OR_OTHERS] = expected.parts.pop(OUTSIDE)
    return Alive(
        tried_bytes=tried_bytes,
        total_bytes=total_bytes,
        free_bytes=free_bytes,
        allocated_bytes=allocated,
        reserved_bytes=reserved_bytes,
        limit_bytes=limit_bytes,
        parts=_beside(by_kind, expected.parts, (*KINDS, UNKNOWN, ROUNDING, FRAGMENTATION, *_NOT_RESERVED)),
        modules=_beside(by_module, expected.modules, sorted(by_module, key=lambda name: -by_module[name])),
        largest=tuple(replace(block, count=count) for block, count in _most(named)),
        blocks=len(blocks),
        matched_bytes=matched,
        unowned_bytes=unowned,
        steps=steps,
        prediction=prediction,
        predicted_at=expected.moment,
    )


def _not_reserved(used_bytes: int, reserved_bytes: int, process_bytes: int | None) -> dict[str, int]:
    """Memory of the card that PyTorch's allocator does not hold. In a container the driver may report another process's
    number, so one that does not agree with what is reserved is ignored."""
    if process_bytes is None or not reserved_bytes <= process_bytes <= used_bytes:
        return {OUTSIDE_OR_OTHERS: max(0, used_bytes - reserved_bytes)}
    return {OUTSIDE: process_bytes - reserved_bytes, OTHERS: used_bytes - process_bytes}


_Held = TypeVar("_Held", Owner, Variable)


def _by_block(blocks: Sequence[LiveBlock], held: Iterable[_Held]) -> dict[int, list[_Held]]:
    """Address of a block → what lies in it; several tensors may share one."""
    starts = sorted(block.address for block in blocks)
    ends = {block.address: block.address + block.size_bytes for block in blocks}
    by_block: dict[int, list[_Held]] = defaultdict(list)
    for tensor in held:
        at = bisect_right(starts, tensor.address) - 1
        if at >= 0 and tensor.address < ends[starts[at]]:
            by_block[starts[at]].append(tensor)
    return by_block


def _most(named: Counter[NamedBlock]) -> list[tuple[NamedBlock, int]]:
    return sorted(named.items(), key=lambda item: -item[0].size_bytes * item[1])[:_LARGEST]


def _shortened(module: str) -> str:
    return ".".join(module.split(".")[:_MODULE_PARTS])


class _Expectation:
    """The blocks that the prediction has at the moment it is set beside, to be taken away one by one."""

    def __init__(self, prediction: Prediction | None) -> None:
        self.parts: dict[str, int] | None = None
        self.modules: dict[str, int] | None = None
        self.moment = ""
        self._there: dict[int, list[_Expected]] = defaultdict(list)
        self._ever: dict[int, Counter[_Expected]] = defaultdict(Counter)
        if prediction is None or prediction.trace is None:
            return
        run = lengthened(prediction.trace)
        refused = prediction.out_of_memory is not None
        capacity = prediction.limit_bytes - prediction.context_bytes if refused else None
        replayed = replay(run, prediction.allocator_conf, capacity)
        event = replayed.n_events - 1 if refused else replayed.fullest.event
        self.moment = "refusal" if refused else "peak"
        parts: dict[str, int] = defaultdict(int)
        modules: dict[str, int] = defaultdict(int)
        for block in replayed.live_blocks(event):
            expected = _Expected(KINDS[run.kind[block]], run.modules[run.module[block]], run.shapes[run.shape[block]])
            self._there[run.requested_bytes[block]].append(expected)
            parts[expected.kind] += run.requested_bytes[block]
            if expected.module:
                modules[_shortened(expected.module)] += run.requested_bytes[block]
        for block in range(run.n_blocks):
            expected = _Expected(KINDS[run.kind[block]], run.modules[run.module[block]], run.shapes[run.shape[block]])
            self._ever[run.requested_bytes[block]][expected] += 1
        moment = replayed.moment(event)
        parts[ROUNDING] = moment.allocated_bytes - moment.requested_bytes
        reserved_bytes = moment.reserved_bytes if refused else replayed.peak_reserved.reserved_bytes
        parts[FRAGMENTATION] = reserved_bytes - moment.allocated_bytes
        parts[OUTSIDE] = prediction.context_bytes
        self.parts, self.modules = parts, modules

    def take(self, size: int, kind: str) -> None:
        """Remove a block whose kind is known, so that it does not stand for another one."""
        there = self._there.get(size, [])
        at = next((i for i, expected in enumerate(there) if expected.kind == kind), None)
        if at is not None:
            there.pop(at)

    def find(self, size: int) -> _Expected | None:
        owned = ("weights", "gradients", "optimizer state", "buffers")
        there = self._there.get(size, [])
        at = next((i for i, expected in enumerate(there) if expected.kind not in owned), None)
        if at is not None:
            return there.pop(at)
        ever = [
            (count, expected)
            for expected, count in self._ever.get(size, Counter()).items()
            if expected.kind not in owned
        ]
        return max(ever, key=lambda pair: pair[0])[1] if ever else None


def _beside(alive: Mapping[str, int], predicted: Mapping[str, int] | None, names: Iterable[str]) -> tuple[Beside, ...]:
    rows = (Beside(n, alive.get(n, 0), None if predicted is None else predicted.get(n, 0)) for n in names)
    return tuple(row for row in rows if row.alive_bytes or row.predicted_bytes)
