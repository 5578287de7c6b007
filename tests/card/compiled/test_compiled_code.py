"""torch.compile on the virtual card."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask
from torch.overrides import BaseTorchFunctionMode

import vramcast
from tests.card.reading import sizes_of
from vramcast.base.factories import full_collections_rarely
from vramcast.card.compiled import compiler
from vramcast.card.compiled.compiler import why_not
from vramcast.errors import CannotPredict

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.filterwarnings("ignore"),
]
MIB = 1 << 20


def train(model: nn.Module, compiled: nn.Module, steps: int = 3, width: int = 1024) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        compiled(torch.randn(512, width, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_pointwise_functions_are_fused() -> None:
    with vramcast.virtual_gpu("h200") as card:

        @torch.compile
        def function(x: torch.Tensor) -> torch.Tensor:
            return (x.sin() + 1).cos() * 2

        x = torch.empty(1 << 20, device="cuda")
        function(x)  # the first launch times its configurations
        before = card.n_blocks
        out = function(x)
        assert card.n_blocks - before == 1, "one kernel, one buffer"
        assert out.device == torch.device("cuda", 0)
        assert out.shape == x.shape
        assert not [note for note in card.trace().notes if "eager" in note.text]


def test_code_that_enters_a_function_mode_leaves_the_card_in_place() -> None:
    """Such code sets the whole stack of modes, as create_block_mask does."""
    with vramcast.virtual_gpu("h200"):
        for _ in range(2):
            mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 256, 256, device="cuda", _compile=True)
            assert mask.kv_indices.is_cuda
        before = torch.cuda.memory_allocated()
        kept = torch.empty(MIB).cuda()
        assert kept.is_cuda and torch.cuda.memory_allocated() - before == 4 * MIB
        torch.set_default_device("cuda")
        try:
            torch.compile(_in_a_mode)(torch.ones(4))
        finally:
            torch.set_default_device(None)  # fails where the device's mode is not the lowest any more


def _in_a_mode(x: torch.Tensor) -> torch.Tensor:
    with BaseTorchFunctionMode():
        return x + 1


def test_backward_and_optimizer() -> None:
    with vramcast.virtual_gpu("h200") as card:
        model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
        train(model, torch.compile(model))
        weights = sum(p.numel() for p in model.parameters()) * 4
        assert torch.cuda.memory_allocated() < weights + 80 * MIB, "weights, and the workspaces of cuBLAS"
        assert card.trace().steps == 3


def test_what_runs_on_the_host_is_computed_and_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale and counts on the host beside a tensor on the card, as in compiled optimizers."""
    monkeypatch.setattr("torch._inductor.async_compile.AsyncCompile.cpp_pybinding", None)
    with vramcast.virtual_gpu("h200") as card:

        @torch.compile
        def step(weight: torch.Tensor, scale: torch.Tensor, counts: list[torch.Tensor]) -> torch.Tensor:
            torch._foreach_add_(counts, 1)
            scale = scale * 2 + 1
            weight.sub_(scale)
            return scale

        counts = [torch.tensor(1.0), torch.tensor(2.0)]
        scale = step(torch.ones(8, device="cuda"), torch.tensor(3.0), counts)
        assert scale.item() == 7.0 and counts == [2.0, 3.0]
        assert {note.topic for note in card.trace().notes} <= {"torch.compile"}, "of a torch that was not compared"


@pytest.mark.parametrize("layer", [nn.RMSNorm(256), nn.Mish()], ids=["rms_norm", "mish"])
def test_ops_with_rules_of_the_card_stay_in_the_graph(layer: nn.Module) -> None:
    """Such a rule only allocates. Traced into a graph it would leave no kernel there, and no gradient to what is before
    it."""
    with vramcast.virtual_gpu("h200") as card:
        model = nn.Sequential(nn.Linear(256, 256, bias=False), layer, nn.Linear(256, 256, bias=False)).cuda()
        train(model, torch.compile(model, fullgraph=True), width=256)
        calls = card.trace().calls
    assert calls is not None
    launched = [calls.ops[number] for number in calls.call]
    assert launched.count("aten.mm.out") == 3 * 5, "two products forward, three backward"
    assert sum(op.startswith("triton.fused_") for op in launched) >= 3 * 2


def test_compiled_code_runs_on_the_card_of_its_rank() -> None:
    def peak(index: int) -> int:
        with vramcast.virtual_gpu("h200", cards=4):
            torch.cuda.set_device(index)
            model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
            compiled = torch.compile(model)
            assert compiled(torch.randn(512, 1024, device="cuda")).device == torch.device("cuda", index)
            train(model, compiled)
            return torch.cuda.max_memory_allocated()

    assert peak(3) == peak(0)


def test_less_is_saved_than_by_eager_code() -> None:
    def peak(compile_it: bool) -> int:
        class Gated(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for _ in range(6):
                    x = F.silu(x) * torch.sigmoid(x) + 1
                return x

        with vramcast.virtual_gpu("h200"):
            model = nn.Sequential(nn.Linear(256, 256), Gated(), nn.Linear(256, 256)).cuda()
            compiled = torch.compile(model) if compile_it else model
            for _ in range(2):
                torch.cuda.reset_peak_memory_stats()
                compiled(torch.randn(1 << 16, 256, device="cuda")).sum().backward()
            return torch.cuda.max_memory_allocated()

    assert peak(True) < 0.5 * peak(False)


def test_autocast_is_traced_as_for_cuda() -> None:
    dtypes = []
    with vramcast.virtual_gpu("h200"):
        model = nn.Linear(64, 64).cuda()
        compiled = torch.compile(model)
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cuda", dtype=dtype):
                dtypes.append(compiled(torch.randn(8, 64, device="cuda")).dtype)
    assert dtypes == [torch.bfloat16, torch.float16]


def test_a_graph_break_runs_the_rest_as_eager_code() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.a(x)
            print("half of it", x.shape)
            return self.b(x).relu()

    with vramcast.virtual_gpu("h200") as card:
        model = Reads().cuda()
        train(model, torch.compile(model), width=64)
        assert card.trace().steps == 3


def test_another_shape_is_compiled_again() -> None:
    with vramcast.virtual_gpu("h200"):
        model = nn.Linear(64, 64).cuda()
        compiled = torch.compile(model)
        for rows in (8, 16, 24):
            assert compiled(torch.randn(rows, 64, device="cuda")).shape == (rows, 64)


def test_the_users_caches_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with vramcast.virtual_gpu("h200"):
        torch.compile(lambda x: x.sin() * 2)(torch.empty(16, device="cuda"))
    assert list(tmp_path.iterdir()) == []
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)


def test_what_cannot_be_compiled_is_no_eager_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import lowering

    def refuse(*args: object, **kwargs: object) -> None:
        raise KeyError("no such kernel")

    monkeypatch.setitem(lowering.lowerings, torch.ops.aten.sin.default, refuse)
    with vramcast.virtual_gpu("h200") as card:
        with pytest.raises(
            CannotPredict, match=r"could not be compiled for NVIDIA H200 here.*no such kernel"
        ) as raised:
            torch.compile(lambda x: x.sin() + 1)(torch.empty(16, device="cuda"))
        assert "TORCHDYNAMO_DISABLE=1" in str(raised.value)
        assert len(card.unknown_kernels) == 1, "also where the program catches the error"


def test_torch_is_itself_again_afterwards() -> None:
    compile_before = torch.compile
    with vramcast.virtual_gpu("h200"):
        torch.compile(lambda x: x * 2)(torch.empty(16, device="cuda"))
        assert torch.compile is not compile_before
    assert torch.compile is compile_before
    with torch._subclasses.FakeTensorMode():
        assert torch.empty(2, device="meta").device.type == "meta"


def test_a_model_of_the_script_itself_is_not_cut_by_our_marks(tmp_path: Path) -> None:
    """`vramcast run` marks the script's functions to say what was not reached; Dynamo must not stop there."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a = torch.nn.Linear(64, 64)\n"
        "    def forward(self, x):\n"
        "        if x.dim() == 2:\n"
        "            x = self.a(x)\n"
        "        return x.relu().sum()\n"
        "net = Net().cuda()\n"
        "compiled = torch.compile(net, fullgraph=True)\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for _ in range(3):\n"
        "    compiled(torch.randn(8, 64, device='cuda')).backward()\n"
        "    optimizer.step()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "vramcast", "run", "--gpu", "h200", str(script)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "eager" not in done.stdout


@pytest.mark.parametrize(("dtype", "padded"), [(torch.bfloat16, True), (torch.float32, False)])
def test_trials_of_padded_products_take_their_memory(dtype: torch.dtype, padded: bool) -> None:
    """Inductor times a product of odd sizes with random matrices, and pads it where tensor cores gain by that."""
    with vramcast.virtual_gpu("h200") as card:
        head = nn.Linear(768, 50257, bias=False, dtype=dtype, device="cuda")
        compiled = torch.compile(head)
        compiled(torch.randn(4096, 768, dtype=dtype, device="cuda")).sum().backward()
        trace = card.trace()
    assert sizes_of(trace, "aten.randn").count(50257 * 768 * dtype.itemsize) >= 1, "one of the matrices that are timed"
    notes = [note.text for note in trace.notes if "x [768, 50257]" in note.text]
    assert [" no faster" not in text for text in notes] == [padded]


def test_max_autotune_runs_the_libraries_kernels_and_books_the_trials() -> None:
    reserved = {}
    for mode in ("default", "max-autotune-no-cudagraphs"):
        with vramcast.virtual_gpu("h100") as card:
            model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
            train(model, torch.compile(model, mode=mode), width=512)
            reserved[mode] = torch.cuda.max_memory_reserved()
            notes = [note.text for note in card.trace().notes if "max-autotune" in note.text]
        ops = [op for op in card.trace().calls.ops if op.startswith("aten.")]
        assert {"aten.addmm.out", "aten.mm.out"} <= set(ops), "no template of Inductor's"
        assert bool(notes) == (mode != "default")
    l2_and_largest_input = (50 + 4) * MIB  # a trial of 512 x 2048 with its weight
    assert reserved["max-autotune-no-cudagraphs"] >= max(reserved["default"], l2_and_largest_input)


def test_garbage_is_looked_for_again_after_compiling() -> None:
    seen = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        seen.append(gc.isenabled())
        return graph.forward

    with vramcast.virtual_gpu("h100"):
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(8, device="cuda"))
        seen.append(gc.isenabled())
    assert seen == [False, True]


@pytest.mark.parametrize("kept", [2_000_000, 0])
def test_what_compiling_leaves_is_looked_through_when_it_is_much(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_OBJECTS_KEPT", kept)
    generations = []
    with vramcast.virtual_gpu("h100"), monkeypatch.context() as patched:
        compiled = torch.compile(lambda x: x + 1)
        x = torch.ones(8, device="cuda")
        patched.setattr(gc, "collect", lambda generation=2: generations.append(generation))
        compiled(x)
    assert (2 in generations) == (kept == 0)


def test_a_graph_break_keeps_no_tensors_alive() -> None:
    """Dynamo's frames and the error that they hold refer to each other, and to what the function was called with."""

    class Halved(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.sin()
            for _ in range(2):
                y = y / 2
                if y.sum() > 0:
                    y = y.cos()
            return y

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Halved()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x * 2).sum()

    with vramcast.virtual_gpu("h200"), full_collections_rarely():
        model = torch.compile(Outer())
        before = torch.cuda.memory_allocated()
        model(torch.ones(1 << 20, device="cuda", requires_grad=True)).backward()
        assert torch.cuda.memory_allocated() - before < 1 << 20


def test_an_error_that_the_function_handles_keeps_no_tensors_alive() -> None:
    class Settings:
        def __getattr__(self, name: str) -> object:
            raise AttributeError(name)

    settings = Settings()

    def scaled(x: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
        return x * getattr(settings, "scale", 2)

    with vramcast.virtual_gpu("h200"), full_collections_rarely():
        compiled = torch.compile(lambda x, unused: scaled(x, unused).sum())
        before = torch.cuda.memory_allocated()
        compiled(torch.ones(8, device="cuda"), torch.ones(1 << 20, device="cuda"))
        assert torch.cuda.memory_allocated() - before < 1 << 20


def test_why_a_function_is_compiled_again() -> None:
    with vramcast.virtual_gpu("h100"), torch._dynamo.config.patch(error_on_recompile=True):
        compiled = torch.compile(lambda x: x + 1, dynamic=False)
        compiled(torch.ones(8, device="cuda"))
        with pytest.raises(torch._dynamo.exc.RecompileError, match="size mismatch at index 0"):
            compiled(torch.ones(9, device="cuda"))


def test_aot_function_needs_no_dynamo() -> None:
    from functorch.compile import aot_function, min_cut_rematerialization_partition, nop

    def activated(x: torch.Tensor) -> torch.Tensor:
        return x.sin().cos().exp().sum()

    peaks = []
    for make in (
        lambda: activated, lambda: aot_function(activated, nop, nop),
        lambda: aot_function(activated, nop, nop, partition_fn=min_cut_rematerialization_partition),
    ):  # fmt: skip
        with vramcast.virtual_gpu("h100"):
            function = make()
            for _ in range(2):
                x = torch.ones(1 << 20, device="cuda", requires_grad=True)
                function(x).backward()
                assert x.grad is not None and x.grad.is_cuda
            peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[0] <= peaks[1] and peaks[2] < peaks[1], "what is computed again is not kept"
