"""The time of a step from its ops: what each takes on the card and on the host, run through two queues."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from weakref import WeakKeyDictionary

from vramcast.gpus import GpuSpec
from vramcast.timing.costs import CostModel
from vramcast.timing.costs.model import OpCost
from vramcast.timing.host import HostModel, host_of, next_optimizers
from vramcast.timing.interval import interval
from vramcast.timing.iteration import last_iteration, steps_in, stretches
from vramcast.timing.modules import module_times
from vramcast.timing.parallel import Sync, exposed_seconds
from vramcast.timing.queues import Timeline, Work, steady
from vramcast.timing.results import (
    ARITHMETIC,
    BACKWARD,
    BANDWIDTH,
    COMMUNICATION,
    DATA,
    FORWARD,
    HOST,
    LAUNCHES,
    OPTIMIZER,
    SYNC,
    StepRows,
    StepTime,
)
from vramcast.timing.settings import TimingSettings, timing_settings
from vramcast.timing.streams import Communicate, has_collectives, steady_streams, stream_work
from vramcast.timing.waits import waits
from vramcast.timing.workspaces import turned_operands
from vramcast.trace import UNKNOWN_SIZE, StepTrace
from vramcast.trace.calls import BACKWARD_END as BACKWARD_END_MARK
from vramcast.trace.calls import ITERATION, MARKS, RECOMPUTED, REPLAYED, STREAM_MARKS, OpCalls
from vramcast.trace.schema import ALLOC, FREE, KINDS

_LIMITS = {"compute": ARITHMETIC, "memory": BANDWIDTH, "launch": LAUNCHES, "communication": COMMUNICATION}
_NO_COST = OpCost("host", 0.0, 0.0, 0.0, "launch", 0, 0.0)
_COMMUNICATION = OpCost("communication", 0.0, 0.0, 0.0, "communication", 0, 0.0)
_OF_COLLECTIVES = ("c10d.", "_c10d_functional.", "_dtensor.")
"""Ops whose time is that of the mark after them."""
_BETWEEN = ("copy-to-host", "copy-to-device")
_GRADIENTS = KINDS.index("gradients")
_FORWARD_PART, _BACKWARD_PART, _RECOMPUTE_PART, _OTHER_PART = range(4)
_MODULE_PART = {FORWARD: _FORWARD_PART, BACKWARD: _BACKWARD_PART}


def predict_step(
    trace: StepTrace,
    gpu: GpuSpec | None = None,
    *,
    host: HostModel | None = None,
    model: CostModel | None = None,
    further_passes: int = 0,
    sync: Sync | None = None,
    data_seconds: float = 0.0,
    keep_rows: bool = False,
    time_copies: bool = True,
) -> StepTime | None:
    """How long a step of `trace` takes on `gpu` (the card it was traced for); None where its ops are not known.

    `further_passes`: forward and backward passes of a step that are not in the trace; each is like the second.
    `data_seconds`: what the loop waits for its data in each step. `time_copies`: False where it is known otherwise how
    long copies between the card and the computer take.
    """
    calls = trace.calls
    if calls is None or trace.ends_refused:
        return None
    rows = last_iteration(calls)
    if not rows:
        return None
    spec = GpuSpec.from_dict(trace.gpu) if gpu is None else gpu
    model = model or CostModel.for_gpu(spec)
    turned = turned_operands(trace, calls, rows)
    step = Step(calls, rows, model, host or host_of(model.calibration), turned, time_copies=time_copies)
    return _time(trace, spec, step, further_passes, sync, data_seconds, keep_rows)


_known: WeakKeyDictionary[StepTrace, dict[tuple[str, TimingSettings], StepTime | None]] = WeakKeyDictionary()


def step_time(trace: StepTrace, gpu: GpuSpec) -> StepTime | None:
    """The same, worked out once for each trace, card and settings."""
    by_card = _known.setdefault(trace, {})
    key = gpu.id, timing_settings()
    if key not in by_card:
        by_card[key] = predict_step(trace, gpu)
    return by_card[key]


class Step:
    """The rows of one iteration with what each takes."""

    def __init__(
        self,
        calls: OpCalls,
        rows: range,
        model: CostModel,
        host: HostModel,
        turned: Mapping[int, tuple[bool, ...]],
        *,
        time_copies: bool = True,
    ) -> None:
        self.calls, self.rows, self.model, self.host = calls, rows, model, host
        self.count = steps_in(calls, rows)
        """How many steps the rows are: what they take is divided by it."""
        self.stretches = stretches(calls, rows)
        self.costs = costs_of(calls, model, turned)
        if not time_copies:
            self.costs = [_NO_COST if cost.kind in _BETWEEN else cost for cost in self.costs]
        self.works = works_of(calls, rows, self.costs, host, model.card.spec)
        if calls.ops[calls.call[rows.start]] != ITERATION:  # the loop is the program's own: it ends with the optimizer
            first = self.works[0]
            self.works[0] = replace(first, host_seconds=first.host_seconds + self.count * host.mark_seconds(ITERATION))


def costs_of(
    calls: OpCalls, model: CostModel, turned: Mapping[int, tuple[bool, ...]] = MappingProxyType({})
) -> list[OpCost]:
    """The cost of every distinct call. `turned`: of convolutions, by call (workspaces.py)."""
    tf32, cudnn_tf32 = calls.settings.get("matmul tf32", False), calls.settings.get("cudnn tf32", True)
    return [
        _COMMUNICATION
        if op in STREAM_MARKS or op == BACKWARD_END_MARK or op.startswith(_OF_COLLECTIVES)
        else _NO_COST
        if op in MARKS
        else model.cost(op, arguments, tf32=tf32, cudnn_tf32=cudnn_tf32, turned=turned.get(number))
        for number, (op, arguments) in enumerate(zip(calls.ops, calls.arguments, strict=True))
    ]


def works_of(
    calls: OpCalls, rows: range, costs: Sequence[OpCost], host: HostModel, gpu: GpuSpec | None = None
) -> list[Work]:
    """Each row as work for the two queues; with `gpu`, for a queue of each stream where there are collectives."""
    streams = gpu is not None and has_collectives(calls)
    known: dict[tuple[int, int, bool], Work] = {}
    works = []
    for row, is_next in zip(rows, next_optimizers(calls, rows), strict=True):
        key = number, flags, _ = calls.call[row], calls.flags[row], is_next
        work = known.get(key)
        if work is None:
            op, arguments, cost = calls.ops[number], calls.arguments[number], costs[number]
            host_seconds = 0.0 if flags & REPLAYED else host.issue_seconds(op, arguments, flags, cost.launches, is_next)
            work = Work(host_seconds, cost.device_seconds, cost.kernels, waits(op, arguments))
            if streams and gpu is not None:
                work = stream_work(op, arguments, work, gpu)
            known[key] = work
        works.append(work)
    return works


@dataclass(frozen=True, slots=True)
class _Elapsed:
    """How far each row brings the step: the later of host and card, row after row. Sums to the step."""

    seconds: array[float]
    busy: array[float]
    """The part of it in which the card works."""


def _elapsed(timeline: Timeline, begin: float, works: Sequence[Work]) -> _Elapsed:
    seconds, busy = array("d"), array("d")
    note_seconds, note_busy = seconds.append, busy.append
    before = begin
    for issued, started, ended, work in zip(timeline.issue_end, timeline.start, timeline.end, works, strict=True):
        now = issued if issued > before else before
        if ended > now:
            now = ended
        note_seconds(now - before)
        ran = ended - (started if started > before else before)  # it has ended by now
        # Between the kernels of one call the card may stand still until the host has launched the next.
        ran = ran if ran < work.device_seconds or work.kernels <= 1 else work.device_seconds
        note_busy(ran if ran > 0.0 else 0.0)
        before = now
    return _Elapsed(seconds, busy)


class _Totals:
    """Sums over the rows of a step, each counted as often as it happens."""

    def __init__(self, trace: StepTrace, step: Step, elapsed: _Elapsed, weights: Sequence[float]) -> None:
        waiting = elapsed.seconds[0] / step.count
        self.phases = {DATA: waiting, FORWARD: 0.0, BACKWARD: 0.0, SYNC: 0.0, OPTIMIZER: 0.0}
        self.limits: defaultdict[str, float] = defaultdict(float, {DATA: waiting})
        self.own: defaultdict[tuple[str, int], float] = defaultdict(float)
        self.recompute = self.flops = self.arithmetic = self.device = self.host = self.kernels = 0.0
        self.communication = 0.0
        calls, costs, works, first = step.calls, step.costs, step.works, step.rows.start
        own, limits, modules = self.own, self.limits, trace.modules
        for stretch in step.stretches:
            is_backward, part_of_phase = stretch.phase == BACKWARD, _MODULE_PART.get(stretch.phase, _OTHER_PART)
            in_phase = self.phases[stretch.phase]
            for row in range(stretch.first, stretch.end):
                at, number = row - first, calls.call[row]
                weight, cost, work = weights[at], costs[number], works[at]
                seconds, busy = elapsed.seconds[at + 1] * weight, elapsed.busy[at + 1] * weight
                in_phase += seconds
                limits[_LIMITS[cost.limited_by]] += busy
                limits[HOST] += seconds - busy
                recomputed = is_backward and bool(calls.flags[row] & RECOMPUTED)
                if recomputed:
                    self.recompute += seconds
                if seconds:
                    own[modules[calls.module[row]], _RECOMPUTE_PART if recomputed else part_of_phase] += seconds
                if isinstance(work, Communicate):
                    self.communication += work.device_seconds * weight
                else:
                    self.device += work.device_seconds * weight
                self.host += work.host_seconds * weight
                self.kernels += work.kernels * weight
                flops = cost.flops * weight
                if flops:
                    self.flops += flops
                    self.arithmetic += flops / step.model.card.rate(_unit(calls, number))
            self.phases[stretch.phase] = in_phase

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())

    @property
    def not_of_the_card(self) -> float:
        return self.phases[DATA] + self.phases[SYNC]


def _time(
    trace: StepTrace,
    gpu: GpuSpec,
    step: Step,
    further_passes: int,
    sync: Sync | None,
    data_seconds: float,
    keep_rows: bool,
) -> StepTime:
    calls, rows = step.calls, step.rows
    works = [Work(data_seconds * step.count, 0.0, 0, False), *step.works]
    run = steady_streams if has_collectives(calls) else steady
    timeline, period = run(works, step.host.latencies)
    elapsed = _elapsed(timeline, timeline.seconds - period, works)
    totals = _Totals(trace, step, elapsed, _weights(step, further_passes))
    if sync is not None:
        totals.phases[SYNC] = totals.limits[SYNC] = _exposed(trace, gpu, step, elapsed, sync)
    seconds = totals.seconds
    card_seconds = totals.device + totals.kernels * step.host.latencies.gap_seconds + totals.not_of_the_card
    by_values = any(note.topic == UNKNOWN_SIZE for note in trace.notes)
    low, high = interval(seconds, calibrated=step.model.calibrated, by_values=by_values)
    always = (FORWARD, BACKWARD, OPTIMIZER)
    return StepTime(
        seconds=seconds,
        low_seconds=low,
        high_seconds=high,
        phases={name: value for name, value in totals.phases.items() if value or name in always},
        recompute_seconds=totals.recompute,
        device_seconds=totals.device,
        host_seconds=totals.host,
        host=step.host.label,
        host_factor=step.host.factor,
        card_seconds=min(card_seconds, seconds),
        limits={name: value / seconds for name, value in totals.limits.items() if value > 0},
        communication_seconds=totals.communication,
        flops=totals.flops,
        peak_share=totals.arithmetic / seconds if seconds else None,
        waits=round(sum(work.waits for work in step.works) / step.count),
        ops=round(sum(calls.ops[calls.call[row]] not in MARKS for row in rows) / step.count),
        modules=module_times(totals.own),
        calibrated=step.model.calibrated,
        source=step.model.source,
        unknown_ops=dict(step.model.unknown_ops),
        rows=_rows(trace, step, timeline, elapsed) if keep_rows else None,
    )


def _weights(step: Step, further_passes: int) -> list[float]:
    """How often each row happens in a step: the second of several passes stands for those that were not traced."""
    rows, parts = step.rows, step.stretches
    weights = [1.0 / step.count] * len(rows)
    ends = [i for i, part in enumerate(parts) if part.phase == BACKWARD]
    if not further_passes or not ends:
        return weights
    last = min(1, len(ends) - 1)
    first = ends[last - 1] + 1 if last else 0
    for part in parts[first : ends[last] + 1]:
        for row in range(part.first, part.end):
            weights[row - rows.start] += further_passes
    return weights


def _unit(calls: OpCalls, number: int) -> str:
    """Which arithmetic units an op could use."""
    arguments = calls.arguments[number]
    for half in ("bf16", "f16"):
        if f"{half}(" in arguments:
            return half
    tf32 = calls.settings.get("cudnn tf32" if "convolution" in calls.ops[number] else "matmul tf32", False)
    return "tf32" if tf32 else "f32"


def _exposed(trace: StepTrace, gpu: GpuSpec, step: Step, elapsed: _Elapsed, sync: Sync) -> float:
    """Gradient sync that the last backward pass does not hide."""
    backward = [part for part in step.stretches if part.phase == BACKWARD]
    if not backward:
        return 0.0
    calls, rows, last = step.calls, step.rows, backward[-1]
    reached, now = [], 0.0
    for at in range(1, len(elapsed.seconds)):
        now += elapsed.seconds[at]
        reached.append(now)
    events = calls.event[last.first : last.end]
    begin = reached[last.first - rows.start - 1] if last.first > rows.start else 0.0
    ready = []
    for block in range(trace.n_blocks):
        born = trace.born_event[block]
        if trace.kind[block] == _GRADIENTS and events and events[0] <= born < events[-1]:
            row = last.first + bisect_left(events, born + 1)
            ready.append((reached[min(row, last.end - 1) - rows.start], trace.requested_bytes[block]))
    return exposed_seconds(sync, gpu, sorted(ready), begin, reached[last.end - rows.start - 1])


def _rows(trace: StepTrace, step: Step, timeline: Timeline, elapsed: _Elapsed) -> StepRows:
    calls, rows = step.calls, step.rows
    begin = max(timeline.seconds - sum(elapsed.seconds), 0.0)
    reached, now = [begin], begin
    for seconds in elapsed.seconds:
        now += seconds
        reached.append(now)
    return StepRows(
        names=[calls.ops[calls.call[row]] for row in rows],
        modules=[trace.modules[calls.module[row]] for row in rows],
        phases=[
            (part.phase, reached[part.first - rows.start + 1], reached[part.end - rows.start + 1])
            for part in step.stretches
        ],
        kernels=array("i", [work.kernels for work in step.works]),
        device_seconds=array("d", [work.device_seconds for work in step.works]),
        requested_bytes=_held(trace, calls.event[rows.start : rows.stop]),
        timeline=timeline,
    )


def _held(trace: StepTrace, events: Sequence[int]) -> array[int]:
    """Bytes requested and not yet freed after this many events."""
    levels, held = array("q", [0]), 0
    for code, arg in zip(trace.event_kind, trace.event_arg, strict=True):
        if code == ALLOC:
            held += trace.requested_bytes[arg]
        elif code == FREE:
            held -= trace.requested_bytes[arg]
        levels.append(held)
    return array("q", [levels[event] for event in events])
