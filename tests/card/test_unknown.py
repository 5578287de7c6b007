"""What only a real card could know: kernels without a rule are an error, unknown values are noted."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import vramcast
from tests.card.reading import allocations, growth
from vramcast.card.device.context import VirtualGpu
from vramcast.card.device.installed_torch import INSTALLED
from vramcast.card.dispatch import rules
from vramcast.card.dispatch.unknown import UnknownKernel, is_machinery, short_path
from vramcast.errors import CannotPredict, UsageError

HERE = "test_unknown.py:"


@pytest.fixture(autouse=True)
def forget_rules() -> Iterator[None]:
    kernels, triton = dict(rules.KERNELS), dict(rules.TRITON_RULES)
    yield
    rules.KERNELS.clear()
    rules.KERNELS.update(kernels)
    rules.TRITON_RULES.clear()
    rules.TRITON_RULES.update(triton)


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[Any]:
    """A library with CUDA kernels only, as an extension would register them."""
    made = torch.library.Library("vramcast_test", "DEF")
    made.define("opaque(Tensor x, int n) -> (Tensor, Tensor)")
    made.define("opaque_(Tensor(a!) x) -> ()")
    made.define("described(Tensor x) -> Tensor")
    for name in ("opaque", "opaque_", "described"):
        made.impl(name, lambda *args: None, "CUDA")
    torch.library.register_fake("vramcast_test::described", lambda x: x.new_empty(x.shape[0]), lib=made)
    yield made
    made._destroy()


def test_an_op_without_a_rule_is_an_error_with_a_remedy(gpu: VirtualGpu) -> None:
    x = torch.empty(4, 8, device="cuda")
    with pytest.raises(UnknownKernel) as caught:
        torch.ops.vramcast_test.opaque(x, 2)
    message = str(caught.value)
    assert "vramcast_test::opaque(float32[4, 8])" in message
    assert HERE in message
    assert '@vramcast.rule("vramcast_test::opaque")' in message
    assert isinstance(caught.value, CannotPredict) and caught.value.exit_code == 3
    assert gpu.unknown_kernels == (caught.value,)
    with pytest.raises(UnknownKernel, match="opaque_"):
        torch.ops.vramcast_test.opaque_(x)


def test_an_op_with_a_fake_kernel_needs_no_rule(gpu: VirtualGpu) -> None:
    taken, out = growth(lambda: torch.ops.vramcast_test.described(torch.empty(1000, 2, device="cuda")))
    assert out.is_cuda and out.shape == (1000,) and taken == 4096


def test_a_rule_says_what_is_allocated(gpu: VirtualGpu) -> None:
    @vramcast.rule("vramcast_test::opaque")
    def opaque(x: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        assert x.is_cuda and x.device.type == "cuda", "a rule sees what the program sees"
        scratch = torch.empty(100, dtype=torch.uint8, device="cuda")
        del scratch
        return torch.empty_like(x), torch.empty(x.shape[0] * n, device=x.device, dtype=torch.float16)

    x = torch.empty(4, 8, device="cuda")
    assert allocations(gpu, lambda: torch.ops.vramcast_test.opaque(x, 3)) == [100, 128, 24]
    first, second = torch.ops.vramcast_test.opaque(x, 3)
    assert first.is_cuda and second.shape == (12,)


def test_a_rule_for_an_op_that_writes_in_place(gpu: VirtualGpu) -> None:
    @vramcast.rule("vramcast_test::opaque_")
    def opaque_(x: torch.Tensor) -> None:
        return None

    x = torch.ones(4, device="cuda")
    assert x.tolist() == [1, 1, 1, 1]
    torch.ops.vramcast_test.opaque_(x)
    x.sum().item()
    assert any(note.topic == "unknown value" for note in gpu.trace().notes), "its content is not known any more"


def test_a_rule_for_one_overload(gpu: VirtualGpu) -> None:
    made = torch.library.Library("vramcast_overloads", "DEF")
    made.define("op(Tensor x) -> Tensor")
    made.define("op.twice(Tensor x, int n) -> Tensor")

    @vramcast.rule("vramcast_overloads::op.twice")
    def twice(x: torch.Tensor, n: int) -> torch.Tensor:
        return x.new_empty(2 * n)

    x = torch.empty(4, device="cuda")
    assert torch.ops.vramcast_overloads.op.twice(x, 3).shape == (6,)
    with pytest.raises(UnknownKernel):
        torch.ops.vramcast_overloads.op(x)
    made._destroy()


@pytest.mark.parametrize("name", ["fused_norm", "::x", "a::", ""])
def test_a_rule_needs_a_whole_name(name: str) -> None:
    with pytest.raises(UsageError, match="namespace::op"):
        vramcast.rule(name)


# -- kernels beside the dispatcher ------------------------------------------------------------------------------


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Triton's launchers as far as they matter here; the real package where it is installed."""
    try:
        import triton.runtime.jit

        return triton
    except ImportError:
        pass

    class JITFunction:
        def __init__(self, fn: Any) -> None:
            self.fn, self.__name__ = fn, fn.__name__

        def __getitem__(self, grid: Any) -> Any:
            return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

        def run(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("a real launch")

    module = types.ModuleType("triton")
    jit = types.ModuleType("triton.runtime.jit")
    jit.JITFunction = JITFunction  # type: ignore[attr-defined]
    module.jit = JITFunction  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", jit)
    return module


def test_a_triton_kernel_allocates_nothing_unless_a_rule_says_so(triton: Any) -> None:
    @triton.jit
    def add_kernel(x, y, n):  # type: ignore[no-untyped-def]
        pass

    with vramcast.virtual_gpu("rtx-4090") as gpu:
        x = torch.arange(8, device="cuda")
        before = torch.cuda.memory_allocated()
        add_kernel[(1,)](x, x, 8)
        assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated() == before
        notes = [note for note in gpu.trace().notes if note.topic == "Triton"]
        assert len(notes) == 1 and "add_kernel" in notes[0].text and HERE in str(notes[0].where)
        assert x.sum().item() != 28 or gpu.trace().notes[-1].topic == "unknown value", (
            "the kernel may have written to x"
        )
        seen: list[int] = []

        @vramcast.rule("triton::add_kernel")
        def rule(x: torch.Tensor, y: torch.Tensor, n: int) -> None:
            seen.append(n)

        add_kernel[(1,)](x, x, 8)
        assert seen == [8]
    assert gpu.unknown_kernels == ()


@pytest.mark.parametrize("with_heuristics", [False, True])
def test_triton_measures_configurations_with_a_buffer_of_its_own(triton: Any, with_heuristics: bool) -> None:
    if not hasattr(triton, "autotune") or INSTALLED < (2, 8):
        pytest.skip("a Triton is needed whose autotuner can be made without a card")

    @triton.autotune(configs=[triton.Config({"B": 16}), triton.Config({"B": 32})], key=["n"])
    @triton.jit
    def scale_kernel(x, n, B):  # type: ignore[no-untyped-def]
        pass

    kernel = triton.heuristics({"C": lambda args: 1})(scale_kernel) if with_heuristics else scale_kernel
    with vramcast.virtual_gpu("rtx-4090"):
        x = torch.empty(8, device="cuda")
        before = torch.cuda.memory_allocated()
        for n in (8, 8, 16):
            kernel[(1,)](x, n)
        assert torch.cuda.max_memory_allocated() == before + (256 << 20)
        assert torch.cuda.memory_allocated() == before
        assert scale_kernel.best_config.kwargs == {"B": 16}  # programs ask which was best: the first


def test_packages_see_the_named_card_in_tritons_driver(triton: Any) -> None:
    if not hasattr(triton, "runtime"):
        pytest.skip("a real Triton is needed")
    with vramcast.virtual_gpu("rtx-4090"):
        target = triton.runtime.driver.active.get_current_target()
        assert (target.backend, target.arch) == ("cuda", 89)


@pytest.mark.parametrize(
    "hand_over",
    [
        lambda x: x.__cuda_array_interface__,
        lambda x: x.__dlpack__(),
        lambda x: torch.utils.dlpack.to_dlpack(x),
    ],
)
def test_memory_handed_to_another_library(gpu: VirtualGpu, hand_over: Any) -> None:
    with pytest.raises(UnknownKernel) as caught:
        hand_over(torch.empty(8, device="cuda"))
    assert HERE in str(caught.value) and "vramcast.rule" in str(caught.value)
    assert torch.from_dlpack(torch.arange(3)).tolist() == [0, 1, 2], "host memory may go where it likes"


# -- values -----------------------------------------------------------------------------------------------------


def unknown(gpu: VirtualGpu) -> list[tuple[str, str, int]]:
    notes = (note for note in gpu.trace().notes if note.topic == "unknown value")
    return [(note.text, (note.where or "").rpartition("/")[2], note.count) for note in notes]


def test_known_values_are_read_right(gpu: VirtualGpu) -> None:
    ids = torch.tensor([[1, 2, 0], [3, 0, 0]]).cuda()
    mask = ids != 0
    assert mask.sum().item() == 3 and mask.any() and not mask.all()
    assert ids[mask].tolist() == [1, 2, 3]
    assert mask.nonzero().shape == (3, 2)
    assert ids.max().item() == 3 and torch.unique(ids).tolist() == [0, 1, 2, 3]
    lengths = mask.sum(1).tolist()
    assert lengths == [2, 1]
    counter = torch.zeros((), device="cuda")
    counter += 2
    assert float(counter) == 2.0 and torch.arange(5, device="cuda")[1:3].tolist() == [1, 2]
    assert unknown(gpu) == []


def test_an_unknown_read_names_file_line_and_count(gpu: VirtualGpu) -> None:
    model = nn.Linear(512, 512).cuda()
    out = model(torch.randn(64, 512, device="cuda"))
    for _ in range(3):
        value = out.sum().item()
    line = sys._getframe().f_lineno - 1
    assert value == out.sum().cpu().item() == float(out.sum()), "every read gives the same"
    assert unknown(gpu)[0] == (f"read as a Python number: assumed {value:.6g}", f"{HERE}{line}", 3)


def test_reads_in_a_backward_pass_and_in_a_module_are_placed(gpu: VirtualGpu) -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(512, 512)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.layer(x)
            if bool((y > 0).all()):
                raise AssertionError("assumed False")
            return y[y > 0]

    out = Reads().cuda()(torch.randn(64, 512, device="cuda"))
    assert 0.48 < out.numel() / (64 * 512) < 0.52, "a layer's results are random numbers around zero"
    texts = {text for text, _, _ in unknown(gpu)}
    assert texts == {
        "read as a Python number: assumed False",
        "indexing with a mask: assumed as many as random activations give",
    }
    assert all(where.startswith(HERE) for _, where, _ in unknown(gpu))


def test_whose_line_it_is() -> None:
    assert is_machinery(torch.nn.functional.__file__)
    assert is_machinery(vramcast.__file__)
    assert is_machinery(types.__file__) and is_machinery("<frozen runpy>")
    assert not is_machinery(__file__) and not is_machinery("<stdin>")
    assert not is_machinery(pytest.__file__), "a library is worth naming"
    assert short_path(pytest.__file__) == "pytest/__init__.py"
