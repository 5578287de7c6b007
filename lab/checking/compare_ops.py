"""Set a recorded op atlas beside the virtual GPU's own run of the same workload, op by op.

    python -m lab.checking.compare_ops ATLAS.json.gz [--limit 25] [--sequence]

Prints the ops whose allocations differ, largest difference first, and the places where the sequence of ops differs.
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from lab.measuring.recorded import factory_of
from vramcast.base.factories import load_factory
from vramcast.card.device.context import virtual_gpu
from vramcast.card.dispatch.modes import DispatchMode
from vramcast.trace.arguments import describe_arguments
from vramcast.trace.builder import _CODE_BITS, _CODE_MASK, _ROW
from vramcast.trace.schema import ALLOC, FREE

Row = tuple[str, str, tuple[int, ...]]


def booked_sizes(builder: Any, first: int, end: int) -> tuple[int, ...]:
    """What was booked between two events: the size of an allocation, minus the size of a release."""
    sizes = []
    for event in builder._events[first:end]:
        kind, block = event & _CODE_MASK, event >> _CODE_BITS
        if kind in (ALLOC, FREE):
            size = builder._rows[block * _ROW]
            sizes.append(size if kind == ALLOC else -size)
    return tuple(sizes)


def virtual_rows(factory: str, args: dict[str, Any], steps: int, gpu: str) -> list[list[Row]]:
    rows: list[list[Row]] = []
    original = DispatchMode.__torch_dispatch__
    position = 0

    def recording(self: Any, func: Any, types: Any, a: Any = (), k: Any = None) -> Any:
        nonlocal position
        builder = self.ledger.builder
        with torch._C.DisableTorchFunction():
            signature = describe_arguments(a, k or {}).replace("meta:", "")
        before = builder.n_events
        outside = booked_sizes(builder, position, before)
        if outside and rows:
            rows[-1].append(("outside", "", outside))
        result = original(self, func, types, a, k)
        position = builder.n_events
        if rows:
            rows[-1].append((str(func), signature, booked_sizes(builder, before, position)))
        return result

    DispatchMode.__torch_dispatch__ = recording  # type: ignore[method-assign, assignment]
    try:
        with virtual_gpu(gpu) as card:
            step = load_factory(factory)(**args)
            position = card._ledger.builder.n_events
            setup = card._ledger.allocator.allocated_bytes
            for _ in range(steps):
                rows.append([])
                step()
            print(
                f"virtual: setup {setup / 2**30:.4f} GiB, peak allocated "
                f"{card._ledger.allocator.peak_allocated_bytes / 2**30:.4f}, reserved "
                f"{card._ledger.allocator.peak_reserved_bytes / 2**30:.4f}"
            )
    finally:
        DispatchMode.__torch_dispatch__ = original  # type: ignore[method-assign]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("atlas", type=Path)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--limit", type=int, default=25)
    parser.add_argument("--least", type=int, default=4096, help="ignore differences below this many bytes")
    options = parser.parse_args()
    atlas = json.loads(gzip.decompress(options.atlas.read_bytes()))
    print(
        f"{atlas['name']}: real setup {atlas['setup_allocated_bytes'] / 2**30:.4f} GiB, peak allocated "
        f"{atlas['peak_allocated_bytes'] / 2**30:.4f}, reserved {atlas['peak_reserved_bytes'] / 2**30:.4f}"
    )
    real = [
        [(atlas["ops"][r[0]], atlas["signatures"][r[1]], tuple(r[3])) for r in map(atlas["rows"].__getitem__, step)]
        for step in atlas["steps"]
    ]
    virtual = virtual_rows(factory_of(atlas), atlas["args"], len(real), options.gpu)
    ignored = {"aten.detach.default", "outside", "aten.lift_fresh.default", "aten.alias.default"}
    for number, (mine, theirs) in enumerate(zip(virtual, real, strict=True), 1):
        mine, theirs = ([r for r in rows if r[0] not in ignored] for rows in (mine, theirs))
        differences: dict[tuple[Any, ...], int] = defaultdict(int)
        matcher = difflib.SequenceMatcher(a=[r[0] for r in theirs], b=[r[0] for r in mine], autojunk=False)
        for tag, i1, i2, j1, j2 in matcher.get_opcodes():
            if tag == "equal":
                for a, b in zip(theirs[i1:i2], mine[j1:j2], strict=True):
                    if sorted(a[2]) != sorted(b[2]):
                        gap = abs(sum(x for x in a[2] if x > 0) - sum(x for x in b[2] if x > 0))
                        differences[(gap, "events", a[0], a[1], a[2], b[2], "" if a[1] == b[1] else b[1])] += 1
            else:
                for rows, who in ((theirs[i1:i2], "only real"), (mine[j1:j2], "only virtual")):
                    for row in rows:
                        gap = sum(x for x in row[2] if x > 0)
                        differences[(gap, who, row[0], row[1], row[2])] += 1
        print(f"== step {number}: {len(theirs)} real ops, {len(mine)} virtual")
        for key, count in sorted(differences.items(), key=lambda item: -item[0][0] * 1)[: options.limit]:
            if key[0] >= options.least or key[1] != "events":
                print(f"  {count:4d}x gap {key[0] / 2**20:9.3f} MiB  {' | '.join(str(k)[:180] for k in key[1:])}")


if __name__ == "__main__":
    main()
