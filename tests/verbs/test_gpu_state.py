"""What the cards here hold, from NVML or nvidia-smi, both played by stand-ins."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from vramcast.cli.main import main
from vramcast.errors import UsageError
from vramcast.gpus import state
from vramcast.gpus.state import GpuProcess, LocalGpu, local_gpu, local_gpus, parse_smi_state
from vramcast.units import GIB, MIB


class NvmlError(Exception):
    pass


def nvml(cards: int = 2) -> SimpleNamespace:
    def memory(handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=24 * GIB, used=(handle + 1) * GIB, free=(23 - handle) * GIB)

    def name_of(pid: int) -> bytes:
        if pid == 8:
            raise NvmlError
        return b"/usr/bin/python"

    processes = [SimpleNamespace(pid=7, usedGpuMemory=GIB // 4), SimpleNamespace(pid=8, usedGpuMemory=None),
                 SimpleNamespace(pid=9, usedGpuMemory=GIB // 2)]  # fmt: skip
    return SimpleNamespace(
        NVMLError=NvmlError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: cards,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetName=lambda handle: b"NVIDIA GeForce RTX 4090",
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}abc",
        nvmlDeviceGetComputeRunningProcesses=lambda handle: processes,
        nvmlSystemGetProcessName=name_of,
    )


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("two_cards")
def test_nvml() -> None:
    first, second = local_gpus()
    assert (first.total_bytes, first.used_bytes, first.free_bytes) == (24 * GIB, GIB, 23 * GIB)
    assert first.processes == (
        GpuProcess(9, "python", GIB // 2), GpuProcess(7, "python", GIB // 4), GpuProcess(8, "", None)
    )  # fmt: skip
    assert second.spec().id == "rtx-4090"


@pytest.mark.usefixtures("two_cards")
@pytest.mark.parametrize(
    ("visible", "free"),
    [("1", [22]), ("1,0", [22, 23]), ("GPU-1a", [22]), ("", []), ("0,7,1", [23]), ("-1", [])],
)
def test_visible_devices_are_heeded(monkeypatch: pytest.MonkeyPatch, visible: str, free: list[int]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    cards = local_gpus()
    assert [card.free_bytes // GIB for card in cards] == free
    assert [card.index for card in cards] == list(range(len(cards)))


@pytest.mark.usefixtures("two_cards")
def test_a_card_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="the visible ones are 0, 1"):
        local_gpu(2)


def test_nvidia_smi_where_the_binding_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # the import fails
    monkeypatch.setattr(state, "_smi", lambda: "0, GPU-1, 24564, 564, 24000, NVIDIA GeForce RTX 4090\nnonsense\n")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (card,) = local_gpus()
    assert card.free_bytes == 24000 * MIB
    assert card.spec().id == "rtx-4090"
    assert parse_smi_state("") == []


def test_an_unknown_card_is_known_by_its_size() -> None:
    card = LocalGpu(index=0, name="NVIDIA Thing", uuid="", total_bytes=48 * GIB, used_bytes=0, free_bytes=48 * GIB)
    assert card.spec().memory_mib == 48 * 1024


@pytest.mark.usefixtures("two_cards")
def test_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "--here"]) == 0
    out = capsys.readouterr().out
    assert "NVIDIA GeForce RTX 4090" in out and "512.0 MiB" in out and "not said" in out
    assert main(["gpus", "--here", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == "vramcast-local-gpus"
    assert document["gpus"][1]["free_bytes"] == 22 * GIB


def test_no_card(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(state, "_by_nvml", list)
    assert main(["gpus", "--here"]) == 0
    assert "no NVIDIA GPU here" in capsys.readouterr().out
