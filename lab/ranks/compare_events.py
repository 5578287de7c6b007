"""Find where a rank on the virtual card departs from what the allocator of a real one did.

    python -m lab.ranks.compare_events NAME FOLDER [--frees] [--above BYTES] [--skip N]

FOLDER holds NAME.history.json.gz, which `measure.py --history` wrote.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import NamedTuple

from lab.ranks.predict import predict
from vramcast.trace.schema import ALLOC, FREE, StepTrace


class Step(NamedTuple):
    action: str
    block: int
    size: int
    stream: int
    what: str = ""


def measured(path: Path) -> list[Step]:
    data = json.loads(gzip.decompress(path.read_bytes()))
    blocks: dict[int, int] = {}
    steps, made = [], 0
    for action, address, size, stream in zip(
        data["actions"], data["addresses"], data["sizes"], data["streams"], strict=True
    ):
        if action == "a":
            blocks[address] = made
            made += 1
        if action in "ar":
            steps.append(Step(action, blocks.get(address, -1), size, stream))
    return steps


def predicted(trace: StepTrace) -> list[Step]:
    steps = []
    for kind, block in zip(trace.event_kind, trace.event_arg, strict=True):
        if kind in (ALLOC, FREE):
            what = (
                f"{trace.ops[trace.op[block]]} {trace.phases[trace.phase[block]]} {trace.modules[trace.module[block]]}"
            )
            action = "a" if kind == ALLOC else "r"
            steps.append(Step(action, block, trace.requested_bytes[block], trace.stream[block], what))
    return steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--frees", action="store_true", help="compare frees too")
    parser.add_argument("--above", type=int, default=0, help="leave out what is smaller")
    parser.add_argument("--skip", type=int, default=0)
    options = parser.parse_args()
    real = measured(options.folder / f"{options.name}.history.json.gz")
    ours = predicted(predict(options.name, 3)[1].trace())
    kept = [
        [step for step in steps if step.size >= options.above and (options.frees or step.action == "a")]
        for steps in (real, ours)
    ]
    print(f"{len(kept[0])} measured, {len(kept[1])} predicted")
    for i, (real_event, our_event) in enumerate(zip(*kept, strict=False)):
        same = (
            real_event.action == our_event.action
            and real_event.size == our_event.size
            and bool(real_event.stream) == bool(our_event.stream)
        )
        if not same and i >= options.skip:
            for j in range(max(0, i - 8), i + 12):
                pair = [str(tuple(steps[j])) if j < len(steps) else "" for steps in kept]
                print(f"{'>' if j == i else ' '} {j:6d} {pair[0]:44s} {pair[1]}")
            return
    print("the same")


if __name__ == "__main__":
    main()
