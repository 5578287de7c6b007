"""The cards as NVML (`nvidia-ml-py`) tells of them. Only asks; nothing here changes a card or a process.

Cards differ in what they answer, and MIG instances answer less: a field that is refused is None. A card that the
driver has lost is told apart from one that was never there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from vramcast.base.errors import VramcastError
from vramcast.gpus.processes import describe
from vramcast.gpus.survey import CardProblem, GpuProcess, LocalGpu, MigPlace, Survey


class NvmlUnavailable(VramcastError):
    """There is no NVML to ask here; the text says why."""


class NvmlSession:
    """NVML from `nvmlInit` to `nvmlShutdown`; `survey` may be called as often as wanted."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError:
            raise NvmlUnavailable('its Python binding is missing: pip install "vramcast[gpu]"') from None
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlUnavailable(_why_no_nvml(pynvml, error)) from None

    def close(self) -> None:
        # Where the driver has gone there is nothing left to close.
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def __enter__(self) -> NvmlSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def survey(self) -> Survey:
        """Every card as it is now, numbered as nvidia-smi numbers them; MIG instances in place of their card."""
        nvml = self._nvml
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise NvmlUnavailable(_why_no_nvml(nvml, error)) from None
        cards: list[LocalGpu] = []
        problems: list[CardProblem] = []
        for index in range(count):
            try:
                cards += self._read(index)
            except nvml.NVMLError as error:
                problems.append(CardProblem(index, _why_no_card(nvml, error)))
        return Survey(
            cards=tuple(cards), problems=tuple(problems), driver=self._maybe(nvml.nvmlSystemGetDriverVersion, _text)
        )

    def _read(self, index: int) -> list[LocalGpu]:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        mode = self._maybe(nvml.nvmlDeviceGetMigMode, None, handle)
        instances = self._instances(index, handle) if mode and mode[0] == nvml.NVML_DEVICE_MIG_ENABLE else []
        return instances or [self._card(index, handle)]

    def _instances(self, index: int, handle: Any) -> list[LocalGpu]:
        nvml = self._nvml
        instances = []
        for slot in range(self._maybe(nvml.nvmlDeviceGetMaxMigDeviceCount, int, handle) or 0):
            instance = self._maybe(nvml.nvmlDeviceGetMigDeviceHandleByIndex, None, handle, slot)
            if instance is None:
                continue  # nothing was made in this slot
            place = MigPlace(
                card=index,
                gpu_instance=self._maybe(nvml.nvmlDeviceGetGpuInstanceId, int, instance),
                compute_instance=self._maybe(nvml.nvmlDeviceGetComputeInstanceId, int, instance),
            )
            instances.append(self._card(index, instance, place))
        return instances

    def _card(self, index: int, handle: Any, mig: MigPlace | None = None) -> LocalGpu:
        nvml = self._nvml
        total, used, free, reserved = self._memory(handle)
        utilization = self._maybe(nvml.nvmlDeviceGetUtilizationRates, None, handle)
        processes, known = self._processes(handle)
        return LocalGpu(
            index=index,
            name=_text(nvml.nvmlDeviceGetName(handle)),
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            total_bytes=total,
            used_bytes=used,
            free_bytes=free,
            reserved_bytes=reserved,
            busy_percent=None if utilization is None else int(utilization.gpu),
            temperature_celsius=self._maybe(nvml.nvmlDeviceGetTemperature, int, handle, nvml.NVML_TEMPERATURE_GPU),
            processes=processes,
            processes_known=known,
            mig=mig,
        )

    def _memory(self, handle: Any) -> tuple[int, int, int, int | None]:
        """Total, used, free, and what the driver keeps for itself.

        The second version of the call counts the driver's part apart, as nvidia-smi does; the first has it in "used".
        """
        nvml = self._nvml
        second = self._maybe(nvml.nvmlDeviceGetMemoryInfo, None, handle, nvml.nvmlMemory_v2)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle) if second is None else second
        reserved = None if second is None else int(second.reserved)
        return int(memory.total), int(memory.used), int(memory.free), reserved

    def _processes(self, handle: Any) -> tuple[tuple[GpuProcess, ...], bool]:
        """Largest first, and whether the driver told at all."""
        nvml = self._nvml
        kinds: dict[int, str] = {}
        used: dict[int, int | None] = {}
        known = False
        for kind in ("compute", "graphics"):
            running = self._running(kind.title(), handle)
            if running is None:
                continue
            known = True
            for process in running:
                pid = int(process.pid)
                kinds[pid] = f"{kinds[pid]} and {kind}" if pid in kinds else kind
                size = process.usedGpuMemory
                # One that computes and draws is listed twice, with the same figure.
                used[pid] = used.get(pid) if size is None else max(int(size), used.get(pid) or 0)
        processes = []
        for pid, kind in kinds.items():
            described = describe(pid)
            name = described.name or self._maybe(nvml.nvmlSystemGetProcessName, _text, pid) or ""
            processes.append(GpuProcess(pid, name.rpartition("/")[2], used[pid], user=described.user, kind=kind))
        return tuple(sorted(processes, key=lambda process: (-(process.used_bytes or 0), process.pid))), known

    def _running(self, kind: str, handle: Any) -> Any:
        """Drivers before 510 have only the second version of the call."""
        for version in ("_v3", "_v2"):
            call = getattr(self._nvml, f"nvmlDeviceGet{kind}RunningProcesses{version}", None)
            running = None if call is None else self._maybe(call, None, handle)
            if running is not None:
                return running
        return None

    def _maybe(self, call: Callable[..., Any], convert: Callable[[Any], Any] | None, *args: Any) -> Any:
        """The answer, or None where this card does not give it; a lost card raises."""
        nvml = self._nvml
        try:
            answer = call(*args)
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED):
                raise
            return None
        return answer if convert is None else convert(answer)


def _why_no_nvml(nvml: Any, error: Any) -> str:
    return {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "there is no NVIDIA driver here (libnvidia-ml is not installed)",
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is installed but not loaded",
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the NVIDIA driver was updated and the old one still runs: restart",
        nvml.NVML_ERROR_NO_PERMISSION: "you may not ask the NVIDIA driver (/dev/nvidia*)",
    }.get(error.value, f"NVML answers: {error}")


def _why_no_card(nvml: Any, error: Any) -> str:
    return {
        nvml.NVML_ERROR_GPU_IS_LOST: "the driver has lost it (it fell off the bus); it comes back with a restart",
        nvml.NVML_ERROR_RESET_REQUIRED: "it must be reset before it can be used again",
        nvml.NVML_ERROR_NO_PERMISSION: "you may not ask for it",
    }.get(error.value, f"NVML answers: {error}")


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
