"""Set a script's predicted allocator events beside those of a card: `python -m lab.practice.compare TRACE EVENTS`.

TRACE is what `vramcast run --whole --save TRACE` wrote, EVENTS what `on_card.py` kept. Prints each stretch in which the
two differ, with the op and the module that vramcast knows.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

from vramcast.trace.schema import ALLOC, FREE, StepTrace

_WINDOW = 400
_AGREEING = 6
Event = tuple[int, str]
"""+size or -size, and what is known of it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("events", type=Path)
    parser.add_argument("--limit", type=int, default=20, help="stretches to print")
    parser.add_argument("--smallest", type=int, default=0, help="leave out stretches with nothing larger than this")
    args = parser.parse_args()
    predicted, actual = (
        _predicted(StepTrace.load(args.trace)),
        _actual(json.loads(gzip.decompress(args.events.read_bytes()))),
    )
    print(f"{len(predicted)} events predicted, {len(actual)} on the card")
    shown = 0
    for mine, theirs in differences([e[0] for e in predicted], [e[0] for e in actual]):
        sizes = [abs(e[0]) for e in (*predicted[mine], *actual[theirs])]
        if max(sizes, default=0) < args.smallest:
            continue
        print(f"\n@ predicted {mine.start}, card {theirs.start}; before: {_told(predicted[max(0, mine.start - 1)])}")
        for event in predicted[mine]:
            print(f"  predicted {_told(event)}")
        for event in actual[theirs]:
            print(f"  card      {_told(event)}")
        shown += 1
        if shown == args.limit:
            print("...")
            break


def differences(mine: list[int], theirs: list[int]) -> list[tuple[slice, slice]]:
    """The stretches in which two sequences differ, each as short as a look some way ahead finds it."""
    stretches = []
    i = j = 0
    while i < len(mine) or j < len(theirs):
        if i < len(mine) and j < len(theirs) and mine[i] == theirs[j]:
            i, j = i + 1, j + 1
            continue
        skip = _resume(mine, theirs, i, j)
        if skip is None:
            stretches.append((slice(i, len(mine)), slice(j, len(theirs))))
            break
        stretches.append((slice(i, i + skip[0]), slice(j, j + skip[1])))
        i, j = i + skip[0], j + skip[1]
    return stretches


def _resume(mine: list[int], theirs: list[int], i: int, j: int) -> tuple[int, int] | None:
    for total in range(1, _WINDOW):
        for a in range(total + 1):
            b = total - a
            following = mine[i + a : i + a + _AGREEING]
            if following and following == theirs[j + b : j + b + _AGREEING]:
                return a, b
    return None


def _predicted(trace: StepTrace) -> list[Event]:
    events = []
    for kind, block in zip(trace.event_kind, trace.event_arg, strict=True):
        if kind in (ALLOC, FREE):
            size = trace.requested_bytes[block] * (1 if kind == ALLOC else -1)
            shape = trace.shapes[trace.shape[block]]
            op, module = trace.ops[trace.op[block]], trace.modules[trace.module[block]]
            events.append((size, f"{op} in {module} {shape} stream {trace.stream[block]}"))
    return events


def _actual(record: dict[str, Any]) -> list[Event]:
    sizes: list[int] = []
    streams = record["streams"]
    events: list[Event] = []
    for event in record["events"]:
        if event >= 0:
            events.append((event, f"#{len(sizes)} stream {streams.get(str(len(sizes)), 0)}"))
            sizes.append(event)
        else:
            events.append((-sizes[-event - 1], f"#{-event - 1}"))
    return events


def _told(event: Event) -> str:
    return f"{'alloc' if event[0] >= 0 else 'free '} {abs(event[0]):>12} {event[1]}"


if __name__ == "__main__":
    main()
