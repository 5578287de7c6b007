"""Answers of cards that could not be recorded, built from what NVML's API reference documents for each call.

Constructed, not recorded: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html (which calls return
NOT_SUPPORTED or NO_PERMISSION, "not available" as all ones for a process's memory) and group__nvmlMultiInstanceGPU
(handles of instances).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lab.measuring.nvml_calls import Call
from vramcast.base.units import GIB, MIB

NOT_SUPPORTED, NO_PERMISSION, SIZE_NEEDED, NOT_FOUND, LOST = 3, 4, 7, 6, 15
NOT_AVAILABLE = 2**64 - 1
NO_INSTANCE = 2**32 - 1


def call(name: str, *args: Any, out: list[Any] | None = None, code: int = 0) -> Call:
    return {"call": name, "args": list(args), "code": code, "out": out or []}


@dataclass(frozen=True)
class Card:
    """One card or instance. None: NVML answers NOT_SUPPORTED."""

    name: str = "NVIDIA GeForce RTX 4090"
    uuid: str = "GPU-00000000-0000-0000-0000-000000000000"
    total: int = 24564 * MIB
    reserved: int | None = 350 * MIB
    """None: the driver has only the first version of the call."""
    used: int = 0
    busy: int | None = 0
    celsius: int | None = 40
    compute: tuple[tuple[int, int], ...] | None = ()
    """pid, bytes."""
    graphics: tuple[tuple[int, int], ...] | None = ()
    lost: bool = False
    instances: tuple[Card, ...] = field(default=())

    def calls(self, handle: str) -> list[Call]:
        if self.lost:
            return [call(name, handle, *more, code=LOST) for name, *more in _ASKED_OF_A_CARD]
        found = [
            call("nvmlDeviceGetName", handle, 96, out=[self.name]),
            call("nvmlDeviceGetUUID", handle, 96, out=[self.uuid]),
            _maybe("nvmlDeviceGetUtilizationRates", handle, value=None if self.busy is None else {"gpu": self.busy}),
            _maybe("nvmlDeviceGetTemperature", handle, 0, value=self.celsius),
            *self._memory(handle),
            *_processes("Compute", handle, self.compute),
            *_processes("Graphics", handle, self.graphics),
        ]
        return found + self._mig(handle)

    def _memory(self, handle: str) -> list[Call]:
        reserved = self.reserved or 0
        free = self.total - self.used - reserved
        # The first version has no place for the driver's part, and counts it as used.
        first = {"total": self.total, "free": free, "used": self.used + reserved}
        found = [call("nvmlDeviceGetMemoryInfo", handle, out=[first])]
        if self.reserved is not None:
            second = {"total": self.total, "reserved": reserved, "free": free, "used": self.used}
            found.append(call("nvmlDeviceGetMemoryInfo_v2", handle, out=[second]))
        return found

    def _mig(self, handle: str) -> list[Call]:
        if not self.instances:
            return [call("nvmlDeviceGetMigMode", handle, code=NOT_SUPPORTED)]
        slots = 7
        found = [
            call("nvmlDeviceGetMigMode", handle, out=[1, 1]),
            call("nvmlDeviceGetMaxMigDeviceCount", handle, out=[slots]),
        ]
        for slot in range(slots):
            if slot >= len(self.instances):
                found.append(call("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot, code=NOT_FOUND))
                continue
            instance = f"{handle} instance {slot}"
            found += [
                call("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot, out=[instance]),
                call("nvmlDeviceGetGpuInstanceId", instance, out=[slot + 1]),
                call("nvmlDeviceGetComputeInstanceId", instance, out=[0]),
                *self.instances[slot].calls(instance),
            ]
        return found


_ASKED_OF_A_CARD = (("nvmlDeviceGetMigMode",), ("nvmlDeviceGetMemoryInfo",), ("nvmlDeviceGetMemoryInfo_v2",))


def machine(*cards: Card) -> list[Call]:
    """Everything that is asked of a machine with these cards."""
    found = [
        call("nvmlInitWithFlags", 0),
        call("nvmlShutdown"),
        call("nvmlSystemGetDriverVersion", 80, out=["580.65.06"]),
        call("nvmlDeviceGetCount_v2", out=[len(cards)]),
    ]
    for i, card in enumerate(cards):
        handle = f"device {i}"
        found.append(call("nvmlDeviceGetHandleByIndex_v2", i, out=[handle]))
        found += card.calls(handle)
    return found


def instance(size: str, total: int, number: int, used: int = 0, *pids: int) -> Card:
    """A MIG instance: it says nothing of load, and a process's memory only to those who may know it."""
    return Card(
        name=f"NVIDIA A100-SXM4-40GB MIG {size}", uuid=f"MIG-{number:08x}-0000-0000-0000-000000000000", total=total,
        reserved=0, used=used, busy=None, celsius=None, compute=tuple((pid, NOT_AVAILABLE) for pid in pids),
        graphics=None,
    )  # fmt: skip


DIVIDED_A100 = Card(
    name="NVIDIA A100-SXM4-40GB", total=40960 * MIB, used=12 * GIB, busy=None,
    instances=(instance("3g.20gb", 19968 * MIB, 1, 11 * GIB, 71), instance("1g.5gb", 4864 * MIB, 2, 13 * MIB)),
)  # fmt: skip


def _processes(kind: str, handle: str, running: tuple[tuple[int, int], ...] | None) -> list[Call]:
    name = f"nvmlDeviceGet{kind}RunningProcesses_v3"
    if running is None:
        return [call(name, handle, None, code=NOT_SUPPORTED)]
    if not running:
        return [call(name, handle, None, out=[0])]
    listed = [
        {"pid": pid, "usedGpuMemory": used, "gpuInstanceId": NO_INSTANCE, "computeInstanceId": NO_INSTANCE}
        for pid, used in running
    ]
    return [
        call(name, handle, None, out=[len(running)], code=SIZE_NEEDED),
        call(name, handle, "buffer", out=[len(running), listed]),
    ]


def _maybe(name: str, handle: str, *more: Any, value: Any) -> Call:
    return call(name, handle, *more, code=NOT_SUPPORTED) if value is None else call(name, handle, *more, out=[value])
