"""What `nvidia-smi` answers a script that starts it: the named card."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vramcast.base.units import MIB
from vramcast.gpus import GpuSpec

_NOT_KNOWN = "[N/A]"


def answer(words: Sequence[str], gpu: GpuSpec, cards: int, used_bytes: Callable[[int], int]) -> str:
    """`words`: the command; `used_bytes`: of the card with that number."""
    options = list(words[1:])
    fields = _value(options, "--query-gpu")
    if fields is None:
        listed = "".join(f"GPU {card}: {gpu.name}, {gpu.memory_mib} MiB\n" for card in range(cards))
        return "" if any(word.startswith("--query") for word in options) else listed
    layout = (_value(options, "--format") or "csv").split(",")
    names = [name.strip() for name in fields.split(",")]
    unit = "" if "nounits" in layout else " MiB"
    rows = [] if "noheader" in layout else [", ".join(names)]
    for card in range(cards):
        used = used_bytes(card) // MIB
        sizes = {"memory.total": gpu.memory_mib, "memory.used": used, "memory.free": gpu.memory_mib - used}
        words_of_card = {
            "index": str(card), "name": gpu.name, "gpu_name": gpu.name, "count": str(cards), "utilization.gpu": "0",
            "compute_cap": ".".join(map(str, gpu.compute_capability)),
        }  # fmt: skip
        known_of_card = {**words_of_card, **{name: f"{size}{unit}" for name, size in sizes.items()}}
        rows.append(", ".join(known_of_card.get(name, _NOT_KNOWN) for name in names))
    return "\n".join(rows) + "\n"


def _value(options: Sequence[str], name: str) -> str | None:
    for place, word in enumerate(options):
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
        if word == name and place + 1 < len(options):
            return options[place + 1]
    return None
