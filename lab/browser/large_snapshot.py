"""Write a memory snapshot of any size as PyTorch would: `python -m lab.browser.large_snapshot FILE [BYTES]`.

Built like those of torch.cuda.memory._dump_snapshot: frames are shared, every allocation has a call stack of its own.
The opcodes are written by hand, since a pickler would keep every object until the end.
"""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path
from typing import Any, BinaryIO

_FRAMES, _DEPTH, _BATCH = 4000, 40, 1000
_NAMES = (
    *("action", "addr", "size", "stream", "time_us", "frames", "compile_context", "user_metadata", "N/A", ""),
    *(
        "name",
        "filename",
        "line",
        "device",
        "address",
        "total_size",
        "segment_type",
        "blocks",
        "requested_size",
        "state",
    ),
)
_LIBRARY = "/venv/site-packages/torch/nn/modules/module.py"


class _Writer:
    """Data as opcodes of protocol 2; `shared` values are written once and fetched again."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._places: dict[Any, int] = {}
        self._next = 0

    def raw(self, codes: bytes) -> None:
        self._file.write(codes)

    def text(self, text: str) -> bytes:
        return self.shared(text, lambda: b"X" + struct.pack("<I", len(text.encode())) + text.encode())

    def shared(self, key: Any, made: Any) -> bytes:
        if key in self._places:
            return b"j" + struct.pack("<I", self._places[key])
        code: bytes = made()
        self._places[key] = self._next
        self._next += 1
        return code + b"r" + struct.pack("<I", self._places[key])

    def number(self, value: int) -> bytes:
        return b"\x8a\x08" + struct.pack("<q", value)

    def record(self, **fields: bytes) -> bytes:
        return b"}(" + b"".join(self.text(name) + value for name, value in fields.items()) + b"u"


def write(file: BinaryIO, size_bytes: int, seed: int = 0) -> tuple[int, int]:
    """Gives the number of entries and the highest sum of active bytes."""
    chance, to = random.Random(seed), _Writer(file)
    alive: list[tuple[int, int, int]] = []
    """Address, size, number of the call stack."""
    active = highest = entries = 0
    address = 0x7F0000000000

    def frame(i: int) -> bytes:
        name = _LIBRARY if i % 3 else f"/home/me/train_{i % 40}.py"
        return to.shared(("frame", i), lambda: to.record(
            name=to.text(f"function_{i}"), filename=to.text(name), line=to.number(i % 900 + 1)
        ))  # fmt: skip

    def stack(number: int) -> bytes:
        first = number * 7919 % (_FRAMES - _DEPTH)
        return to.shared(
            ("stack", number), lambda: b"](" + b"".join(frame(i) for i in range(first, first + _DEPTH)) + b"e"
        )

    def entry(action: str, one: tuple[int, int, int]) -> bytes:
        nonlocal entries
        entries += 1
        return to.record(
            action=to.text(action), addr=to.number(one[0]), size=to.number(one[1]), stream=to.number(0),
            time_us=to.number(1_700_000_000_000_000 + 100 * entries), frames=stack(one[2]),
            compile_context=to.text("N/A"), user_metadata=to.text(""),
        )  # fmt: skip

    # Names first, so that each is known wherever it comes; what is not needed yet is taken off the stack again.
    to.raw(b"\x80\x02" + b"".join(to.text(name) + b"0" for name in _NAMES))
    to.raw(b"}(" + to.text("device_traces") + b"](](")
    while file.tell() < size_bytes:
        for _ in range(_BATCH):
            # More comes than goes for a while, then less: steps of a training run.
            grows = entries // 20_000 % 2 == 0
            if alive and chance.random() < (0.44 if grows else 0.56):
                gone = alive.pop(chance.randrange(len(alive)))
                active -= gone[1]
                to.raw(entry("free_requested", gone) + entry("free_completed", gone))
            else:
                size = chance.choice((512, 4096, 65536, 2**20, 2**22))
                address += size
                alive.append((address, size, entries))
                to.raw(entry("alloc", alive[-1]))
                active += size
                highest = max(highest, active)
        to.raw(b"e(")
    to.raw(b"ee" + to.text("segments") + b"](")
    fields = {"device": to.number(0), "address": to.number(0), "total_size": to.number(highest)}
    fields |= {"stream": to.number(0), "segment_type": to.text("large")}
    blocks = [
        to.record(address=to.number(one[0]), size=to.number(one[1]), requested_size=to.number(one[1]),
                  state=to.text("active_allocated"), frames=stack(one[2]))
        for one in alive
    ]  # fmt: skip
    blocks.append(to.record(size=to.number(highest - active), state=to.text("inactive")))
    to.raw(to.record(**fields, blocks=b"](" + b"".join(blocks) + b"e") + b"eu.")
    return entries, highest


def main() -> None:
    path = Path(sys.argv[1])
    with path.open("wb") as file:
        entries, highest = write(file, int(sys.argv[2]) if len(sys.argv) > 2 else 2**30)
    print(f"{path}: {path.stat().st_size:,} bytes, {entries:,} entries, at most {highest:,} bytes active")


if __name__ == "__main__":
    main()
