"""Operators matched to allocator events, without a GPU: the counters and the history are made up."""

from __future__ import annotations

import gzip
import json
import weakref

import pytest
import torch

from vramcast.features.measure import op_record
from vramcast.features.measure.op_record import _Call, build_atlas, compress_atlas, describe_arguments, signed_events


def test_arguments_are_described_by_dtype_shape_and_odd_strides() -> None:
    x = torch.empty(2, 3, device="meta")
    text = describe_arguments(
        (x, x.t(), [x.bfloat16(), None], 1, True, 0.5), {"dtype": torch.float16, "memory_format": torch.channels_last}
    )
    assert text == (
        "meta:f32(2,3), meta:f32(3,2){1,3}, [meta:bf16(2,3), None], 1, True, 0.5, dtype=float16, "
        "memory_format=channels_last"
    )


def test_a_sparse_tensor_is_described_without_strides() -> None:
    sparse = torch.sparse_coo_tensor([[0, 1]], torch.ones(2, 3), (4, 3), check_invariants=True)
    assert describe_arguments((sparse,), {}) == "cpu:f32(4,3)sparse_coo"


def test_events_are_signed_and_other_entries_ignored() -> None:
    entries = [
        {"action": "segment_alloc", "size": 2097152},
        {"action": "alloc", "size": 100},
        {"action": "free_requested", "size": 100},
        {"action": "free_completed", "size": 100},
    ]
    assert signed_events(entries) == [100, -100]


def test_events_fall_to_the_operator_that_ran_or_to_outside() -> None:
    calls = [
        _Call("aten.mm.default", "a", "forward", 10, 12),
        _Call("aten.add.Tensor", "b", "forward", 13, 14),
        _Call("aten.mm.default", "a", "forward", 14, 16),
    ]
    atlas = build_atlas(calls, [0, 2], [512, -512, -7, 64, 512, -512, -9], first_event=10)

    def read(step: list[int]) -> list[tuple[str, list[int]]]:
        return [(atlas["ops"][atlas["rows"][r][0]], atlas["rows"][r][3]) for r in step]

    first, second = atlas["steps"]
    assert read(first) == [("aten.mm.default", [512, -512]), ("outside", [-7]), ("aten.add.Tensor", [64])]
    assert read(second) == [("aten.mm.default", [512, -512]), ("outside", [-9])]
    assert first[0] == second[0], "equal calls share one row"


def test_the_recorder_keeps_no_tensor_alive_and_names_phases_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    count = iter(range(1000))
    monkeypatch.setattr(op_record._OpRecorder, "event_count", lambda self: next(count))
    recorder = op_record._OpRecorder(0)
    with recorder:
        x = torch.ones(3)
        y = x + 1
        recorder.boundary("forward")
        z = y * 2
        recorder.boundary("backward")
    dead = [weakref.ref(t.untyped_storage()) for t in (x, y, z)]
    del x, y, z
    assert all(ref() is None for ref in dead)
    assert [(c.name, c.phase) for c in recorder.calls] == [
        ("aten.ones.default", "forward"),
        ("aten.add.Tensor", "forward"),
        ("aten.mul.Tensor", "backward"),
    ]
    assert [(c.first_event, c.end_event) for c in recorder.calls] == [(0, 1), (2, 3), (4, 5)]


def test_the_recorder_sees_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_record._OpRecorder, "event_count", lambda self: 0)
    recorder = op_record._OpRecorder(0)
    x = torch.ones(3, requires_grad=True)
    with recorder:
        x.exp().sum().backward()
    assert "aten.mul.Tensor" in {call.name for call in recorder.calls}


def test_a_large_atlas_is_shortened_in_order() -> None:
    atlas = {"rows": [], "steps": [list(range(3000)), list(range(3000, 0, -1))]}
    whole = len(compress_atlas(atlas))
    assert json.loads(gzip.decompress(compress_atlas(atlas)))["steps"] == atlas["steps"]
    last = json.loads(gzip.decompress(compress_atlas(atlas, whole - 1)))
    assert last["steps"] == [[], atlas["steps"][1]]
    assert json.loads(gzip.decompress(compress_atlas(atlas, 100)))["steps"] == []
