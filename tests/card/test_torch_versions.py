"""What depends on the version of torch, by its number: most of it holds whichever torch is installed here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import vramcast
from vramcast.base.torch_versions import NEWEST, OLDEST, Version, version_of, what_is_assumed, why_not
from vramcast.base.units import KIB, MIB
from vramcast.card.choices.workspaces import WorkspaceRules
from vramcast.card.device.context import VirtualGpu
from vramcast.card.device.installed_torch import INSTALLED
from vramcast.card.ops.attention import flash_padded_width
from vramcast.card.ops.embedding import adds_in_place
from vramcast.gpus import find_gpu

SMALL, LARGE = 8320 * KIB, 32 * MIB


def test_versions_are_read_as_torch_writes_them() -> None:
    assert version_of("2.11.0+cu130") == (2, 11)
    assert version_of("2.14.0a0+gitabc") == version_of("2.14") == (2, 14)


# -- which are supported ----------------------------------------------------------------------------------------


def test_only_an_older_torch_is_refused() -> None:
    assert why_not("2.6.0") is None
    assert why_not("3.0.1") is None
    reason = why_not("2.5.1+cu124")
    assert reason is not None and "torch 2.5.1+cu124 is too old" in reason and "pip install" in reason
    assert "\n" not in reason


def test_only_a_newer_torch_is_noted() -> None:
    assert what_is_assumed("2.6.0") is None and what_is_assumed("2.14.1+cpu") is None
    assert "the rules of 2.14 are used" in str(what_is_assumed("2.15.0"))
    assert OLDEST == (2, 6) and NEWEST == (2, 14)


def _vramcast(version: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line under a torch that says it is this version."""
    program = (
        f"import sys, torch; torch.__version__ = {version!r}; from vramcast.cli.main import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\n"
        "model = torch.nn.Linear(64, 64).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(4):\n"
        "    model(torch.randn(8, 64, device='cuda')).sum().backward()\n"
        "    optimizer.step()\n"
    )
    return str(path)


def test_a_torch_that_is_too_old_is_one_line(script: str) -> None:
    run = _vramcast("2.5.1", "run", "--gpu", "t4", script)
    assert run.returncode == 3
    assert run.stdout == ""
    assert run.stderr.startswith("vramcast: torch 2.5.1 is too old")
    assert run.stderr.count("\n") == 1


def test_what_needs_no_torch_works_with_any() -> None:
    run = _vramcast("2.5.1", "gpus")
    assert run.returncode == 0 and "RTX 4090" in run.stdout


def test_a_torch_that_is_newer_is_predicted_with_a_note(script: str) -> None:
    run = _vramcast("2.99.0", "run", "--full", "--gpu", "t4", script)
    assert run.returncode == 0, run.stderr
    told = " ".join(run.stdout.split())
    assert "2.99.0 is newer than any version vramcast was checked with: the rules of 2.14 are used" in told


def test_settings_that_the_installed_torch_does_not_know() -> None:
    with vramcast.virtual_gpu("t4", allocator_conf="large_segment_size_mb:64") as gpu:
        torch.empty(1, device="cuda")
    notes = [note.text for note in gpu.trace().notes if note.topic == "allocator"]
    assert bool(notes) == (INSTALLED < (2, 11))


# -- cuBLAS -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("card", "version", "nbytes"),
    [
        ("h200", (2, 6), LARGE),
        ("rtx-4090", (2, 14), SMALL),
        ("rtx-5090", (2, 11), SMALL),
        ("rtx-5090", (2, 12), LARGE),
        ("b200", (2, 11), SMALL),
        ("b200", (2, 12), LARGE),
    ],
)
def test_the_workspace_of_cublas(card: str, version: Version, nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert WorkspaceRules(find_gpu(card), version).cublas_handle() == nbytes


def test_the_workspace_of_cublas_that_a_program_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = WorkspaceRules(find_gpu("rtx-4090"))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    assert rules.cublas_handle() == 32 * MIB
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    assert rules.cublas_handle() == 128 * KIB
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "nonsense")
    assert rules.cublas_handle() == SMALL


@pytest.mark.parametrize(("version", "nbytes"), [((2, 6), MIB), ((2, 11), MIB), ((2, 12), None)])
def test_the_workspace_of_cublas_lt(version: Version, nbytes: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUBLASLT_WORKSPACE_SIZE", "TORCH_CUBLASLT_UNIFIED_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    rules = WorkspaceRules(find_gpu("rtx-4090"), version)
    assert rules.cublas_lt() == nbytes
    monkeypatch.setenv("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "0")
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "4096")
    assert rules.cublas_lt() == 4 * MIB


def test_what_a_linear_layer_leaves_in_workspaces(gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLASLt's part: freed after each call up to torch 2.8, kept from 2.9 on, cuBLAS's own from 2.12 on."""
    for name in ("CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE", "TORCH_CUBLASLT_UNIFIED_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    x, weight, bias = (torch.empty(size, device="cuda") for size in ((64, 64), (64, 64), (64,)))
    before = torch.cuda.memory_allocated()
    del x, weight, bias
    x, weight, bias = (torch.empty(size, device="cuda") for size in ((64, 64), (64, 64), (64,)))
    out = torch.addmm(bias, x, weight)
    kept = MIB if (2, 9) <= INSTALLED < (2, 12) else 0
    assert torch.cuda.memory_allocated() - before == out.nbytes + SMALL + kept
    assert torch.cuda.max_memory_allocated() - before == out.nbytes + SMALL + (MIB if INSTALLED < (2, 12) else 0)


# -- other kernels ----------------------------------------------------------------------------------------------


def test_embedding_gradients_of_few_long_segments() -> None:
    card = find_gpu("h200")
    few = {"n": 65536, "rows": 64, "width": 64}
    assert adds_in_place(card, **few, version=(2, 11))
    assert not adds_in_place(card, **few, version=(2, 10))
    assert not adds_in_place(card, n=65536, rows=50257, width=768, version=(2, 11))


def test_rms_norm_is_one_kernel_from_torch_2_9_on(gpu: VirtualGpu) -> None:
    x = torch.empty(256, 1024, device="cuda", requires_grad=True)
    weight = torch.empty(1024, device="cuda", requires_grad=True)
    before = torch.cuda.memory_allocated()
    out = torch.nn.functional.rms_norm(x, (1024,), weight)
    kept = torch.cuda.memory_allocated() - before
    one_a_row = 256 * 4
    if INSTALLED >= (2, 9):
        assert kept == out.nbytes + one_a_row
    else:  # the normalized input too, for the gradient of the weight
        assert kept == 2 * out.nbytes + one_a_row
    out.sum().backward()
    assert x.grad is not None and weight.grad is not None


@pytest.mark.parametrize(
    ("version", "padded"),
    [
        ((2, 6), [64, 128, 160, 192, 224, 256]),
        ((2, 7), [64, 128, 160, 192, 256, 256]),
        ((2, 11), [64, 128, 192, 192, 256, 256]),
    ],
)
def test_rows_of_flash_attention_in_backward(version: Version, padded: list[int]) -> None:
    assert [flash_padded_width(width, version) for width in (64, 128, 160, 192, 224, 256)] == padded


def test_what_flash_attention_keeps(gpu: VirtualGpu) -> None:
    """One number a row, and from torch 2.7 on two small tensors of random state on the card."""
    q = torch.empty(2, 4, 128, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    before = torch.cuda.memory_allocated()
    out = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    kept = torch.cuda.memory_allocated() - before - out.nbytes - 4 * 2 * 4 * 128
    assert kept == (0 if INSTALLED < (2, 7) else 2 * 512)
    out.sum().backward()


@pytest.mark.skipif(not hasattr(torch._C, "_accelerator_getDefaultGenerator"), reason="asked for in later versions")
def test_the_generator_of_an_accelerator_is_the_cards(gpu: VirtualGpu) -> None:
    """Inductor asks for it where dropout is recomputed."""
    generator = torch._C._accelerator_getDefaultGenerator(0)
    assert generator.clone_state() is not None and generator is torch.cuda.default_generators[0]
