"""How often the plan that is taken to win cudnn.benchmark keeps the workspace of the one that won on the card:
`python -m lab.comparing.fastest_plans` (lab/data/records/plan_times)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import ROOT
from vramcast.card.libraries.convolution import likely_fastest_first, recorded_plan
from vramcast.card.libraries.problem import ConvolutionProblem

RECORDS = ROOT / "lab" / "data" / "records" / "plan_times"
NEAR_BYTES = 2 << 20
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Timed:
    """The plans of a problem in PyTorch's order, with their workspaces, and how long each took how often."""

    problem: ConvolutionProblem
    engines: tuple[int, ...]
    on_tensor_cores: tuple[bool, ...]
    workspaces: tuple[int, ...]
    microseconds: tuple[tuple[float, ...], ...]

    def winners(self) -> list[int]:
        """The workspace of the fastest plan, each time anew."""
        times = max(map(len, self.microseconds))
        return [
            min(
                zip(self.microseconds, self.workspaces, strict=True), key=lambda plan: plan[0][min(i, len(plan[0]) - 1)]
            )[1]
            for i in range(times)
        ]


def read(path: Path) -> list[Timed]:
    with gzip.open(path, "rt") as file:
        return [_timed(json.loads(line)) for line in file]


def _timed(line: Sequence[Any]) -> Timed:
    engines, _, on_tensor_cores, workspaces, microseconds = zip(*line[-1], strict=True)
    return Timed(
        problem_of(line[:-1]), engines, tuple(map(bool, on_tensor_cores)), workspaces, tuple(map(tuple, microseconds))
    )


def problem_of(line: Sequence[Any]) -> ConvolutionProblem:
    operation, x, w, y, padding, stride, dilation, dtype, channels_last, tf32 = line
    return ConvolutionProblem(
        operation, tuple(x), tuple(w), tuple(y), tuple(padding), tuple(stride), tuple(dilation), dtype,
        bool(channels_last), bool(tf32),
    )  # fmt: skip


def ranked_first(timed: Timed) -> int:
    """cuDNN's own choice."""
    return timed.workspaces[0]


def taken(timed: Timed) -> int:
    """The workspace of the plan that vramcast takes to be the fastest."""
    plans = [
        recorded_plan(timed.problem, *plan)
        for plan in zip(timed.workspaces, timed.engines, timed.on_tensor_cores, strict=True)
    ]
    return likely_fastest_first(timed.problem, plans)[0].workspace_bytes


def won_before(timed: Timed) -> int:
    """What the card itself kept the first time."""
    return timed.winners()[0]


def judged(records: Sequence[Timed], choose: Callable[[Timed], int]) -> tuple[float, float]:
    """The share that is near what won, and how many bytes it is off on average."""
    near = off = 0.0
    for timed in records:
        chosen, winners = choose(timed), timed.winners()[1:] or timed.winners()
        near += sum(abs(chosen - size) <= NEAR_BYTES for size in winners) / len(winners)
        off += sum(abs(chosen - size) for size in winners) / len(winners)
    return near / len(records), off / len(records)


def main() -> None:
    for path in sorted(RECORDS.glob("*.jsonl.gz")):
        records = read(path)
        print(f"{path.stem.removesuffix('.jsonl')}: {len(records)} problems")
        for choose in (ranked_first, taken, won_before):
            near, off = judged(records, choose)
            print(f"  {choose.__name__:14} {near:6.1%} within 2 MiB, {off / MIB:5.1f} MiB off on average")


if __name__ == "__main__":
    main()
