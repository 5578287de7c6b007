"""The arithmetic behind a module's numbers: every tensor it keeps, makes for a moment, or holds at the peak.

Sums are those of the account: what stays, is made again inside a block and is there for a moment as in stages.py; what
lies in the module at the peak of the run as in account.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from vramcast.memory.parameters import ModuleParameters, ParameterTensor
from vramcast.memory.replay import Moment, Replay
from vramcast.memory.shapes import Shape
from vramcast.trace.schema import ALLOC, FREE, KINDS, StepTrace

_SAVED = KINDS.index("saved activations")
_TEMPORARY = KINDS.index("temporaries")
_WORKSPACES = KINDS.index("workspaces")
_FOLD_FROM = 3


@dataclass(frozen=True, slots=True)
class Item:
    """Equal tensors of one module, or of the same part of several layers."""

    module: str
    """Below the explained module; "" for the module itself, * for the number of a layer."""
    op: str
    shape: Shape | None
    """None for memory that no tensor describes."""
    each_bytes: int
    count: int
    kind: str

    @property
    def total_bytes(self) -> int:
        return self.each_bytes * self.count


@dataclass(frozen=True, slots=True)
class Sum:
    """Items that are alive together, and their sum."""

    items: tuple[Item, ...]

    @property
    def total_bytes(self) -> int:
        return sum(item.total_bytes for item in self.items)

    def by_kind(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for item in self.items:
            sizes[item.kind] = sizes.get(item.kind, 0) + item.total_bytes
        return {kind: sizes[kind] for kind in KINDS if kind in sizes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The memory of one module with all below it, or of several modules together."""

    modules: tuple[str, ...]
    inputs: tuple[tuple[int, ...], ...]
    """Shapes of the tensors that the first of them is called with."""
    output: tuple[int, ...] | None
    parameters: tuple[ParameterTensor, ...]
    """Names below the explained module."""
    stays: Sum
    """Made in the forward pass of the last step, kept until the backward pass reaches it."""
    inside: Sum
    """Made again in the backward pass for one checkpointed block: the most that is alive at once."""
    momentary: Sum
    """Results that nothing keeps: the most that is alive at once."""
    workspaces: Sum
    """Taken and given back inside one op: the most at once."""
    peak: Moment
    at_peak: Sum
    """All that lies in the module at the peak of the run."""
    rounding_bytes: int
    """What whole blocks add to it."""

    @property
    def weights_bytes(self) -> int:
        return sum(parameter.weights_bytes for parameter in self.parameters)


def explain(
    replay: Replay,
    modules: Sequence[str],
    parameters: Iterable[ModuleParameters] = (),
    inputs: Mapping[str, tuple[tuple[int, ...], ...]] | None = None,
    outputs: Mapping[str, tuple[int, ...]] | None = None,
    *,
    depth: int | None = None,
) -> Explanation:
    """`modules` are dotted names as the trace has them; lines go at most `depth` names below them."""
    trace = replay.trace
    below = _Below(modules, depth)
    owned = {i: label for i, name in enumerate(trace.modules) if (label := below.label(name)) is not None}
    step = max(0, trace.steps - 1)
    backward = list(trace.phases).index("backward") if "backward" in trace.phases else -1
    mine = [block for block in range(trace.n_blocks) if trace.module[block] in owned]
    here = [block for block in mine if trace.step[block] == step]
    saved = [block for block in here if trace.kind[block] == _SAVED]
    live = [block for block in replay.live_blocks(replay.fullest.event) if trace.module[block] in owned]

    def together(blocks: Iterable[int]) -> Sum:
        return Sum(tuple(_items(trace, blocks, owned)))

    def most_at_once(chosen: Callable[[int], bool]) -> Sum:
        return together(_highest(trace, {block for block in here if chosen(block)}))

    return Explanation(
        modules=tuple(modules),
        inputs=(inputs or {}).get(modules[0], ()) if modules else (),
        output=(outputs or {}).get(modules[0]) if modules else None,
        parameters=tuple(_parameters(parameters, below)),
        stays=together(block for block in saved if trace.phase[block] != backward),
        inside=most_at_once(lambda block: trace.kind[block] == _SAVED and trace.phase[block] == backward),
        momentary=most_at_once(lambda block: trace.kind[block] == _TEMPORARY),
        workspaces=most_at_once(lambda block: trace.kind[block] == _WORKSPACES),
        peak=replay.peak_reserved,
        at_peak=together(live),
        rounding_bytes=sum(_allocated(replay, block) - trace.requested_bytes[block] for block in live),
    )


@dataclass(frozen=True, slots=True)
class _Below:
    modules: Sequence[str]
    depth: int | None

    def label(self, name: str) -> str | None:
        """The name below the explained module; None for one that does not lie in it."""
        for module in self.modules:
            if name == module or not module:
                return self._cut(name if not module else "")
            if name.startswith(f"{module}."):
                return self._cut(name[len(module) + 1 :])
        return None

    def _cut(self, name: str) -> str:
        return name if self.depth is None else ".".join(name.split(".")[: self.depth])


def _highest(trace: StepTrace, chosen: set[int]) -> list[int]:
    """The tensors that are alive together when they take the most."""
    level = highest = 0
    at = -1
    for event, (code, block) in enumerate(zip(trace.event_kind, trace.event_arg, strict=True)):
        if code == ALLOC and block in chosen:
            level += trace.requested_bytes[block]
            if level > highest:
                highest, at = level, event
        elif code == FREE and block in chosen:
            level -= trace.requested_bytes[block]
    if at < 0:
        return []
    return sorted(b for b in chosen if trace.born_event[b] <= at and not -1 < trace.died_event[b] <= at)


def _items(trace: StepTrace, blocks: Iterable[int], owned: Mapping[int, str]) -> list[Item]:
    """Equal ones counted together, in the order of the first; layers of equal make folded into one line."""
    counts: dict[tuple[str, str, str, int, str], int] = {}
    for block in blocks:
        key = (
            owned[trace.module[block]],
            trace.ops[trace.op[block]],
            trace.shapes[trace.shape[block]],
            trace.requested_bytes[block],
            KINDS[trace.kind[block]],
        )
        counts[key] = counts.get(key, 0) + 1
    masked: dict[tuple[str, str, str, int, str], list[tuple[str, str, str, int, str]]] = {}
    for key in counts:
        masked.setdefault((_masked(key[0]), *key[1:]), []).append(key)
    items = []
    for folded, keys in masked.items():
        lines = (
            [(folded, sum(counts[key] for key in keys))] if len(keys) >= _FOLD_FROM else [(k, counts[k]) for k in keys]
        )
        for (module, op, shape, size, kind), count in lines:
            items.append(Item(module, op, Shape.parse(shape), size, count, kind))
    return items


def _masked(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _parameters(rows: Iterable[ModuleParameters], below: _Below) -> Iterable[ParameterTensor]:
    for row in rows:
        label = _Below(below.modules, None).label(row.module)
        if label is not None:
            for tensor in row.tensors:
                yield tensor.renamed(f"{label}.{tensor.name}" if label else tensor.name)


def _allocated(replay: Replay, block: int) -> int:
    """The size of the block that the allocator gave: what its allocation added."""
    event = replay.trace.born_event[block]
    return replay.allocated_bytes[event] - (replay.allocated_bytes[event - 1] if event else 0)
