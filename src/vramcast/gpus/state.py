"""The cards in this machine as they are now: total, used, free, and which process uses how much. Only looks.

Asks NVML (the `gpu` extra), or nvidia-smi where its Python binding is missing. Needs no torch and creates no CUDA
context. CUDA_VISIBLE_DEVICES is heeded: device 0 is the first card that a program started from here would see.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

from vramcast.errors import UsageError
from vramcast.gpus.catalogue import find_gpu
from vramcast.gpus.spec import GpuSpec
from vramcast.units import MIB


@dataclass(frozen=True, slots=True)
class GpuProcess:
    pid: int
    name: str
    used_bytes: int | None
    """None where the driver does not say (containers, Windows)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalGpu:
    """One card and what is free on it."""

    index: int
    """As CUDA counts: 0 is the first visible one."""
    name: str
    uuid: str
    total_bytes: int
    used_bytes: int
    free_bytes: int
    processes: tuple[GpuProcess, ...] = ()
    """Largest first."""

    def spec(self) -> GpuSpec:
        """What is known of the card; of one that is not in gpus.toml only the size."""
        try:
            return find_gpu(self.name)
        except UsageError:
            return GpuSpec.from_memory(self.total_bytes)


def local_gpus() -> tuple[LocalGpu, ...]:
    """Every visible card; none where there is no driver."""
    found = _by_nvml()
    if found is None:
        found = parse_smi_state(_smi())
    return _visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


def local_gpu(device: int) -> LocalGpu:
    cards = local_gpus()
    for card in cards:
        if card.index == device:
            return card
    if not cards:
        raise UsageError(f"--device {device}: there is no NVIDIA GPU here; name one with --gpu")
    here = ", ".join(str(card.index) for card in cards)
    raise UsageError(f"--device {device}: there is no such card here; the visible ones are {here}")


def _by_nvml() -> list[LocalGpu] | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return [_read(pynvml, i) for i in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _read(nvml: Any, index: int) -> LocalGpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return LocalGpu(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        total_bytes=int(memory.total),
        used_bytes=int(memory.used),
        free_bytes=int(memory.free),
        processes=_processes(nvml, handle),
    )


def _processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return ()
    found = []
    for process in running:
        try:
            name = _text(nvml.nvmlSystemGetProcessName(process.pid))
        except nvml.NVMLError:
            name = ""
        used = process.usedGpuMemory
        found.append(GpuProcess(int(process.pid), os.path.basename(name), None if used is None else int(used)))
    return tuple(sorted(found, key=lambda one: -(one.used_bytes or 0)))


def _smi() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    query = [
        program,
        "--query-gpu=index,uuid,memory.total,memory.used,memory.free,name",
        "--format=csv,noheader,nounits",
    ]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""


def parse_smi_state(text: str) -> list[LocalGpu]:
    """Lines of "index, uuid, total, used, free, name" in MiB; others are passed over."""
    cards = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",", 5)]
        if len(fields) == 6 and all(fields[i].isdigit() for i in (0, 2, 3, 4)):
            total, used, free = (int(fields[i]) * MIB for i in (2, 3, 4))
            cards.append(LocalGpu(index=int(fields[0]), uuid=fields[1], name=fields[5], total_bytes=total,
                                  used_bytes=used, free_bytes=free))  # fmt: skip
    return cards


def _visible(cards: list[LocalGpu], wanted: str | None) -> tuple[LocalGpu, ...]:
    """What CUDA_VISIBLE_DEVICES leaves, renumbered as CUDA does; it ends at the first name that is not there."""
    if wanted is None:
        return tuple(cards)
    chosen = []
    for name in (part.strip() for part in wanted.split(",")):
        card = next((one for one in cards if name == str(one.index) or (name and one.uuid.startswith(name))), None)
        if card is None:
            break
        chosen.append(card)
    return tuple(dataclasses.replace(card, index=i) for i, card in enumerate(chosen))


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
