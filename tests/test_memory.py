"""The replay and the account: sums that must hold to the byte, and a run worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.samples import build, random_trace, transformer
from vramcast.base.units import GIB, MIB
from vramcast.errors import CannotPredict, UsageError
from vramcast.gpus import find_gpu
from vramcast.memory import ModuleNode, Replay, account, predict, replay
from vramcast.memory.account import CONTEXT, FRAGMENTATION, ROUNDING
from vramcast.memory.module_peaks import forward_peaks
from vramcast.trace import KINDS, StepTrace, TraceBuilder

seeds = st.integers(min_value=0, max_value=10**6)
confs = st.sampled_from(["", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4"])


def _live_bytes(run: Replay, event: int) -> int:
    return sum(run.trace.requested_bytes[block] for block in run.live_blocks(event))


@settings(max_examples=40, deadline=None)
@given(seed=seeds, conf=confs)
def test_levels_are_ordered_and_match_the_live_set(seed: int, conf: str) -> None:
    run = replay(random_trace(seed, events=150), conf)
    assert run.n_events == run.trace.n_events
    for event in range(0, run.n_events, 13):
        assert run.requested_bytes[event] == _live_bytes(run, event)
        assert run.requested_bytes[event] <= run.allocated_bytes[event] <= run.reserved_bytes[event]


@settings(max_examples=40, deadline=None)
@given(seed=seeds, conf=confs, at=st.floats(min_value=0, max_value=1))
def test_the_account_sums_to_the_byte_at_any_event(seed: int, conf: str, at: float) -> None:
    run = replay(random_trace(seed, events=150), conf)
    for event in (None, int(at * (run.n_events - 1))):
        result = account(run, event=event)
        assert sum(part.size_bytes for part in result.parts) == result.device_bytes
        reserved = run.peak_reserved.reserved_bytes if event is None else result.moment.reserved_bytes
        assert result.device_bytes == reserved + run.trace.context_bytes
        kinds = sum(result.part(kind) for kind in KINDS)
        assert kinds == result.moment.requested_bytes == result.modules.total_bytes
        assert all(part.size_bytes >= 0 for part in result.parts)
        for node in result.modules.walk():
            _check_node(node)


def _check_node(node: ModuleNode) -> None:
    assert node.total_bytes == node.self_bytes + sum(child.total_bytes for child in node.children)
    assert node.total_bytes == sum(node.by_kind_bytes.values())
    assert [c.total_bytes for c in node.children] == sorted((c.total_bytes for c in node.children), reverse=True)


@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_the_timeline_keeps_every_peak(seed: int) -> None:
    run = replay(random_trace(seed, events=150))
    result = account(run, timeline_points=7)
    assert len(result.timeline) <= 7
    assert max(point.allocated_bytes for point in result.timeline) == max(run.allocated_bytes)
    assert max(point.reserved_bytes for point in result.timeline) == max(run.reserved_bytes)
    for point in result.timeline:
        assert sum(point.by_kind_bytes) == _live_bytes(run, point.event)


@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_phases_and_steps_together_hold_the_peaks(seed: int) -> None:
    run = replay(random_trace(seed, events=150))
    result = account(run)
    for stretches in (result.steps, result.phases):
        assert max(s.peak_allocated_bytes for s in stretches) == run.peak_allocated.allocated_bytes
        assert max(s.peak_reserved_bytes for s in stretches) == run.peak_reserved.reserved_bytes


def test_a_run_worked_out_by_hand() -> None:
    run = replay(transformer(layers=2, steps=2))
    result = account(run)
    # The second backward pass has begun: both layers' activations and the first gradient are alive together.
    assert (result.moment.step, result.moment.phase, result.moment.op) == (1, "backward", "aten.mm")
    assert result.moment.module == "Net.layers.1"
    assert result.part("weights") == 3 * 64 * MIB
    assert result.part("gradients") == 64 * MIB
    assert result.part("optimizer state") == 6 * 64 * MIB
    assert result.part("saved activations") == 2 * (96 * MIB + 100)
    assert result.part("temporaries") == (200 + 32) * MIB
    assert result.part("inputs") == 3 * MIB
    assert result.part(CONTEXT) == find_gpu("rtx-4090").context_bytes
    assert result.part(ROUNDING) == 2 * (512 - 100)
    assert result.part(FRAGMENTATION) == result.moment.reserved_bytes - result.moment.allocated_bytes
    assert [node.name for node in result.modules.children] == ["Net"]
    names = {node.name: node.total_bytes for node in result.modules.walk()}
    assert names["Net.head"] == (64 + 200) * MIB
    assert names["Net.layers.0"] == 64 * MIB + 96 * MIB + 100
    assert names["Net.layers.1"] == names["Net.layers.0"] + (32 + 64) * MIB
    assert names["Net"] == names["Net.head"] + names["Net.layers.0"] + names["Net.layers.1"]
    assert result.modules.self_bytes == 6 * 64 * MIB + 3 * MIB


def test_the_account_of_any_other_event() -> None:
    run = replay(transformer(layers=2, steps=2))
    in_optimizer = next(e for e in range(run.n_events) if run.moment(e).op == "aten._foreach_sqrt")
    result = account(run, event=in_optimizer)
    assert result.part("temporaries") == 3 * 64 * MIB
    assert result.part("gradients") == 3 * 64 * MIB
    assert result.part("saved activations") == 0


def test_the_peak_of_reserved_is_where_most_is_allocated() -> None:
    run = replay(transformer())
    top = run.peak_reserved
    at_top = [e for e in range(run.n_events) if run.reserved_bytes[e] == top.reserved_bytes]
    assert top.allocated_bytes == max(run.allocated_bytes[e] for e in at_top)


def test_the_account_is_not_of_a_moment_when_most_is_free_again() -> None:
    """As where the first optimizer step raises what is reserved by a little, and the run ends before the next batch."""
    builder = TraceBuilder()
    phase, module, op = builder.intern_phase("forward"), builder.intern_module("Net"), builder.intern_op("aten.mm")
    saved = [builder.alloc(100 * MIB, op, module, phase) for _ in range(10)]
    for block in saved:
        builder.set_kind(block, KINDS.index("saved activations"))
        builder.free(block)
    builder.alloc(300 * MIB, op, module, phase)
    run = replay(build(builder))
    assert (run.peak_reserved.reserved_bytes, run.peak_reserved.allocated_bytes) == (1300 * MIB, 300 * MIB)
    result = account(run)
    assert result.moment == run.peak_allocated
    assert result.part("saved activations") == 1000 * MIB
    assert result.part(FRAGMENTATION) == 300 * MIB
    assert result.device_bytes == 1300 * MIB + run.trace.context_bytes


def test_a_limit_that_is_too_small_is_refused_where_it_happens() -> None:
    trace = transformer(layers=2, steps=2)
    run = replay(trace, capacity_bytes=400 * MIB)
    assert not run.completed
    (refusal,) = run.refusals
    assert refusal.at.phase == "forward"
    assert refusal.at.step == 0
    assert run.n_events == refusal.at.event
    assert replay(trace, capacity_bytes=4 * GIB).completed


def test_cached_memory_is_given_back_before_refusing() -> None:
    b = TraceBuilder()
    op, module, phase = b.intern_op("o"), b.intern_module(""), b.intern_phase("forward")
    first = b.alloc(100 * MIB, op, module, phase)
    b.free(first)
    b.alloc(150 * MIB, op, module, phase)
    trace = build(b)
    unlimited, limited = replay(trace), replay(trace, capacity_bytes=200 * MIB)
    assert unlimited.peak_reserved.reserved_bytes == 250 * MIB
    assert limited.completed and limited.retries == 1
    assert limited.peak_reserved.reserved_bytes == 150 * MIB


def _refused_once(goes_on: bool) -> StepTrace:
    b = TraceBuilder()
    op, module, phase = b.intern_op("o"), b.intern_module(""), b.intern_phase("forward")
    b.alloc(100 * MIB, op, module, phase)
    refused = b.alloc(500 * MIB, op, module, phase)
    b.mark("oom")
    b.free(refused)
    if goes_on:
        b.alloc(50 * MIB, op, module, phase)
    return build(b, capacity_bytes=300 * MIB)


def test_a_run_that_survives_a_refusal_fits() -> None:
    prediction = predict(_refused_once(goes_on=True))
    assert prediction.fits and not prediction.at_least
    assert prediction.peak_allocated_bytes == 150 * MIB
    assert prediction.account.part("temporaries") == 150 * MIB


def test_a_run_that_ends_with_a_refusal_needs_at_least_that() -> None:
    prediction = predict(_refused_once(goes_on=False))
    assert not prediction.fits and prediction.at_least
    assert prediction.peak_allocated_bytes == 600 * MIB
    assert prediction.out_of_memory is not None
    assert prediction.out_of_memory.at.reserved_bytes == 100 * MIB


def test_prediction_on_the_card_it_was_traced_for() -> None:
    trace = transformer()
    prediction = predict(trace)
    spec = find_gpu("rtx-4090")
    assert prediction.fits
    assert prediction.gpu == spec
    assert prediction.limit_bytes == spec.total_memory_bytes
    assert prediction.device_bytes == prediction.peak_reserved_bytes + spec.context_bytes
    assert prediction.headroom_bytes == prediction.limit_bytes - prediction.device_bytes
    assert prediction.context_bytes == spec.context_bytes
    assert prediction.account.device_bytes == prediction.device_bytes
    assert prediction.steps == 3
    assert prediction.versions == {"torch": "2.11.0+cu130", "transformers": "5.17.0"}


def test_prediction_for_another_card_and_limit() -> None:
    trace = transformer(scale=8)
    big, small = find_gpu("h200"), find_gpu("rtx-3060")
    assert predict(trace, gpu=big).fits
    elsewhere = predict(trace, gpu=small)
    assert not elsewhere.fits and elsewhere.headroom_bytes < 0
    assert elsewhere.limit_bytes == small.total_memory_bytes
    assert [note.topic for note in elsewhere.notes] == ["unknown read", "another card"]
    assert elsewhere.account.part(CONTEXT) == small.context_bytes
    limited = predict(trace, capacity_bytes=2 * GIB)
    assert not limited.fits
    assert limited.limit_bytes == 2 * GIB + find_gpu("rtx-4090").context_bytes


def test_fits_means_a_replay_under_the_limit_not_a_peak_below_it() -> None:
    """The smallest limit that fits is one where one page less does not."""
    trace = transformer(layers=3)
    low, high = 0, predict(trace).peak_reserved_bytes
    while high - low > 2 * MIB:
        middle = (low + high) // 2
        if replay(trace, capacity_bytes=middle).completed:
            high = middle
        else:
            low = middle
    assert predict(trace, capacity_bytes=high).fits
    assert not predict(trace, capacity_bytes=low).fits
    assert high <= predict(trace).peak_reserved_bytes


def test_another_allocator_configuration() -> None:
    trace = random_trace(5, events=400)
    plain, expandable = predict(trace), predict(trace, allocator_conf="expandable_segments:True")
    assert plain.peak_reserved_bytes > expandable.peak_reserved_bytes
    assert plain.fits and expandable.fits
    assert expandable.allocator_conf == "expandable_segments:True"


def test_what_cannot_be_predicted() -> None:
    with pytest.raises(CannotPredict, match="allocated nothing"):
        predict(build(TraceBuilder()))
    with pytest.raises(UsageError, match="leaves nothing"):
        predict(transformer(), gpu=find_gpu("t4"), capacity_bytes=-1)
    with pytest.raises(UsageError):
        predict(transformer(), allocator_conf="no_such_key:1")


def test_forward_peaks_by_module() -> None:
    run = replay(transformer(layers=2, steps=2))
    peaks = forward_peaks(run)
    assert set(peaks) == {"Net", "Net.layers", "Net.head", "Net.layers.0", "Net.layers.1"}
    assert peaks["Net"] == peaks["Net.head"] == max(peaks.values())
    assert peaks["Net.layers"] == peaks["Net.layers.1"] > peaks["Net.layers.0"]
