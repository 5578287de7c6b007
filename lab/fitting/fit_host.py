"""Fit what the host takes to issue ops (src/vramcast/timing/host.json) to recorded steps.

    python -m lab.fitting.fit_host TRACES [--out src/vramcast/timing/host.json] [--leave-out 5]

TRACES: a folder of traces as `python -m lab.comparing.time_accuracy --traces FOLDER` leaves it (`--predict lab/data/quiet-1.yaml`
for the quiet ones). The machine is shared, and its host is slower than it could be most of the time; fitted is what is
known of an undisturbed one:
- steps that nothing disturbed (lab/measuring/quiet.py), which follow one another without a wait;
- steps whose host's speed was watched, between two synchronisations, as the measurement ran them, with their phases.
Device times are the recorded ones of the same ops where there are any, else predicted ones. `--leave-out` fits without
each of so many parts of the workloads in turn and says how far off those are.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from lab.comparing.times import OP_TIMES, PHASES, combined, held_out, measured_rows, measured_times, op_records
from lab.measuring.quiet import quiet_runs
from vramcast.gpus import find_gpu
from vramcast.timing.costs import CostModel
from vramcast.timing.host import HOST_BYTE, features, next_optimizers, reference_dispatch
from vramcast.timing.iteration import last_iteration, stretches
from vramcast.timing.queues import LAUNCH_QUEUE
from vramcast.timing.step import costs_of
from vramcast.timing.waits import waits
from vramcast.timing.workspaces import turned_operands
from vramcast.trace import StepTrace
from vramcast.trace.calls import OpCalls

# Microseconds to begin with; the fit moves away from them only where that helps.
START = {
    "iteration": 290.0, "module": 5.9, "backward": 140.0, "optimizer": 280.0, "next optimizer": 20.0, "parameter": 6.3,
    "list op": 34.0, "next list op": 21.0, "tensor of a list": 0.58, "library op": 42.0, "library call": 14.0,
    "host op": 3.4, "host read": 1.3, "read": 3.0, "recurrent weight": 33.0, "forward op": 15.0, "forward view": 6.1,
    "unrecorded op": 9.5, "unrecorded view": 5.2, "backward op": 14.0, "accumulated gradient": 7.0, "backward view": 6.0, "further kernel": 7.5,
    "kernel of many": 6.5, "autocast": 2.9, "hook": 9.0,
    # Measured by itself: blocks of one and of four layers with and without checkpoints, 372 µs for each checkpoint,
    # half of them where it begins and half where its block runs again.
    "checkpoint": 186.0,
    # Not in these steps, and kept: what forward passes took that bring 2 to 11 GB to new ordinary memory
    # (lab/data/offload.yaml) beyond the copy at 8 GB/s, 1.3 to 1.9 µs a page, on a host that took twice as long for
    # copies back.
    "new page": 0.8,
    # Likewise: fitted to half of the zoo's scripts that were timed, in the order of their draw.
    "python call": 0.7,
    # Likewise: fitted to compiled ones (fit_compiled_host.py).
    "replay": 20.0, "compiled graph": 238.54, "compiled input": 2.77, "compiled launch": 8.79, "compiled call": 23.04,
    "compiled convolution": 76.0, "compiled allocation": 5.57,
}  # fmt: skip
# A loop of `.item()` on an idle card takes 7.4 µs in all, one of small copies to it 11.7 (host.json, "calls").
LATENCIES = {"launch_seconds": 4.0, "gap_seconds": 1.33, "wait_seconds": 8.0}
FITTED_QUIET = "quiet-1"
"""The quiet steps that are fitted; later sets are kept out."""
QUIET_WEIGHT = 2.0
"""Weight of all quiet steps relative to all whose host's speed was only watched: those were surely undisturbed."""
PULL = 0.04
"""How much the error must fall for a figure to move to e times its start."""
SWEEPS = 6


@dataclass
class Case:
    name: str
    kinds: list[tuple[tuple[str, float], ...]]
    rows: list[tuple[int, float, int, bool]]
    """(kind, device seconds, kernels, waits)"""
    cuts: list[tuple[int, str]]
    measured: dict[str, float]
    slowdown: float = 1.0
    """Slowdown of the host relative to an undisturbed one."""
    runs_on: bool = False
    """Steps followed one another without a wait between them; phases are not known."""


def load(folder: Path) -> list[Case]:
    records = {record["name"]: record for record in op_records()}
    model = CostModel.for_gpu(find_gpu("h200"))
    cases = []
    for name, runs in measured_times().items():
        path = folder / f"{name}.trace"
        watched = [run.watched for run in runs if run.watched is not None]
        if held_out(name) or not path.exists() or not watched:
            continue
        trace = StepTrace.load(path)
        calls = trace.calls
        assert calls is not None
        rows = last_iteration(calls)
        known = combined(runs)
        if name in records:
            recorded = measured_rows(calls, rows, records[name])
            if sum(seconds for seconds, _ in recorded.values()) > 1.05 * known.step_seconds:
                continue  # the recorded step ran other kernels, or at another clock, than the timed ones
            device = {row: (seconds, kernels, float(kernels)) for row, (seconds, kernels) in recorded.items()}
        else:
            device = predicted_rows(trace, rows, model)
        kinds, work = host_work(calls, rows, device)
        cuts = [(part.end - rows.start, part.phase) for part in stretches(calls, rows)]
        for run in watched:
            aim = {"step": run.seconds, **run.phases}
            cases.append(Case(f"{name}, watched", kinds, work, cuts, aim, run.factor))
    return [*cases, *load_quiet(folder, model)]


def load_quiet(folder: Path, model: CostModel) -> list[Case]:
    cases = []
    for name, run in quiet_runs(FITTED_QUIET).items():
        path = folder / f"{name}.trace"
        trace = StepTrace.load(path) if path.exists() else None
        if trace is None or trace.calls is None:
            continue
        calls, rows = trace.calls, last_iteration(trace.calls)
        kinds, work = host_work(calls, rows, predicted_rows(trace, rows, model))
        aim = {"step": run["quiet_seconds"], **dict.fromkeys(PHASES, 0.0)}
        cases.append(Case(name, kinds, work, [(len(rows), PHASES[0])], aim, runs_on=True))
    return cases


Device = dict[int, tuple[float, int, float]]
"""By row: seconds on the card, kernels, and how many are launched on average."""


def predicted_rows(trace: StepTrace, rows: range, model: CostModel) -> Device:
    """Of the rows of a traced step."""
    assert trace.calls is not None
    costs = costs_of(trace.calls, model, turned_operands(trace, trace.calls, rows))
    by_row = {row: costs[trace.calls.call[row]] for row in rows}
    return {row: (cost.device_seconds, cost.kernels, cost.launches) for row, cost in by_row.items()}


def host_work(
    calls: OpCalls, rows: range, device: Device
) -> tuple[list[tuple[tuple[str, float], ...]], list[tuple[int, float, int, bool]]]:
    """The kinds and rows of a case."""
    numbers: dict[tuple[int, int, float, bool], int] = {}
    kinds: list[tuple[tuple[str, float], ...]] = []
    work: list[tuple[int, float, int, bool]] = []
    for row, is_next in zip(rows, next_optimizers(calls, rows), strict=True):
        seconds, kernels, launches = device.get(row, (0.0, 0, 0.0))
        key = calls.call[row], calls.flags[row], launches, is_next
        op, arguments = calls.ops[key[0]], calls.arguments[key[0]]
        if key not in numbers:
            numbers[key] = len(kinds)
            work_of_call = features(op, arguments, key[1], launches, is_next)
            kinds.append(tuple(kind for kind in work_of_call if kind[0] != HOST_BYTE))
        work.append((numbers[key], seconds, kernels, waits(op, arguments)))
    return kinds, work


def simulate(case: Case, seconds: dict[str, float], latencies: dict[str, float]) -> dict[str, float]:
    """Phases of one step between two synchronisations, or of one that follows another (timing/queues.py, without its
    records)."""
    takes = [sum(seconds[name] * n for name, n in kind) * 1e-6 * case.slowdown for kind in case.kinds]
    launch, gap, wait = (latencies[name] * 1e-6 for name in ("launch_seconds", "gap_seconds", "wait_seconds"))
    host = device = reached = 0.0
    ends: list[float] = []
    phases: dict[str, float] = {}
    for _ in range(2 if case.runs_on else 1):  # the second of two steps
        phases, row, begun_step = dict.fromkeys(PHASES, 0.0), 0, reached
        for cut, phase in case.cuts:
            for kind, busy, kernels, is_waiting in case.rows[row:cut]:
                begun = host
                host += takes[kind]
                if kernels:
                    full = min(len(ends) + kernels - LAUNCH_QUEUE, len(ends))
                    if full > 0 and ends[full - 1] > host:
                        host = ends[full - 1]
                    start = max(device + gap, begun + (host - begun) / kernels + launch)
                    device = max(start + busy + (kernels - 1) * gap, host + launch + busy / kernels)
                    ends += [device] * kernels
                if is_waiting:
                    host = max(host, device) + wait
            row = cut
            now = max(host, device)
            phases[phase] += now - reached
            reached = now
    return {"step": reached - begun_step, **phases}


def off(case: Case, seconds: dict[str, float], latencies: dict[str, float]) -> float:
    """Mean over the step (twice) and its phases, each by how much of the step it is; where they are not known, of the
    step."""
    predicted, measured = simulate(case, seconds, latencies), case.measured
    total = 2 * abs(math.log(predicted["step"] / measured["step"]))
    if case.runs_on:
        return total / 2
    for phase in PHASES:
        if measured[phase] > 0.02 * measured["step"] and predicted[phase] > 0:
            total += min(1.0, abs(math.log(predicted[phase] / measured[phase]))) * measured[phase] / measured["step"]
    return total / 3


def fit(cases: list[Case]) -> tuple[dict[str, float], dict[str, float]]:
    seconds, latencies = dict(START), dict(LATENCIES)
    quiet = sum(case.runs_on for case in cases)
    weight = {True: QUIET_WEIGHT / max(quiet, 1), False: 1 / max(len(cases) - quiet, 1)}

    def loss() -> float:
        error = sum(weight[case.runs_on] * min(0.5, off(case, seconds, latencies)) for case in cases)
        moved = sum(math.log(seconds[name] / START[name]) ** 2 for name in START)
        moved += sum(math.log(latencies[name] / LATENCIES[name]) ** 2 for name in LATENCIES)
        return error + PULL * moved / 10

    best = loss()
    stride = 1.35
    for sweep in range(SWEEPS):
        for table, name in [(seconds, n) for n in START] + [(latencies, n) for n in LATENCIES]:
            for factor in (stride, 1 / stride):
                kept = table[name]
                table[name] = kept * factor
                now = loss()
                if now < best:
                    best = now
                    break
                table[name] = kept
        stride = 1 + (stride - 1) * 0.7
        print(f"sweep {sweep + 1}: {best:.4f}", flush=True)
    return seconds, latencies


def undisturbed_calls() -> dict[str, float]:
    """Single calls on the same machine, to set another host beside it: of the calibration that found it fastest."""
    swept = [json.loads(gzip.decompress(path.read_bytes()))["host"] for path in OP_TIMES.glob("*sweep*.json.gz")]
    fastest: dict[str, float] = min(swept, key=lambda host: geometric_mean(host.values()))
    return {name: round(value, 9) for name, value in fastest.items()}


def say(cases: list[Case], seconds: dict[str, float], latencies: dict[str, float], details: bool) -> None:
    errors: dict[str, list[float]] = {name: [] for name in ("step", *PHASES)}
    for case in cases:
        predicted = simulate(case, seconds, latencies)
        for name in errors:
            if case.measured[name] > 0.02 * case.measured["step"]:
                errors[name].append(predicted[name] / case.measured[name] - 1)
        if details:
            print(f"  {case.name:<42} {predicted['step'] / case.measured['step'] - 1:+.1%}")
    for name, shares in errors.items():
        sizes = sorted(map(abs, shares))
        print(f"{name:<10} median {sizes[len(sizes) // 2]:.1%}, nine of ten {sizes[int(0.9 * len(sizes))]:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--leave-out", type=int, default=0, metavar="PARTS")
    parser.add_argument("--details", action="store_true")
    options = parser.parse_args()
    cases = load(options.traces)
    print(f"{len(cases)} workloads")
    if options.leave_out:
        order = list(cases)
        random.Random(0).shuffle(order)
        for part in range(options.leave_out):
            held = order[part :: options.leave_out]
            seconds, latencies = fit([case for case in order if case not in held])
            print(f"part {part + 1}, held out:")
            say(held, seconds, latencies, options.details)
    seconds, latencies = fit(cases)
    say(cases, seconds, latencies, options.details)
    print({name: round(value, 3) for name, value in (seconds | latencies).items()})
    if options.out:
        document = {
            "source": f"host of the H200 machine (Xeon, Python 3.12, torch 2.11), undisturbed, fitted to {len(cases)} steps",
            "latencies": {name: round(value * 1e-6, 9) for name, value in latencies.items()},
            "seconds": {name: round(value * 1e-6, 9) for name, value in seconds.items()},
            "calls": undisturbed_calls(),
            "dispatch": reference_dispatch(),
        }
        options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
