"""Write a memory snapshot of any size as PyTorch would: `python -m lab.browser.large_snapshot FILE [BYTES]`.

Built like those of torch.cuda.memory._dump_snapshot: frames are shared, every allocation has a call stack of its own.
It is written piece by piece: the pickle of such a file at once would take ten times its size in memory.
"""

from __future__ import annotations

import io
import pickle
import random
import sys
from pathlib import Path
from typing import Any, BinaryIO

_FRAMES, _DEPTH, _BATCH = 4000, 40, 1000


def write(file: BinaryIO, size_bytes: int, seed: int = 0) -> tuple[int, int]:
    """Gives the number of entries and the highest sum of active bytes."""
    chance = random.Random(seed)
    frames = [
        {
            "name": f"function_{i}",
            "filename": "/opt/venv/site-packages/torch/nn/modules/module.py"
            if i % 3
            else f"/home/me/train_{i % 40}.py",
            "line": i % 900 + 1,
        }
        for i in range(_FRAMES)
    ]
    alive: list[dict[str, Any]] = []
    state = {"active": 0, "highest": 0, "time": 0, "address": 0x7F0000000000, "entries": 0}

    def entry(action: str, address: int, size: int, stack: list[Any]) -> dict[str, Any]:
        state["time"] += chance.randrange(1, 400)
        state["entries"] += 1
        return {
            "action": action, "addr": address, "size": size, "stream": 0, "time_us": 1_700_000_000_000_000 + state["time"],
            "frames": stack, "compile_context": "N/A", "user_metadata": "",
        }  # fmt: skip

    def batch() -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        while len(made) < _BATCH:
            # More comes than goes for a while, then less: steps of a training run.
            grows = state["entries"] // 20_000 % 2 == 0
            if alive and chance.random() < (0.44 if grows else 0.56):
                gone = alive.pop(chance.randrange(len(alive)))
                state["active"] -= gone["size"]
                made += [entry(action, gone["addr"], gone["size"], gone["frames"])
                         for action in ("free_requested", "free_completed")]  # fmt: skip
            else:
                first = chance.randrange(_FRAMES - _DEPTH)
                size = chance.choice((512, 4096, 65536, 2**20, 2**22))
                state["address"] += size
                one = entry("alloc", state["address"], size, frames[first : first + _DEPTH])
                alive.append(one)
                made.append(one)
                state["active"] += size
                state["highest"] = max(state["highest"], state["active"])
        return made

    _write_streamed(file, batch, alive, state, size_bytes)
    return state["entries"], state["highest"]


def _write_streamed(
    file: BinaryIO, batch: Any, alive: list[dict[str, Any]], state: dict[str, int], size_bytes: int
) -> None:
    """`{"device_traces": [[...]], "segments": [...]}`, its lists opened and closed by hand."""
    inner = _Parts(file)
    inner.raw(b"\x80\x04}(")
    inner.value("device_traces")
    inner.raw(b"](](")
    while file.tell() < size_bytes:
        for one in batch():
            inner.value(one)
        inner.raw(b"e(")
    inner.raw(b"ee")
    inner.value("segments")
    blocks = [
        {"address": one["addr"], "size": one["size"], "requested_size": one["size"], "state": "active_allocated",
         "frames": one["frames"]}
        for one in alive
    ]  # fmt: skip
    free = {"size": state["highest"] - state["active"], "state": "inactive"}
    inner.value(
        [
            {
                "device": 0,
                "address": 0,
                "total_size": state["highest"],
                "stream": 0,
                "segment_type": "large",
                "blocks": [*blocks, free],
            }
        ]
    )
    inner.raw(b"u.")


class _Parts:
    """Values one after the other in one pickle: one pickler, so that what is shared is written once."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._part = io.BytesIO()
        self._pickler = pickle.Pickler(self._part, protocol=2)

    def raw(self, codes: bytes) -> None:
        self._file.write(codes)

    def value(self, value: Any) -> None:
        self._part.seek(0)
        self._part.truncate()
        self._pickler.dump(value)
        self._file.write(self._part.getbuffer()[2:-1])  # without PROTO and STOP


def main() -> None:
    path = Path(sys.argv[1])
    with path.open("wb") as file:
        entries, highest = write(file, int(sys.argv[2]) if len(sys.argv) > 2 else 2**30)
    print(f"{path}: {path.stat().st_size:,} bytes, {entries:,} entries, at most {highest:,} bytes active")


if __name__ == "__main__":
    main()
