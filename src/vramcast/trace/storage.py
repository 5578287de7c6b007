"""A trace as one file: gzipped JSON, columns as lists of integers, with a format name and version."""

from __future__ import annotations

import gzip
import json
import re
from array import array
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.base.input_files import LARGEST_RESULT_BYTES, read_json
from vramcast.base.outputs import write_file
from vramcast.base.torch_versions import version_of
from vramcast.trace.calls import OPTIMIZER, OpCalls, parameter_count
from vramcast.trace.growth import Growth
from vramcast.trace.host import HostUse
from vramcast.trace.schema import BLOCK_EVENTS, EVENT_KINDS, KINDS, CardLimits, Note, StepTrace, TraceError

FORMAT = "vramcast-trace"
VERSION = 1

# (column, array typecode); the derived columns are worked out again on load, so they cannot disagree.
_EVENT_COLUMNS = (("event_kind", "b"), ("event_arg", "q"))
_BLOCK_COLUMNS = (
    ("requested_bytes", "q"),
    ("op", "i"),
    ("module", "i"),
    ("phase", "i"),
    ("kind", "b"),
    ("stream", "i"),
)
_TABLES = ("ops", "modules", "phases", "labels")
# Files of earlier releases do not have these.
_SHAPES, _SHAPE, _HOST, _GROWTH, _CARDS = "shapes", "shape", "host", "growth", "cards"
_CALLS, _LINES = "calls", "lines"
_CALL_COLUMNS = (("call", "i"), ("module", "i"), ("phase", "i"), ("flags", "b"), ("event", "q"))
_SCALARS: tuple[tuple[str, type], ...] = (
    ("torch_version", str),
    ("allocator_conf", str),
    ("capacity_bytes", int),
    ("context_bytes", int),
    ("source", str),
)
_LARGEST_SIZE = 2**50
"""The largest block and the largest card, in bytes: a thousand times what there is."""
_LARGEST_TOTAL = 2**62
_PRIVATE_POOLS = -(1 << 20)  # from here down: streams in private pools, numbered by allocator/private_pools.py
_MOST_COUNTED = 10**9
_LONGEST_NAME = 4_000
_IMPOSSIBLE_NUMBER = re.compile(r"\d{40}")


def save(trace: StepTrace, path: Path) -> None:
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        # Written out so that a file stays readable if a later version adds kinds.
        "kinds": KINDS,
        "event_kinds": EVENT_KINDS,
        "gpu": dict(trace.gpu),
        "versions": dict(trace.versions),
        "notes": [{"topic": n.topic, "text": n.text, "where": n.where, "count": n.count} for n in trace.notes],
    }
    for name, _ in _SCALARS:
        document[name] = getattr(trace, name)
    for name in (*_TABLES, _SHAPES):
        document[name] = list(getattr(trace, name))
    document[_SHAPE] = trace.shape.tolist()
    document[_LINES] = [list(line) for line in trace.lines]
    document[_HOST] = None if trace.host is None else trace.host.to_dict()
    document[_GROWTH] = None if trace.growth is None else trace.growth.to_dict()
    if trace.cards:
        document[_CARDS] = [[limits.card, limits.capacity_bytes, limits.context_bytes] for limits in trace.cards]
    for name, _ in (*_EVENT_COLUMNS, *_BLOCK_COLUMNS):
        document[name] = getattr(trace, name).tolist()
    if trace.calls is not None:
        document[_CALLS] = _calls_document(trace.calls)
    write_file(path, gzip.compress(json.dumps(document, separators=(",", ":")).encode(), compresslevel=3))


def load(path: Path) -> StepTrace:
    document = _read_document(path)
    if document.get("format") != FORMAT:
        raise TraceError(f"{path} is not a vramcast trace; `vramcast run --save FILE` writes one")
    if document.get("version") != VERSION:
        raise TraceError(
            f"{path} is a trace of version {document.get('version')!r}; "
            f"this vramcast reads version {VERSION}: trace the run again"
        )
    try:
        if (
            tuple(document["kinds"]) != KINDS
            or tuple(document["event_kinds"]) != EVENT_KINDS[: len(document["event_kinds"])]
        ):
            raise TraceError(f"{path} uses kinds this version does not know")
        fields: dict[str, Any] = {name: _typed(document, name, kind) for name, kind in _SCALARS}
        fields |= {name: _names(document[name]) for name in _TABLES}
        fields |= {name: array(code, document[name]) for name, code in (*_EVENT_COLUMNS, *_BLOCK_COLUMNS)}
        if _SHAPES in document:
            fields[_SHAPES] = _names(document[_SHAPES])
            fields[_SHAPE] = array("i", document[_SHAPE])
        if document.get(_HOST) is not None:
            fields[_HOST] = HostUse.from_dict(document[_HOST])
        if document.get(_GROWTH) is not None:
            fields[_GROWTH] = Growth.from_dict(document[_GROWTH])
        if _CARDS in document:
            fields[_CARDS] = tuple(CardLimits(*map(_whole, row)) for row in document[_CARDS])
        if _LINES in document:
            fields[_LINES] = tuple((int(op), int(module), _names([line])[0]) for op, module, line in document[_LINES])
        if _CALLS in document:
            fields[_CALLS] = _calls(document[_CALLS])
        trace = StepTrace(
            gpu=dict(document["gpu"]),
            versions={str(name): str(version) for name, version in document["versions"].items()},
            notes=tuple(_note(note) for note in document["notes"]),
            **fields,
        )
        _check_ranges(trace)
        return trace
    except KeyError as error:
        raise TraceError(f"{path} is damaged: {error.args[0]!r} is missing") from error
    except (TypeError, ValueError, OverflowError, AttributeError, TraceError) as error:
        raise TraceError(f"{path} is damaged: {error}") from error


def _calls_document(calls: OpCalls) -> dict[str, Any]:
    columns = {name: getattr(calls, name).tolist() for name, _ in _CALL_COLUMNS}
    return {"ops": list(calls.ops), "arguments": list(calls.arguments), "settings": dict(calls.settings), **columns}


def _calls(document: dict[str, Any]) -> OpCalls:
    arguments = tuple(str(item) for item in document["arguments"])
    if any(_IMPOSSIBLE_NUMBER.search(text) for text in arguments):
        raise ValueError("an argument of an op is a number that no op takes")
    for op, text in zip(document["ops"], arguments, strict=True):
        if op == OPTIMIZER:
            parameter_count(text)
    return OpCalls(
        ops=_names(document["ops"]),
        arguments=arguments,
        settings={str(name): bool(value) for name, value in document["settings"].items()},
        **{name: array(code, document[name]) for name, code in _CALL_COLUMNS},
    )


def _read_document(path: Path) -> dict[str, Any]:
    try:
        document = read_json(path, LARGEST_RESULT_BYTES)
    except UsageError as error:
        raise TraceError(f"not a vramcast trace: {error}") from None
    if not isinstance(document, dict):
        raise TraceError(f"{path} is not a vramcast trace")
    return document


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _names(names: Any) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) and len(name) <= _LONGEST_NAME for name in names):
        raise ValueError(f"a table of names holds something else, or names of more than {_LONGEST_NAME:,} characters")
    return tuple(names)


def _note(fields: Mapping[str, Any]) -> Note:
    where, count = fields.get("where"), fields.get("count", 1)
    if not (where is None or isinstance(where, str)) or type(count) is not int or not 0 < count <= _MOST_COUNTED:
        raise ValueError("a note has an impossible place or count")
    return Note(str(fields["topic"]), str(fields["text"]), where, count)


def _check_ranges(trace: StepTrace) -> None:
    """What the columns do not contradict, but no run can have: StepTrace itself looks at the columns."""
    for name, most in (("capacity_bytes", _LARGEST_TOTAL), ("context_bytes", _LARGEST_SIZE)):
        if not 0 <= getattr(trace, name) <= most:
            raise ValueError(f"{name!r} is {getattr(trace, name):,}, which no card has")
    version_of(trace.torch_version)
    if trace.requested_bytes and max(trace.requested_bytes) > _LARGEST_SIZE:
        raise ValueError("a block is larger than any card")
    if sum(trace.requested_bytes) > _LARGEST_TOTAL:
        raise ValueError("its blocks are larger together than any run's")
    if any(_PRIVATE_POOLS < stream < 0 for stream in trace.stream):
        raise ValueError("a block is of a negative stream")
    for limits in trace.cards:
        if not (0 <= limits.capacity_bytes <= _LARGEST_TOTAL and 0 <= limits.context_bytes <= _LARGEST_SIZE):
            raise ValueError(f"card {limits.card} has a size that no card has")
    labels = len(trace.labels)
    for kind, argument in zip(trace.event_kind, trace.event_arg, strict=True):
        if kind not in BLOCK_EVENTS and not 0 <= argument < labels:
            raise ValueError("an event points outside the table of labels")
    if trace.host is not None:
        sizes = (trace.host.peak_bytes, trace.host.pinned_bytes, trace.host.paged_bytes, *trace.host.parts.values())
        if not all(0 <= size <= _LARGEST_SIZE for size in sizes):
            raise ValueError("a size of the computer's memory is negative or larger than any")
    if trace.calls is not None and trace.calls.event and not _rises(trace.calls.event, trace.n_events):
        raise ValueError("the calls are not in the order of the events")


def _rises(column: array[int], most: int) -> bool:
    return column[0] >= 0 and column[-1] <= most and all(before <= after for before, after in pairwise(column))


def _typed(document: dict[str, Any], name: str, kind: type) -> Any:
    value = document[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{name!r} should be {kind.__name__}, not {type(value).__name__}")
    return value
