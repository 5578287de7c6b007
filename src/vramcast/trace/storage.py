"""A trace as one file: gzipped JSON, columns as lists of integers, with a format name and version."""

from __future__ import annotations

import gzip
import json
import zlib
from array import array
from pathlib import Path
from typing import Any

from vramcast.outputs import write_file
from vramcast.trace.calls import OpCalls
from vramcast.trace.growth import Growth
from vramcast.trace.host import HostUse
from vramcast.trace.schema import EVENT_KINDS, KINDS, Note, StepTrace, TraceError

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
_SHAPES, _SHAPE, _HOST, _GROWTH = "shapes", "shape", "host", "growth"
_CALLS = "calls"
_CALL_COLUMNS = (("call", "i"), ("module", "i"), ("phase", "i"), ("flags", "b"), ("event", "q"))
_SCALARS: tuple[tuple[str, type], ...] = (
    ("torch_version", str),
    ("allocator_conf", str),
    ("capacity_bytes", int),
    ("context_bytes", int),
    ("source", str),
)


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
    document[_HOST] = None if trace.host is None else trace.host.to_dict()
    document[_GROWTH] = None if trace.growth is None else trace.growth.to_dict()
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
        if tuple(document["kinds"]) != KINDS or tuple(document["event_kinds"]) != EVENT_KINDS:
            raise TraceError(f"{path} uses kinds this version does not know")
        fields: dict[str, Any] = {name: _typed(document, name, kind) for name, kind in _SCALARS}
        fields |= {name: tuple(str(item) for item in document[name]) for name in _TABLES}
        fields |= {name: array(code, document[name]) for name, code in (*_EVENT_COLUMNS, *_BLOCK_COLUMNS)}
        if _SHAPES in document:
            fields[_SHAPES] = tuple(str(item) for item in document[_SHAPES])
            fields[_SHAPE] = array("i", document[_SHAPE])
        if document.get(_HOST) is not None:
            fields[_HOST] = HostUse.from_dict(document[_HOST])
        if document.get(_GROWTH) is not None:
            fields[_GROWTH] = Growth.from_dict(document[_GROWTH])
        if _CALLS in document:
            fields[_CALLS] = _calls(document[_CALLS])
        notes = tuple(
            Note(str(n["topic"]), str(n["text"]), n.get("where"), int(n.get("count", 1))) for n in document["notes"]
        )
        return StepTrace(
            gpu=dict(document["gpu"]),
            versions=dict(document["versions"]),
            notes=notes,
            **fields,
        )
    except KeyError as error:
        raise TraceError(f"{path} is damaged: {error.args[0]!r} is missing") from error
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise TraceError(f"{path} is damaged: {error}") from error


def _calls_document(calls: OpCalls) -> dict[str, Any]:
    columns = {name: getattr(calls, name).tolist() for name, _ in _CALL_COLUMNS}
    return {"ops": list(calls.ops), "arguments": list(calls.arguments), "settings": dict(calls.settings), **columns}


def _calls(document: dict[str, Any]) -> OpCalls:
    return OpCalls(
        ops=tuple(str(item) for item in document["ops"]),
        arguments=tuple(str(item) for item in document["arguments"]),
        settings={str(name): bool(value) for name, value in document["settings"].items()},
        **{name: array(code, document[name]) for name, code in _CALL_COLUMNS},
    )


def _read_document(path: Path) -> dict[str, Any]:
    try:
        with gzip.open(path, "rb") as file:
            document = json.loads(file.read())
    except FileNotFoundError as error:
        raise TraceError(f"no such file: {path}") from error
    except (gzip.BadGzipFile, zlib.error, EOFError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TraceError(f"{path} is not a vramcast trace, or is cut short ({error})") from error
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}") from error
    if not isinstance(document, dict):
        raise TraceError(f"{path} is not a vramcast trace")
    return document


def _typed(document: dict[str, Any], name: str, kind: type) -> Any:
    value = document[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{name!r} should be {kind.__name__}, not {type(value).__name__}")
    return value
