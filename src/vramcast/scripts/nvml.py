"""What NVIDIA's management library answers a script that asks it through pynvml (nvidia-ml-py): the named card.

What is not stood in for here is said not to be supported, as the library says of what a card lacks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vramcast.base.units import MIB
from vramcast.gpus import GpuSpec

if TYPE_CHECKING:
    from vramcast.card.device.patches import Patches

DRIVER, CUDA = "580.65.06", 13000
"""Of a driver that runs today's PyTorch."""

POWER_MILLIWATTS, DEGREES, CLOCK_MHZ = 100_000, 40, 1_000
"""Of a card at work; nothing is known of them, and memory follows from none."""

UUID = "GPU-00000000-0000-0000-0000-000000000000"


class Handle:
    """A card, as pynvml hands it around."""

    def __init__(self, index: int) -> None:
        self.index = index


class _Answer:
    """Structures of the library are objects with named fields."""

    def __init__(self, **fields: int) -> None:
        self.__dict__.update(fields)


def install(put: Patches, gpu: GpuSpec, cards: Callable[[], int], used_bytes: Callable[[int], int]) -> None:
    """`cards`: how many there are; `used_bytes`: of the card with that number. Does nothing where pynvml is missing."""
    try:
        import pynvml
    except ImportError:
        return

    def refuse(error: str) -> Any:
        raise pynvml.NVMLError(getattr(pynvml, error))

    def text(words: str) -> Any:
        return words if hasattr(pynvml, "convertStrBytes") else words.encode()

    def handle(index: Any = 0, *rest: Any) -> Handle:
        if not 0 <= int(index) < cards():
            refuse("NVML_ERROR_INVALID_ARGUMENT")
        return Handle(int(index))

    def memory(card: Handle, version: Any = None) -> _Answer:
        total, used = gpu.memory_mib * MIB, used_bytes(card.index)
        fields = {"total": total, "used": used, "free": total - used}
        return _Answer(**fields) if version is None else _Answer(version=version, reserved=0, **fields)

    def processes(card: Handle) -> list[_Answer]:
        """This one, which is what the card is used by: the context, and what PyTorch holds."""
        used = used_bytes(card.index)
        return [_Answer(pid=os.getpid(), usedGpuMemory=used)] if used else []

    def not_supported(name: str) -> Any:
        refuse("NVML_ERROR_NOT_SUPPORTED")

    answers: dict[str, Callable[..., Any]] = {
        "nvmlInit": lambda: None,
        "nvmlInitWithFlags": lambda flags: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: text(DRIVER),
        "nvmlSystemGetNVMLVersion": lambda: text(f"13.{DRIVER}"),
        "nvmlSystemGetCudaDriverVersion": lambda: CUDA,
        "nvmlSystemGetCudaDriverVersion_v2": lambda: CUDA,
        "nvmlDeviceGetCount": lambda: cards(),
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetHandleByUUID": lambda name: handle(),
        "nvmlDeviceGetHandleByPciBusId": lambda name: handle(),
        "nvmlDeviceGetIndex": lambda card: card.index,
        "nvmlDeviceGetName": lambda card: text(gpu.name),
        "nvmlDeviceGetUUID": lambda card: text(UUID),
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetUtilizationRates": lambda card: _Answer(gpu=0, memory=0),
        "nvmlDeviceGetTemperature": lambda card, sensor=0: DEGREES,
        "nvmlDeviceGetPowerUsage": lambda card: POWER_MILLIWATTS,
        "nvmlDeviceGetPowerManagementLimit": lambda card: POWER_MILLIWATTS,
        "nvmlDeviceGetEnforcedPowerLimit": lambda card: POWER_MILLIWATTS,
        "nvmlDeviceGetTotalEnergyConsumption": lambda card: 0,
        "nvmlDeviceGetClockInfo": lambda card, clock: CLOCK_MHZ,
        "nvmlDeviceGetMaxClockInfo": lambda card, clock: CLOCK_MHZ,
        "nvmlDeviceGetComputeRunningProcesses": processes,
        "nvmlDeviceGetGraphicsRunningProcesses": lambda card: [],
        "nvmlDeviceGetCudaComputeCapability": lambda card: gpu.compute_capability,
        "_nvmlGetFunctionPointer": not_supported,
    }
    for name, answer in answers.items():
        if hasattr(pynvml, name):
            put.set(pynvml, name, answer)
