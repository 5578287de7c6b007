"""Fit what the host takes to run generated code (the "compiled" figures of src/vramcast/timing/host.json).

    python -m lab.compiled --traces FOLDER       (traces of the compiled workloads)
    python -m lab.fitting.fit_compiled_host FOLDER [--out src/vramcast/timing/host.json] [--leave-out 5]

The compiled workloads were measured on a host that was slower than the undisturbed one, for which the figures of eager
code hold (fit_host.py). How much slower it was is known from the eager steps that were timed beside the compiled ones
(lab/compiled/records.py). The host's other figures and the card's times stay as they are.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path

from lab.comparing.times import PHASES
from lab.compiled.records import Slowdowns, measured
from lab.fitting.fit_host import Case, simulate
from vramcast.gpus import find_gpu
from vramcast.timing.costs import CostModel
from vramcast.timing.host import HOST_BYTE, Features, features, next_optimizers, undisturbed_host
from vramcast.timing.iteration import last_iteration
from vramcast.timing.step import costs_of
from vramcast.timing.waits import waits
from vramcast.trace import StepTrace
from vramcast.trace.calls import REPLAY, OpCalls

HOST = Path(__file__).parents[2] / "src" / "vramcast" / "timing" / "host.json"
START = {
    "compiled graph": 280.0, "compiled input": 2.4, "compiled launch": 8.2, "compiled call": 19.0,
    "compiled convolution": 76.0, "compiled allocation": 4.6,
}  # fmt: skip
"""Microseconds to begin with; the fit moves away from them only where that helps."""
PULL = 0.01
"""How much the mean error must fall for a figure to move to e times its start."""
SWEEPS = 8


def load(folder: Path) -> list[Case]:
    """Workloads that run generated code without CUDA graphs."""
    model, slowdowns = CostModel.for_gpu(find_gpu("h200")), Slowdowns()
    cases = []
    for name, record in measured().items():
        path, seconds = folder / f"{name}.trace", slowdowns.seconds(record, "compiled")
        calls = StepTrace.load(path).calls if path.exists() and seconds is not None else None
        if calls is None or seconds is None or REPLAY in calls.ops:
            continue
        kinds, rows = work_of_last_step(calls, model)
        if any(feature in START for kind in kinds for feature, _ in kind):
            cuts, measurement = [(len(rows), PHASES[0])], {"step": seconds}
            cases.append(Case(name, kinds, rows, cuts, measurement, slowdowns.of(record), runs_on=True))
    return cases


def work_of_last_step(calls: OpCalls, model: CostModel) -> tuple[list[Features], list[tuple[int, float, int, bool]]]:
    """As timing/step.py sees it: kinds of host work, and for each row its kind, card seconds, kernels and waits."""
    rows, costs = last_iteration(calls), costs_of(calls, model)
    numbers: dict[tuple[int, int, bool], int] = {}
    kinds: list[Features] = []
    work = []
    for row, is_next in zip(rows, next_optimizers(calls, rows), strict=True):
        call, flags = calls.call[row], calls.flags[row]
        op, arguments, cost = calls.ops[call], calls.arguments[call], costs[call]
        if (call, flags, is_next) not in numbers:
            numbers[call, flags, is_next] = len(kinds)
            found = features(op, arguments, flags, cost.launches, is_next)
            kinds.append(tuple(kind for kind in found if kind[0] != HOST_BYTE))
        work.append((numbers[call, flags, is_next], cost.device_seconds, cost.kernels, waits(op, arguments)))
    return kinds, work


def error(case: Case, seconds: dict[str, float], latencies: dict[str, float]) -> float:
    return math.log(simulate(case, seconds, latencies)["step"] / case.measured["step"])


def fit(cases: list[Case], others: dict[str, float], latencies: dict[str, float]) -> dict[str, float]:
    figures = dict(START)

    def loss() -> float:
        wrong = statistics.fmean(min(0.3, abs(error(case, others | figures, latencies))) for case in cases)
        return wrong + PULL * sum(math.log(figures[name] / START[name]) ** 2 for name in START)

    best, stride = loss(), 1.3
    for _ in range(SWEEPS):
        for name in START:
            for factor in (stride, 1 / stride):
                kept = figures[name]
                figures[name] = kept * factor
                now = loss()
                if now < best:
                    best = now
                    break
                figures[name] = kept
        stride = 1 + (stride - 1) * 0.7
    return figures


def say(title: str, errors: list[float]) -> None:
    sizes = sorted(map(abs, errors))
    print(f"{title}: median {statistics.median(sizes):.1%}, nine of ten {sizes[int(0.9 * len(sizes))]:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--leave-out", type=int, default=0, metavar="PARTS")
    options = parser.parse_args()
    host = undisturbed_host()
    others = {name: value * 1e6 for name, value in host.seconds.items()}
    latencies = {
        name: getattr(host.latencies, name) * 1e6 for name in ("launch_seconds", "gap_seconds", "wait_seconds")
    }
    cases = load(options.traces)
    print(
        f"{len(cases)} workloads, whose host took {statistics.median(case.slowdown for case in cases):.2f} times as long"
    )
    left_out: list[float] = []
    for part in range(options.leave_out):
        aside = cases[part :: options.leave_out]
        figures = others | fit([case for case in cases if case not in aside], others, latencies)
        left_out += [error(case, figures, latencies) for case in aside]
    if left_out:
        say("left out", left_out)
    figures = fit(cases, others, latencies)
    say("before", [error(case, others, latencies) for case in cases])
    say("fitted", [error(case, others | figures, latencies) for case in cases])
    print({name: round(value, 2) for name, value in figures.items()})
    if options.out:
        document = json.loads(HOST.read_text(encoding="utf-8"))
        document["seconds"] |= {name: round(value * 1e-6, 9) for name, value in figures.items()}
        options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
