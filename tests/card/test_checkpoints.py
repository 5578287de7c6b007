"""Tensors without data never reach a file, and files on disk are not read into memory."""

from __future__ import annotations

import copy
import io
import os
import pickle
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vramcast
from tests.card.reading import growth
from vramcast.card.device.context import VirtualGpu

PRECIOUS = b"a checkpoint that took a week"


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "model.pt"
    path.write_bytes(PRECIOUS)
    return path


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(256, 256).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 256, device="cuda")).sum().backward()
    optimizer.step()
    return model, optimizer


def notes(gpu: VirtualGpu) -> list[tuple[str, str]]:
    return [(note.text, note.where or "") for note in gpu.trace().notes if note.topic == "checkpoint"]


@pytest.mark.parametrize(
    "content",
    [
        lambda model, optimizer: model.state_dict(),
        lambda model, optimizer: model,
        lambda model, optimizer: {"epoch": 3, "nested": [{"state": optimizer.state_dict()}]},
        lambda model, optimizer: {name: value.cpu() for name, value in model.state_dict().items()},
        lambda model, optimizer: model(torch.randn(4, 256, device="cuda")).detach().cpu(),
        lambda model, optimizer: nn.Linear(512, 512).state_dict(),  # never moved, without data all the same
    ],
)
def test_a_file_is_not_overwritten(gpu: VirtualGpu, precious: Path, content: Any) -> None:
    torch.save(content(*trained()), precious)
    assert precious.read_bytes() == PRECIOUS
    ((text, where),) = notes(gpu)
    assert text == "model.pt is left as it is: what would replace it has no data here"
    assert "test_checkpoints.py:" in where


def true_size(tmp_path: Path) -> int:
    """Of what torch itself saves of the same tensors, on the CPU."""
    path = tmp_path / "true.pt"
    torch.save(dict(nn.Linear(256, 256).state_dict()), path)
    size = path.stat().st_size
    path.unlink()
    return size


@pytest.mark.parametrize("way", ["path", "open file", "buffer"])
def test_a_file_is_as_large_as_it_would_be_and_holds_nothing(tmp_path: Path, way: str) -> None:
    expected = true_size(tmp_path)
    path = tmp_path / "new.pt"
    with vramcast.virtual_gpu("rtx-4090"):
        state = trained()[0].state_dict()
        if way == "path":
            torch.save(state, path)
        elif way == "open file":
            with path.open("wb") as file:
                torch.save(state, file)
        else:
            buffer = io.BytesIO()
            torch.save(state, buffer)
            path.write_bytes(buffer.getvalue())
        path = path.rename(tmp_path / "renamed.pt")
        copied = shutil.copy(path, tmp_path / "copied.pt")
        for name in (path, copied):
            back = torch.load(name, map_location="cuda")
            assert back["weight"].shape == (256, 256) and back["weight"].is_cuda
    assert abs(path.stat().st_size - expected) <= 512
    if way != "buffer":
        assert path.stat().st_blocks * 512 < 256 * 256 * 4, "holes"
    for options in ({}, {"map_location": "cpu"}, {"map_location": "cpu", "mmap": True}, {"weights_only": False}):
        with pytest.raises(Exception, match=r"written_by_a_prediction|holds no weights"):
            torch.load(path, **options)


def test_shared_and_known_storages_come_back_as_they_were(gpu: VirtualGpu, tmp_path: Path) -> None:
    weight = torch.randn(512, 512, device="cuda")
    state = {"a": weight, "b": weight.t(), "c": weight[3], "ids": torch.arange(5, device="cuda"), "lr": torch.ones(2)}
    torch.save(state, tmp_path / "s.pt")
    taken, back = growth(lambda: torch.load(tmp_path / "s.pt"))
    assert taken == 512 * 512 * 4 + 512, "one storage of the three, and the ids"
    assert back["b"].stride() == (1, 512) and back["c"].shape == (512,)
    assert back["a"].untyped_storage().data_ptr() == back["c"].untyped_storage().data_ptr()
    assert back["ids"].tolist() == [0, 1, 2, 3, 4] and back["lr"].tolist() == [1, 1]
    on_host = torch.load(tmp_path / "s.pt", map_location="cpu")
    assert on_host["a"].device.type == "cpu" and on_host["ids"].tolist() == [0, 1, 2, 3, 4]


def test_what_is_real_is_saved(gpu: VirtualGpu, tmp_path: Path) -> None:
    path = tmp_path / "data.pt"
    torch.save({"ids": torch.arange(10), "name": "x"}, path)
    assert torch.load(path)["ids"].tolist() == list(range(10))
    assert notes(gpu) == []


def test_a_program_reads_its_own_checkpoint_back(gpu: VirtualGpu, precious: Path) -> None:
    model, optimizer = trained()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 7}, precious)
    back = torch.load(precious, map_location="cpu", weights_only=True)
    assert back["epoch"] == 7 and back["model"]["weight"].device.type == "cpu"
    assert growth(lambda: model.load_state_dict(back["model"]))[0] == 0
    assert growth(lambda: optimizer.load_state_dict(back["optimizer"]))[0] == 0, "the new state replaces the old"
    taken, on_card = growth(lambda: torch.load(precious, map_location="cuda")["model"])
    assert on_card["weight"].is_cuda and taken == 256 * 256 * 4 + 256 * 4
    assert torch.load(precious)["model"]["weight"].is_cuda, "where it was saved from"


def test_a_buffer_in_memory_works(gpu: VirtualGpu) -> None:
    model, _ = trained()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    again = torch.load(buffer, weights_only=False)
    assert isinstance(again, nn.Linear) and again.weight.is_cuda and again.weight.shape == (256, 256)


def test_pickling_and_copying(gpu: VirtualGpu) -> None:
    model, _ = trained()
    twin = pickle.loads(pickle.dumps(model))
    assert twin.weight.is_cuda and twin.weight.requires_grad
    assert any("pickled" in text for text, _ in notes(gpu))
    taken, twin = growth(lambda: copy.deepcopy(model))
    assert taken == 256 * 256 * 4 + 256 * 4, "a copied parameter has no gradient"
    tensor = torch.arange(3, device="cuda")
    assert pickle.loads(pickle.dumps(tensor)).tolist() == [0, 1, 2]


def test_loading_a_real_file_to_the_card(tmp_path: Path) -> None:
    path = tmp_path / "real.pt"
    torch.save({"weight": torch.ones(1000, 1000), "ids": torch.tensor([1, 2, 3])}, path)
    with vramcast.virtual_gpu("rtx-4090"):
        for where in ("cuda", torch.device("cuda", 0), {"cpu": "cuda:0"}, lambda storage, location: storage.cuda()):
            taken, state = growth(lambda where=where: torch.load(path, map_location=where))
            assert state["weight"].is_cuda and state["ids"].is_cuda
            assert taken == 1000 * 1000 * 4 + 512 - 1000 * 1000 * 4 % 512 + 512
            assert state["ids"].tolist() == [1, 2, 3]
            del state
        plain = torch.load(path)
        assert plain["weight"][0, 0].item() == 1.0, "on the CPU it is real"


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.pt"
    torch.save({"weight": torch.empty(1 << 27)}, path)  # 512 MiB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with vramcast.virtual_gpu("rtx-4090"):
        model = nn.Linear(1 << 14, 1 << 13, bias=False)
        state = torch.load(path, map_location="cpu")
        model.load_state_dict({"weight": state["weight"].view(1 << 13, 1 << 14)})
        model.cuda()
        torch.load(path, map_location="cuda")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    os.unlink(path)
    assert grown * 1024 < 1 << 27


# -- safetensors ------------------------------------------------------------------------------------------------


def test_safetensors_reads_headers(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    from safetensors.torch import load_file, save_file

    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.ones(500, 500, dtype=torch.bfloat16), "ids": torch.tensor([1, 2, 3])}, path)
    with vramcast.virtual_gpu("rtx-4090"):
        state = load_file(path)
        assert state["weight"].shape == (500, 500) and state["weight"].dtype == torch.bfloat16
        assert state["weight"].device.type == "cpu"
        assert state["ids"].tolist() == [1, 2, 3], "small tensors are read"
        taken, state = growth(lambda: load_file(path, device="cuda"))
        assert state["weight"].is_cuda and taken == -(-500 * 500 * 2 // 512) * 512 + 512
        assert state["ids"].tolist() == [1, 2, 3]
        with safetensors.safe_open(path, "pt", device="cpu") as file:
            assert set(file.keys()) == {"weight", "ids"}
            part = file.get_slice("weight")
            assert part.get_shape() == [500, 500]
            assert part[:, :10].shape == (500, 10)
    assert load_file(path)["weight"].eq(1).all(), "outside, the file itself"


def test_safetensors_writes_nothing_without_data(gpu: VirtualGpu, precious: Path) -> None:
    pytest.importorskip("safetensors")
    from safetensors.torch import load, load_file, save, save_file, save_model

    model, _ = trained()
    save_file(model.state_dict(), precious)
    save_model(model, str(precious))
    assert precious.read_bytes() == PRECIOUS
    assert len(notes(gpu)) == 2
    assert load_file(precious)["weight"].shape == (256, 256), "what the program believes it has written"
    new = precious.with_name("new.safetensors")
    save_file({**model.state_dict(), "step": torch.tensor([7])}, new, metadata={"format": "pt"})
    assert 256 * 257 * 4 < new.stat().st_size < 256 * 257 * 4 + 512
    back = load_file(new)
    assert back["weight"].shape == (256, 256) and back["step"].tolist() == [7]
    data = save(model.state_dict())
    assert load(data)["weight"].shape == (256, 256) and len(data) > 256 * 257 * 4
    gpu.__exit__(None, None, None)
    with pytest.raises(Exception, match="written by a vramcast prediction and holds no weights"):
        load_file(new)
    real = precious.with_suffix(".safetensors")
    save_file({"a": torch.ones(2)}, real)
    assert load_file(real)["a"].tolist() == [1, 1]
