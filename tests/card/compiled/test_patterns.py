"""What public training scripts that compile do in and around compiled code."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops import scan
from torch.fx.experimental.proxy_tensor import make_fx

import vramcast
from vramcast.card.compiled.compiler import why_not
from vramcast.card.device.context import virtual_gpu
from vramcast.card.dispatch.unknown import UnknownKernel
from vramcast.card.stand_ins import hub_kernels
from vramcast.gpus import find_gpu
from vramcast.scripts import nvidia_smi
from vramcast.scripts.runner import run_script

compiles = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
pytestmark = pytest.mark.filterwarnings("ignore")
MIB = 1 << 20


@compiles
def test_constants_and_properties_of_the_card_in_compiled_code() -> None:
    with virtual_gpu("h200"):
        layer = nn.Linear(64, 64).cuda()

        @torch.compile(fullgraph=True)
        def loss(x: torch.Tensor) -> torch.Tensor:
            y = layer(x) * torch.tensor(3.0, device=x.device) + x.new_tensor(2.0) + x.new_tensor([1.0] * 64)
            return y.sum() * torch.cuda.get_device_properties("cuda").multi_processor_count

        value = loss(torch.ones(8, 64, device="cuda"))
        value.backward()
        assert value.is_cuda and layer.weight.grad is not None


@compiles
def test_what_a_kernel_writes_is_not_known() -> None:
    with virtual_gpu("h200") as card:
        numbers = torch.arange(4096, device="cuda")

        @torch.compile
        def chosen(x: torch.Tensor) -> torch.Tensor:
            return x[(x > 1000).nonzero().squeeze(-1)]

        assert len(chosen(numbers)) == 4096, "all of them, where the mask is not known"
        (note,) = [note for note in card.trace().notes if "nonzero" in note.text]
        assert note.where is not None and "test_patterns.py" in note.where, "not in code that Inductor wrote"


@compiles
@pytest.mark.parametrize(
    "setting", ["cpp_wrapper", "benchmark_fusion", "benchmark_combo_kernel", "triton.multi_kernel"],
)  # fmt: skip
def test_settings_that_need_a_card_to_generate_code_are_done_without(setting: str) -> None:
    def memory(options: dict[str, bool | int]) -> tuple[int, list[str]]:
        with virtual_gpu("h200") as card:
            x = torch.ones(4096, 4096, device="cuda", requires_grad=True)
            norm = torch.compile(lambda x: F.softmax(F.layer_norm(x * 2, (4096,)).sin(), -1).sum(), options=options)
            norm(x).backward()
            notes = [note.text for note in card.trace().notes if note.topic == "torch.compile"]
            return torch.cuda.max_memory_allocated(), notes

    combined = {"combo_kernels": True} if setting == "benchmark_combo_kernel" else {}
    (peak, without), (same, notes) = memory(combined), memory({**combined, setting: True})
    assert peak == same
    assert [note.partition(":")[0] for note in notes if note not in without] == [setting]


@compiles
def test_rms_norm_and_mish_are_taken_apart_as_for_cuda() -> None:
    """The functions that stand for their CUDA kernels compute nothing: a graph must not be made of them."""
    from torch._inductor import metrics

    with virtual_gpu("h200"):
        x = torch.ones(4096, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        weight = torch.ones(1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        norm = torch.compile(lambda x, weight: F.rms_norm(x, (1024,), weight))
        before = torch.cuda.memory_allocated()
        out = norm(x, weight)
        assert torch.cuda.memory_allocated() - before == 2 * x.numel() + 4 * 4096, "the output, and a number a row"
        metrics.reset()
        out.sum().backward()
        assert metrics.generated_kernel_count >= 2, "gradients of the input and of the weight"
        metrics.reset()
        torch.compile(lambda x: F.mish(x))(x).sum().backward()
        assert metrics.generated_kernel_count == 2, "one kernel forward, one backward"


@compiles
def test_flash_attention_is_part_of_one_graph() -> None:
    with vramcast.virtual_gpu("h200", packages=["flash-attn", "flash-attn-3"]):
        import flash_attn_interface  # type: ignore[import-not-found]
        from flash_attn import flash_attn_func  # type: ignore[import-not-found]

        @torch.compile(fullgraph=True)
        def attend(x: torch.Tensor) -> torch.Tensor:
            q, k, v = x, x + 1, x * 2
            return (flash_attn_func(q, k, v, causal=True) + flash_attn_interface.flash_attn_func(q, k, v)).sum()

        x = torch.ones(2, 128, 4, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        attend(x).backward()
        assert x.grad is not None and x.grad.shape == x.shape


@compiles
def test_a_thread_that_is_started_while_another_compiles_sees_the_card() -> None:
    seen: list[bool] = []
    with virtual_gpu("h200"):

        def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
            thread = threading.Thread(target=lambda: seen.append(torch.ones(4, device="cuda").is_cuda))
            thread.start()
            thread.join()
            return graph.forward

        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2, device="cuda"))
    assert seen == [True]


def test_cuda_source_is_not_compiled_and_allocates_nothing() -> None:
    if not hasattr(torch.cuda, "_compile_kernel"):
        pytest.skip("this torch has no torch.cuda._compile_kernel")
    with virtual_gpu("h200") as card:
        kernel = torch.cuda._compile_kernel(
            'extern "C" __global__ void add(float* a) {}', "add", compute_capability="90"
        )
        kernel.set_shared_memory_config(1 << 16)
        x = torch.zeros(256, device="cuda")
        before = card.n_blocks
        kernel((1, 1, 1), (256, 1, 1), (x, 256))
        assert card.n_blocks == before
        assert [
            note for note in card.trace().notes if note.topic == "CUDA source" and note.text.startswith("add is taken")
        ]


def test_a_file_is_read_into_pinned_memory(tmp_path: Path) -> None:
    """How many programs of the llm.c family load their tokens."""
    path = tmp_path / "tokens.bin"
    expected = torch.arange(2 * MIB, dtype=torch.int32) % 1000
    path.write_bytes(expected.numpy().tobytes())
    with virtual_gpu("h200") as card:
        tokens = torch.empty(2 * MIB, dtype=torch.int32, pin_memory=True)
        with path.open("rb") as file:
            file.readinto(tokens.numpy())
        starts = (tokens == 7).nonzero()[:, 0]
        assert len(starts) == int((expected == 7).sum())
        part = tokens[1000:1004]
        assert part.tolist() == [0, 1, 2, 3] and part.cuda().is_cuda
        tokens.copy_(torch.randint(0, 9, (2 * MIB,), device="cuda", dtype=torch.int32))
        assert not [note for note in card.trace().notes if note.topic == "unknown value"]


def test_kernels_of_the_hub_are_stood_in_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "kernels"
    package.mkdir()
    (package / "__init__.py").write_text(
        "def get_kernel(repo_id, **options):\n    raise OSError('no network')\n"
        "def has_kernel(repo_id, **options):\n    return False\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with virtual_gpu("h200") as card:
        from kernels import get_kernel, has_kernel  # type: ignore[import-not-found]

        assert has_kernel("kernels-community/flash-attn3") and not has_kernel("somebody/else")
        attention = get_kernel("kernels-community/flash-attn3", version=1).flash_attn_interface
        q = torch.ones(1, 128, 4, 64, device="cuda", dtype=torch.bfloat16)
        assert attention.flash_attn_func(q, q, q, causal=True).shape == q.shape
        assert get_kernel("kernels-community/flash-attn2").flash_attn_func(q, q, q).shape == q.shape
        with pytest.raises(OSError):
            get_kernel("somebody/else")
    texts = [note.text for note in card.trace().notes if note.topic == "packages"]
    assert len(texts) == 3 and any(text.startswith("kernels of somebody/else could not be loaded") for text in texts)
    import kernels

    with pytest.raises(OSError):
        kernels.get_kernel("kernels-community/flash-attn3")
    assert hub_kernels.stand_in_for("kernels-community/flash_attn3") == "flash_attn_interface"


def test_nvidia_smi_shows_the_named_card() -> None:
    gpu = find_gpu("h200")
    used = {0: 1024 * MIB, 1: 0}.__getitem__
    assert nvidia_smi.answer(["nvidia-smi", "-L"], gpu, 2, used).count("NVIDIA H200") == 2
    query = ["nvidia-smi", "--query-gpu=index,memory.used,pstate", "--format=csv,noheader,nounits"]
    assert nvidia_smi.answer(query, gpu, 2, used) == "0, 1024, [N/A]\n1, 0, [N/A]\n"
    words = ["nvidia-smi", "--query-gpu", "name,memory.total", "--format", "csv"]
    assert nvidia_smi.answer(words, gpu, 1, used) == "name, memory.total [MiB]\nNVIDIA H200, 143771 MiB\n"


def test_a_script_may_start_nvidia_smi(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import subprocess, torch\n"
        "assert 'H200' in subprocess.run(['nvidia-smi'], capture_output=True, text=True).stdout\n"
        "assert 'H200' in subprocess.check_output('nvidia-smi -L', shell=True, text=True)\n"
        "layer = torch.nn.Linear(8, 8).cuda()\n"
        "optimizer = torch.optim.SGD(layer.parameters())\n"
        "layer(torch.ones(8, 8, device='cuda')).sum().backward()\n"
        "optimizer.step()\n"
    )
    assert run_script(str(script), gpu="h200").device_bytes > 0


@compiles
def test_triton_times_a_function_beside_its_buffer() -> None:
    triton = pytest.importorskip("triton")
    with virtual_gpu("h200"):
        layer = nn.Linear(1024, 1024, device="cuda")
        x = torch.ones(64, 1024, device="cuda")
        before = torch.cuda.memory_allocated()
        assert triton.testing.do_bench(lambda: layer(x)) > 0
        assert torch.cuda.max_memory_allocated() - before >= 256 * MIB
        assert torch.cuda.memory_allocated() - before < 64 * MIB, "given back, but for cuBLAS's workspace"


@compiles
def test_a_function_is_traced_with_its_gradient_outside_compiled_code() -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad((x * x).sin().sum(), x)[0]

    with virtual_gpu("h200"):
        x = torch.ones(64, 64, device="cuda", requires_grad=True)
        traced = make_fx(gradient)(x)(x)
        assert traced.is_cuda and traced.shape == x.shape


@compiles
def test_control_flow_outside_compiled_code() -> None:
    with virtual_gpu("h200"):
        rows = torch.ones(8, 64, device="cuda")
        last, sums = scan(lambda total, row: (total + row, total * row), torch.zeros(64, device="cuda"), rows)
        assert last.shape == (64,) and sums.shape == (8, 64)
        weight = torch.ones(64, device="cuda", requires_grad=True)
        with pytest.raises(UnknownKernel, match="scan is differentiated at"):
            scan(lambda total, row: (total + row, total * row), weight, rows)
