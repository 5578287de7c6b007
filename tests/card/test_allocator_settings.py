"""PYTORCH_CUDA_ALLOC_CONF set by the program: read when CUDA is initialized, as measured with torch 2.11."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import vramcast
from vramcast.allocator import BackendNotModelled
from vramcast.base.torch_versions import PYTORCH_ALLOC_CONF
from vramcast.base.units import MIB
from vramcast.card.device.context import VirtualGpu
from vramcast.card.device.installed_torch import INSTALLED
from vramcast.scripts.runner import run_script

EXPANDABLE = "expandable_segments:True"
VARIABLE, NEW_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (VARIABLE, NEW_VARIABLE):
        monkeypatch.setenv(name, "")  # so that what a test sets is taken away again
        monkeypatch.delenv(name)


def is_expandable() -> bool:
    x = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    found = {segment["is_expandable"] for segment in torch.cuda.memory._snapshot()["segments"]}
    del x
    return found == {True}


@pytest.mark.parametrize(
    "first",
    [
        lambda: None,
        torch.cuda.is_available,
        torch.cuda.device_count,
        lambda: torch.manual_seed(0),
        lambda: torch.cuda.memory_allocated(),
        lambda: torch.cuda.empty_cache(),
        lambda: torch.cuda.Event(),
        lambda: torch.cuda.Stream(),
    ],
)
@pytest.mark.parametrize("name", [VARIABLE, NEW_VARIABLE] if INSTALLED >= PYTORCH_ALLOC_CONF else [VARIABLE])
def test_read_at_the_first_use(first: Callable[[], object], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with vramcast.virtual_gpu("h200") as card:
        first()
        monkeypatch.setenv(name, EXPANDABLE)
        assert is_expandable()
        assert torch.cuda.memory_reserved() == 20 * MIB
    assert card.trace().allocator_conf == EXPANDABLE and not card.trace().notes


@pytest.mark.parametrize(
    "first",
    [
        lambda: torch.empty(0, device="cuda"),
        lambda: torch.cuda.init(),
        lambda: torch.cuda.get_device_name(),
        lambda: torch.cuda.set_device(0),
        lambda: torch.cuda.is_bf16_supported(),
        lambda: torch.cuda.reset_peak_memory_stats(),
        lambda: torch.empty(100).pin_memory(),
    ],
)
def test_ignored_after_it(first: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    with vramcast.virtual_gpu("h200") as card:
        first()
        monkeypatch.setenv(VARIABLE, EXPANDABLE)
        assert not is_expandable()
    [note] = [note.text for note in card.trace().notes if note.topic == "allocator"]
    assert f"{VARIABLE}={EXPANDABLE} was set after CUDA had been initialized" in note


def test_the_older_name_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "max_split_size_mb:64")
    monkeypatch.setenv(NEW_VARIABLE, EXPANDABLE)
    with vramcast.virtual_gpu("h200"):
        assert not is_expandable()


def change(text: str) -> None:
    torch.cuda.memory._set_allocator_settings(text)


def test_settings_that_are_changed_keep_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with vramcast.virtual_gpu("h200") as card:
        monkeypatch.setenv(VARIABLE, EXPANDABLE)
        change("max_split_size_mb:64")
        assert is_expandable()
        assert card.allocator_conf == f"{EXPANDABLE},max_split_size_mb:64"
    assert not card.trace().notes


@pytest.mark.parametrize("text", ["expandable_segmentz:True", "expandable_segments:yes", "expandable_segments=True"])
def test_what_cannot_be_read_fails_in_the_program(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with vramcast.virtual_gpu("h200"):
        monkeypatch.setenv(VARIABLE, text)
        with pytest.raises(ValueError, match="expandable_segments"):
            torch.empty(1, device="cuda")


def test_another_allocator_is_not_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    with vramcast.virtual_gpu("h200"):
        monkeypatch.setenv(VARIABLE, "backend:cudaMallocAsync")
        with pytest.raises(BackendNotModelled):
            torch.empty(1, device="cuda")


def test_a_script_that_sets_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os\n"
        f"os.environ['{VARIABLE}'] = '{EXPANDABLE}'\n"
        "import torch\n"
        "model = torch.nn.Linear(1000, 1000).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "for _ in range(3):\n"
        "    model(torch.ones(8, 1000, device='cuda')).sum().backward()\n"
        "    optimizer.step()\n"
    )
    prediction = run_script(str(script), gpu="rtx-4090")
    assert prediction.trace.allocator_conf == EXPANDABLE
    assert VARIABLE not in os.environ


def test_what_is_asked_for_holds_unless_the_program_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    with VirtualGpu(vramcast.virtual_gpu("h200").gpu, EXPANDABLE):
        assert is_expandable()
    with VirtualGpu(vramcast.virtual_gpu("h200").gpu, EXPANDABLE):
        monkeypatch.setenv(VARIABLE, "max_split_size_mb:64")
        assert not is_expandable()
