"""The trace as data: building, saving, loading, and refusing what cannot be one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.samples import build, random_trace, transformer
from vramcast.trace import KINDS, Note, StepTrace, TraceBuilder
from vramcast.trace.schema import TraceError

COLUMNS = (
    *("event_kind", "event_arg", "requested_bytes", "op", "module", "phase", "kind", "stream"),
    *("born_event", "died_event", "step"),
)


def test_builder_records_lifetimes_and_steps() -> None:
    b = TraceBuilder()
    op, module, phase = b.intern_op("mm"), b.intern_module("m"), b.intern_phase("forward")
    first = b.alloc(10, op, module, phase)
    b.mark("step")
    second = b.alloc(20, op, module, phase, stream=3)
    b.free(first)
    trace = build(b)
    assert (first, second) == (0, 1)
    assert trace.born_event.tolist() == [0, 2]
    assert trace.died_event.tolist() == [3, -1]
    assert trace.step.tolist() == [0, 1]
    assert trace.stream.tolist() == [0, 3]
    assert trace.steps == 1


def test_names_are_interned_once() -> None:
    b = TraceBuilder()
    assert b.intern_op("a") == b.intern_op("a") == 0
    assert b.intern_op("b") == 1
    assert b.intern_module("a") == 0


def test_last_kind_and_module_count() -> None:
    b = TraceBuilder(default_kind="outputs/other")
    block = b.alloc(1, b.intern_op("o"), b.intern_module("x"), b.intern_phase("p"))
    other = b.alloc(1, 0, 0, 0)
    b.set_kind(block, KINDS.index("weights"))
    b.set_kind(block, KINDS.index("buffers"))
    b.set_module(block, b.intern_module("y"))
    trace = build(b)
    assert [KINDS[k] for k in trace.kind] == ["buffers", "outputs/other"]
    assert trace.modules[trace.module[block]] == "y"
    assert trace.modules[trace.module[other]] == "x"


def test_live_bytes_while_recording() -> None:
    b = TraceBuilder()
    op, module, phase = b.intern_op("o"), b.intern_module("net"), b.intern_phase("p")
    kept, freed = b.alloc(5, op, module, phase), b.alloc(7, op, module, phase)
    b.set_kind(kept, KINDS.index("weights"))
    b.free(freed)
    assert b.live_blocks().bytes_by_kind() == {"weights": 5}
    assert b.live_blocks().bytes_by_module() == {"net": 5}


def test_equal_notes_count_up() -> None:
    b = TraceBuilder()
    for _ in range(3):
        b.note("read", "item()", "t.py:1")
    b.note("read", "item()", "t.py:2")
    b.alloc(1, b.intern_op("o"), b.intern_module(""), b.intern_phase("p"))
    assert list(build(b).notes) == [Note("read", "item()", "t.py:1", 3), Note("read", "item()", "t.py:2", 1)]


def test_build_is_a_snapshot() -> None:
    b = TraceBuilder()
    b.alloc(1, b.intern_op("o"), b.intern_module(""), b.intern_phase("p"))
    early = build(b)
    b.alloc(2, 0, 0, 0)
    assert (early.n_blocks, build(b).n_blocks) == (1, 2)


@pytest.mark.parametrize("trace", [transformer(), random_trace(1), random_trace(2)], ids=["model", "r1", "r2"])
def test_save_and_load_give_the_same_trace(trace: StepTrace, tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    trace.save(path)
    again = StepTrace.load(path)
    for column in COLUMNS:
        assert getattr(again, column) == getattr(trace, column), column
    for name in ("ops", "modules", "phases", "labels", "notes", "gpu", "versions", "source", "steps", "torch_version"):
        left, right = getattr(again, name), getattr(trace, name)
        if name == "gpu":  # JSON has no tuples
            left, right = json.dumps(left), json.dumps(right)
        assert left == right, name
    assert (again.capacity_bytes, again.context_bytes) == (trace.capacity_bytes, trace.context_bytes)


def _rewrite(path: Path, **changes: object) -> None:
    document = json.loads(gzip.decompress(path.read_bytes()))
    document.update(changes)
    path.write_bytes(gzip.compress(json.dumps(document).encode()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "something"}, "not a vramcast trace"),
        ({"version": 99}, "version 99"),
        ({"capacity_bytes": "many"}, "'capacity_bytes' should be int"),
        ({"requested_bytes": [1]}, "rows for 1 blocks"),
        ({"event_arg": []}, "event columns differ"),
        ({"ops": []}, "'op' points outside"),
        ({"kinds": ["x"]}, "kinds this version does not know"),
        ({"notes": None}, "damaged"),
        ({"requested_bytes": "abc"}, "damaged"),
    ],
)
def test_a_damaged_file_is_named_and_explained(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    path = tmp_path / "run.trace"
    transformer().save(path)
    _rewrite(path, **changes)
    with pytest.raises(TraceError, match=message):
        StepTrace.load(path)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    transformer().save(path)
    document = json.loads(gzip.decompress(path.read_bytes()))
    del document["stream"]
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    with pytest.raises(TraceError, match="'stream' is missing"):
        StepTrace.load(path)


def test_files_that_are_no_traces(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        StepTrace.load(tmp_path / "nothing")
    text = tmp_path / "text"
    text.write_text("hello")
    with pytest.raises(TraceError, match="not a vramcast trace"):
        StepTrace.load(text)
    cut = tmp_path / "cut"
    transformer().save(cut)
    cut.write_bytes(cut.read_bytes()[:-20])
    with pytest.raises(TraceError, match="cut short"):
        StepTrace.load(cut)


def test_a_sequence_that_cannot_have_happened_is_refused() -> None:
    b = TraceBuilder()
    block = b.alloc(1, b.intern_op("o"), b.intern_module(""), b.intern_phase("p"))
    b.free(block)
    b.free(block)
    with pytest.raises(TraceError, match="frees block 0, which is not alive"):
        build(b)


def test_a_run_that_ended_refused() -> None:
    b = TraceBuilder()
    b.alloc(1, b.intern_op("o"), b.intern_module(""), b.intern_phase("p"))
    refused = b.alloc(100, 0, 0, 0)
    b.mark("oom")
    b.free(refused)
    assert build(b).ends_refused
    b.alloc(2, 0, 0, 0)
    assert not build(b).ends_refused
    assert not transformer().ends_refused
