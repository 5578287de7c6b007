"""What `nvidia-smi` answers a script that starts it: the named card, as `nvml.py` tells of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from vramcast.base.units import MIB
from vramcast.gpus import GpuSpec
from vramcast.scripts.nvml import CLOCK_MHZ, CUDA, DEGREES, DRIVER, POWER_MILLIWATTS, UUID

_NOT_KNOWN = "[N/A]"
_WATTS = f"{POWER_MILLIWATTS / 1000:.2f}"


def answer(words: Sequence[str], gpu: GpuSpec, cards: int, used_bytes: Callable[[int], int]) -> str:
    """`words`: the command; `used_bytes`: of the card with that number."""
    options = list(words[1:])
    used_mib = [used_bytes(card) // MIB for card in range(cards)]
    layout = (_value(options, "--format") or "csv").split(",")
    if fields := _value(options, "--query-gpu"):
        return _rows(fields, layout, [_of_card(gpu, card, cards, used) for card, used in enumerate(used_mib)])
    if fields := _value(options, "--query-compute-apps"):
        return _rows(fields, layout, [_of_process(gpu, used) for used in used_mib if used])
    if any(word.startswith("--query") for word in options):
        return ""
    if "-L" in options or "--list-gpus" in options:
        return "".join(f"GPU {card}: {gpu.name} (UUID: {UUID})\n" for card in range(cards))
    return _table(gpu, used_mib)


def _of_card(gpu: GpuSpec, card: int, cards: int, used_mib: int) -> dict[str, tuple[str, str]]:
    """Each field with its unit."""
    return {
        "index": (str(card), ""), "name": (gpu.name, ""), "gpu_name": (gpu.name, ""), "count": (str(cards), ""),
        "uuid": (UUID, ""), "gpu_uuid": (UUID, ""), "driver_version": (DRIVER, ""),
        "compute_cap": (".".join(map(str, gpu.compute_capability)), ""),
        "memory.total": (str(gpu.memory_mib), "MiB"), "memory.used": (str(used_mib), "MiB"),
        "memory.free": (str(gpu.memory_mib - used_mib), "MiB"),
        "utilization.gpu": ("0", "%"), "utilization.memory": ("0", "%"),
        "temperature.gpu": (str(DEGREES), ""), "power.draw": (_WATTS, "W"), "power.limit": (_WATTS, "W"),
        "clocks.sm": (str(CLOCK_MHZ), "MHz"), "clocks.mem": (str(CLOCK_MHZ), "MHz"),
    }  # fmt: skip


def _of_process(gpu: GpuSpec, used_mib: int) -> dict[str, tuple[str, str]]:
    used = (str(used_mib), "MiB")
    return {
        "pid": (str(os.getpid()), ""), "process_name": ("python", ""), "name": ("python", ""),
        "gpu_name": (gpu.name, ""), "gpu_uuid": (UUID, ""), "used_memory": used, "used_gpu_memory": used,
    }  # fmt: skip


def _rows(fields: str, layout: Sequence[str], known: Sequence[Mapping[str, tuple[str, str]]]) -> str:
    names = [name.strip() for name in fields.split(",")]
    with_unit = "nounits" not in layout
    rows = []
    if "noheader" not in layout:
        units = {name: unit for each in known for name, (_, unit) in each.items()}
        rows.append(", ".join(f"{name} [{units[name]}]" if units.get(name) else name for name in names))
    for each in known:
        shown = (each.get(name, (_NOT_KNOWN, "")) for name in names)
        rows.append(", ".join(f"{value} {unit}" if unit and with_unit else value for value, unit in shown))
    return "".join(f"{row}\n" for row in rows)


def _table(gpu: GpuSpec, used_mib: Sequence[int]) -> str:
    lines = [f"| NVIDIA-SMI {DRIVER}    Driver Version: {DRIVER}    CUDA Version: {CUDA // 1000}.{CUDA % 1000 // 10} |"]
    for card, used in enumerate(used_mib):
        lines.append(f"| {card:3}  {gpu.name} |")
        power = f"{POWER_MILLIWATTS // 1000}W / {POWER_MILLIWATTS // 1000}W"
        lines.append(f"| N/A  {DEGREES}C    P0    {power} | {used}MiB / {gpu.memory_mib}MiB |      0%      Default |")
    return "".join(f"{line}\n" for line in lines)


def _value(options: Sequence[str], name: str) -> str | None:
    for place, word in enumerate(options):
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
        if word == name and place + 1 < len(options):
            return options[place + 1]
    return None
