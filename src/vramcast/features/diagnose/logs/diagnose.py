"""From what a log says to a diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vramcast.base.errors import UsageError
from vramcast.features.diagnose.logs import findings
from vramcast.features.diagnose.logs import sample as q
from vramcast.features.diagnose.logs.changes import gains_and_losses, scale_note
from vramcast.features.diagnose.logs.collect import PROBLEM, Collected
from vramcast.features.diagnose.logs.readers import profiler_trace
from vramcast.features.diagnose.logs.reading import BUDGET_BYTES, read_log
from vramcast.features.diagnose.logs.result import (
    MEASURED,
    Diagnosis,
    Estimate,
    JobMemory,
    PredictedChange,
    PredictedStep,
    Setup,
    WhatIf,
)
from vramcast.features.diagnose.logs.split import Split, split
from vramcast.features.diagnose.logs.step_time import estimates, irregularities

_AGREE = 0.1
_MOST_LOGS = 64


def read_logs(logs: Sequence[str | Path]) -> Collected:
    """The files of one run: its log, and its stage timings or profiler trace where it has them."""
    if not 1 <= len(logs) <= _MOST_LOGS:
        raise UsageError(f"from 1 to {_MOST_LOGS} logs are read, not {len(logs)}")
    collected = Collected()
    for log in logs:
        read_log(log, collected)
    return collected


def diagnose_run(
    collected: Collected,
    setup: Setup | None = None,
    *,
    throughput_of: str | None = None,
    job: JobMemory | None = None,
    predicted: PredictedStep | None = None,
    asked: PredictedChange | None = None,
    changes: Sequence[PredictedChange] = (),
) -> Diagnosis:
    """`setup` is what the caller knows; the log adds what it names itself.

    `predicted`, `asked` (the job as it is) and `changes` to it come from predictions of the same job; without them the
    parts that the log left out stay unknown.
    """
    known = _setup(setup or Setup(), collected, throughput_of)
    return _diagnosis(collected, known, job, predicted, asked, changes)


def _setup(asked: Setup, collected: Collected, throughput_of: str | None) -> Setup:
    """What was said counts more than what the log names."""
    logged = {name: int(value) for name, value in collected.settings.items() if value >= 1}
    gpus = asked.gpus or logged.get(q.WORLD_SIZE)
    batch, total = asked.batch or logged.get(q.BATCH), logged.get(q.GLOBAL_BATCH)
    accumulation = asked.accumulation or logged.get(q.ACCUMULATION)
    if gpus is None and batch and total and total % (batch * (accumulation or 1)) == 0:
        gpus = total // (batch * (accumulation or 1))
    return replace(
        asked,
        batch=batch,
        gpus=gpus,
        accumulation=accumulation,
        sequence=asked.sequence or logged.get(q.SEQUENCE),
        global_batch=asked.global_batch or total,
        throughput_of=throughput_of or collected.throughput_of or "all",
    )


def _diagnosis(
    collected: Collected, setup: Setup, job: JobMemory | None, predicted: PredictedStep | None,
    asked: PredictedChange | None, changes: Sequence[PredictedChange],
) -> Diagnosis:  # fmt: skip
    ways = estimates(collected, setup)
    step = ways[0] if ways else None
    parts = split(collected, step.seconds if step else None, setup, predicted)
    track = collected.main_track
    total = track.total_steps if track is not None and track.total_steps else None
    total = total or (int(collected.settings[q.TOTAL_STEPS]) if collected.settings.get(q.TOTAL_STEPS) else None)
    last = track.last_step if track is not None else None
    irregular = tuple(irregularities(collected)) if step else ()
    kind, sentence = "unknown", _no_step_time(collected, parts)
    helps: list[WhatIf] = []
    useless: list[WhatIf] = []
    what_ifs: list[WhatIf] = []
    notes = [*_notes(collected, setup, step, parts), *parts.notes]
    if step is not None:
        basis = findings.Step(step.seconds, step.mean_seconds, parts, setup, total, irregular)
        kind, sentence = findings.bottleneck(basis)
        if kind != findings.CONTRADICTION:
            helps, useless = findings.helps(basis), findings.will_not_help(basis)
            if asked is not None:
                what_ifs, slower = gains_and_losses(basis, asked, changes)
                useless += slower
                notes.append(scale_note(basis, asked))
        notes = [*findings.about_unrecorded(basis), *notes]
    memory = collected.series.get(q.MEMORY_BYTES)
    mfu = collected.series.get(q.MFU)
    samples = setup.samples_per_step
    return Diagnosis(
        logs=tuple(collected.logs),
        formats=dict(collected.formats),
        lines=collected.lines,
        lines_parsed=collected.lines_parsed,
        setup=setup,
        step=step,
        other_estimates=tuple(ways[1:]),
        samples_per_second=samples / step.seconds
        if samples and step
        else _rate(collected, q.SAMPLES_PER_SECOND, setup),
        tokens_per_second=_rate(collected, q.TOKENS_PER_SECOND, setup),
        last_step=last,
        total_steps=total,
        left_seconds=step.mean_seconds * max(0, total - last) if step and total and last is not None else None,
        total_seconds=step.mean_seconds * total if step and total else None,
        epoch_seconds=_epoch_seconds(step, asked),
        parts=parts.parts,
        missing=parts.missing,
        bottleneck_kind=kind,
        bottleneck=sentence,
        helps=tuple(helps),
        will_not_help=tuple(useless),
        irregular=irregular,
        notes=tuple(notes),
        memory_bytes=int(max(point.value for point in memory.largest)) if memory is not None else None,
        mfu=mfu.median if mfu is not None else None,
        job=job,
        predicted=predicted,
        what_ifs=tuple(what_ifs),
    )


def _epoch_seconds(step: Estimate | None, asked: PredictedChange | None) -> float | None:
    if step is None or asked is None or asked.steps_per_epoch is None:
        return None
    return step.seconds * asked.steps_per_epoch


def _rate(collected: Collected, quantity: str, setup: Setup) -> float | None:
    series = collected.series.get(quantity)
    if series is None:
        return None
    return series.median * (setup.gpus or 1 if setup.throughput_of == "one" else 1)


def _no_step_time(collected: Collected, parts: Split) -> str:
    if {q.SAMPLES_PER_SECOND, q.TOKENS_PER_SECOND} & set(collected.series):
        more = " and --seq" if q.SAMPLES_PER_SECOND not in collected.series else ""
        return f"The time of a step cannot be worked out from throughput alone: add --batch, --gpus{more}."
    if any(part.source == MEASURED for part in parts.parts):
        return "The log has timings of parts and no time of a whole step: give the training log too."
    return "The log names steps, but neither their time nor throughput, nor when a line was written."


def _notes(collected: Collected, setup: Setup, step: Estimate | None, parts: Split) -> list[str]:
    notes = []
    rates = {q.SAMPLES_PER_SECOND, q.TOKENS_PER_SECOND} & set(collected.series)
    if rates and setup.samples_per_step is not None and not collected.throughput_of and (setup.gpus or 1) > 1:
        of_all = setup.throughput_of == "all"
        whose, other = ("all GPUs", "one") if of_all else ("one GPU", "all")
        notes.append(f"throughput is taken as that of {whose}; --throughput {other} if not")
    if rates and setup.batch is not None and setup.gpus is None:
        notes.append("one GPU is assumed; --gpus says otherwise")
    if collected.lines_parsed < collected.lines // 2 and collected.bytes_read > BUDGET_BYTES:
        notes.append(
            f"a large log: {collected.lines_parsed:,} of {collected.lines:,} lines, from all over it, were parsed; all "
            "were searched for saving, evaluation and errors"
        )
    if collected.broken_lines:
        notes.append(f"{collected.broken_lines:,} lines have bytes that are no text")
    problems = [event for event in collected.events if event.kind == PROBLEM]
    if problems:
        notes.append(f"line {problems[0].line:,}: {problems[0].text[:120]}")
    track = collected.main_track
    if track is not None and track.restarts and track.total_steps:
        notes.append(
            f"its steps begin anew {track.restarts} times: {track.total_steps:,} are those of an epoch, or of a restart"
        )
    by_host = profiler_trace.NAME not in collected.formats
    if step and by_host and any(part.source == MEASURED and part.phase in findings.COMPUTING for part in parts.parts):
        notes.append("stages timed on the host are right only if the timers wait for the GPU (torch.cuda.synchronize)")
    return notes
