"""Code that PyTorch runs in a mode of its own: inference mode, functorch, control flow, subclasses of Tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import vramcast
from tests.card.reading import growth
from vramcast.base.torch_versions import CACHED_CASTS_ARE_TRAINED
from vramcast.base.units import MIB
from vramcast.card.device.installed_torch import INSTALLED
from vramcast.errors import CannotPredict

# -- inference mode ---------------------------------------------------------------------------------------------


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Dropout(0.1), nn.Linear(128, 10))


def _image_network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding="same"), nn.BatchNorm2d(8), nn.SiLU(), nn.AdaptiveAvgPool2d(1))


_CALLS: dict[str, Callable[[], Callable[[], Any]]] = {
    "layers": lambda: _on_card(_network(), (8, 64)),
    "half": lambda: _under_autocast(_on_card(_network(), (8, 64))),
    "images": lambda: _on_card(_image_network(), (2, 3, 32, 32)),
    "evaluation": lambda: _on_card(_image_network().eval(), (2, 3, 32, 32)),
    "transformer": lambda: _on_card(nn.TransformerEncoderLayer(64, 4, batch_first=True), (2, 5, 64)),
    "lstm": lambda: _on_card(nn.LSTM(64, 64, 2), (5, 2, 64)),
    "einsum": lambda: lambda: torch.einsum("bij,bjk->bik", _draw(2, 30, 40), _draw(2, 40, 50)).softmax(-1),
    "upsampling": lambda: lambda: F.interpolate(_draw(1, 3, 8, 8), scale_factor=2, mode="bilinear"),
    "loss": lambda: lambda: F.cross_entropy(_draw(8, 10), torch.zeros(8, dtype=torch.long, device="cuda")),
}


def _draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda")


def _on_card(module: nn.Module, shape: tuple[int, ...]) -> Callable[[], Any]:
    module = module.cuda()
    return lambda: module(_draw(*shape))


def _under_autocast(call: Callable[[], Any]) -> Callable[[], Any]:
    return torch.autocast("cuda", torch.bfloat16)(call)


@pytest.mark.parametrize("name", _CALLS)
def test_inference_mode_allocates_what_no_grad_does(name: str) -> None:
    """PyTorch hands composite functions on whole in inference mode; the kernels behind them are the same."""
    sizes = []
    for mode in (torch.no_grad, torch.inference_mode):
        with vramcast.virtual_gpu("rtx-4090") as gpu:
            call = _CALLS[name]()
            with mode():
                call()
        sizes.append(list(gpu.trace().requested_bytes))
    assert sizes[0] == sizes[1] and len(sizes[0]) > 1


def test_a_loss_is_read_in_inference_mode(gpu: vramcast.VirtualGpu) -> None:
    with torch.inference_mode():
        assert torch.full((4,), 3.0, device="cuda").mean().item() == 3.0
        assert isinstance(_draw(4).sum().item(), float)


# -- functorch --------------------------------------------------------------------------------------------------


def test_gradients_of_each_sample(gpu: vramcast.VirtualGpu) -> None:
    model = nn.Linear(64, 1000).cuda()
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(parameters: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.func.functional_call(model, parameters, (x[None],)), y[None])

    def all_of_them() -> Any:
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
        return each(parameters, _draw(16, 64), torch.zeros(16, dtype=torch.long, device="cuda"))

    all_of_them()  # cuBLAS takes its workspace
    grown, gradients = growth(all_of_them)
    assert gradients["weight"].shape == (16, 1000, 64) and gradients["weight"].is_cuda
    assert grown == 16 * 1000 * 64 * 4 + 16 * 1000 * 4


@pytest.mark.parametrize(
    ("transform", "shape"),
    [
        (lambda f: torch.func.jacrev(f)(_draw(8)), (8, 8)),
        (lambda f: torch.func.jacfwd(f)(_draw(8)), (8, 8)),
        (lambda f: torch.func.hessian(lambda x: f(x).sum())(_draw(8)), (8, 8)),
        (lambda f: torch.func.jvp(f, (_draw(8),), (_draw(8),))[1], (8,)),
        (lambda f: torch.func.vjp(f, _draw(8))[1](_draw(8))[0], (8,)),
        (lambda f: torch.func.vmap(f)(_draw(5, 8)), (5, 8)),
        (lambda f: torch.autograd.functional.jacobian(f, _draw(8)), (8, 8)),
    ],
)
def test_transforms_run(gpu: vramcast.VirtualGpu, transform: Any, shape: tuple[int, ...]) -> None:
    result = transform(lambda x: x.sin() * x)
    assert result.shape == shape and result.is_cuda


# -- control flow and attention that is given as a function -------------------------------------------------------


def test_cond_and_while_loop(gpu: vramcast.VirtualGpu) -> None:
    from torch._higher_order_ops.while_loop import while_loop

    x = _draw(1024, 1024)
    grown, _ = growth(lambda: torch.cond(torch.tensor(True), lambda a: (a.sin(),), lambda a: (a.cos(),), (x,)))
    assert grown == 4 * MIB
    grown, _ = growth(
        lambda: while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 2), (torch.tensor(0, device="cuda"), x))
    )
    assert 4 * MIB <= grown < 4 * MIB + 4096


def test_tensors_that_a_branch_makes_are_on_the_card(gpu: vramcast.VirtualGpu) -> None:
    x = _draw(1024, 1024)
    yes = torch.tensor(True)

    def branch(a: torch.Tensor) -> tuple[torch.Tensor]:
        return (a + torch.ones(1024, 1024, device="cuda"),)

    grown, _ = growth(lambda: torch.cond(yes, branch, lambda a: (a.cos(),), (x,)))
    assert grown == 4 * MIB
    assert torch.ones(1, device="cuda").is_cuda


def test_random_numbers_of_a_distributed_tensor(gpu: vramcast.VirtualGpu) -> None:
    """Since torch 2.13 they are drawn by an operator that takes the one to run."""
    from torch._prims import rng_prims

    draw = getattr(rng_prims, "run_dtensor_rng_op", None)
    if draw is None:
        pytest.skip("not in this torch")
    x = torch.empty(1024, 1024, device="cuda")
    grown, _ = growth(lambda: draw(0, 4, torch.ops.aten.normal_.default, x))
    assert grown == 0
    grown, _ = growth(lambda: draw(0, 4, torch.ops.aten.rand_like.default, x))
    assert grown == 4 * MIB


def test_flex_attention_without_compiling_writes_the_scores_out(gpu: vramcast.VirtualGpu) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    query = torch.randn(1, 2, 512, 64, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    flex_attention(query, query, query)
    scores = 2 * 512 * 512 * 4
    assert torch.cuda.max_memory_allocated() - before >= 2 * scores


# -- subclasses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda parts: torch.nested.nested_tensor(parts, layout=torch.jagged, device="cuda"),
        lambda parts: torch.nested.nested_tensor(parts, layout=torch.jagged).to("cuda"),
        lambda parts: torch.nested.nested_tensor_from_jagged(
            torch.cat(parts).cuda(), torch.tensor([0, 500, 1200], device="cuda")
        ),
    ],
)
def test_jagged_tensors(gpu: vramcast.VirtualGpu, make: Any) -> None:
    layer = nn.Linear(64, 256).cuda()
    ragged = make([torch.randn(500, 64), torch.randn(700, 64)])
    assert ragged.is_cuda and ragged.values().is_cuda
    with torch.no_grad():
        layer(_draw(8, 64))  # cuBLAS takes its workspace
        grown, out = growth(lambda: layer(ragged))
    assert out.values().shape == (1200, 256) and grown == 1200 * 256 * 4


@pytest.mark.skipif(INSTALLED < (2, 8), reason="DTensor looks at the storage itself before torch 2.8")
def test_a_sharded_tensor_and_fully_shard_in_a_world_of_one(gpu: vramcast.VirtualGpu) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.distributed.init_process_group("nccl", init_method="tcp://127.0.0.1:29500", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cuda", (1,))
        square = distribute_tensor(_draw(64, 64), mesh, [Shard(0)])
        assert square.is_cuda and (square @ square).to_local().is_cuda
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).cuda()
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters())
        model(_draw(8, 64)).sum().backward()
        optimizer.step()
        assert all(p.is_cuda and p.grad.is_cuda for p in model.parameters())
    finally:
        torch.distributed.destroy_process_group()


def test_exporting_a_model_is_refused(gpu: vramcast.VirtualGpu) -> None:
    with pytest.raises(CannotPredict, match=r"torch\.export"):
        torch.export.export(nn.Linear(3, 3).cuda(), (_draw(2, 3),))


def test_dynamo_may_be_asked_after_a_process_group_was_made(gpu: vramcast.VirtualGpu) -> None:
    from torch._dynamo import trace_rules

    trace_rules.get_torch_obj_rule_map.cache_clear()
    assert trace_rules.lookup(torch.cuda.current_stream) is not None


def test_a_traced_module_runs_as_it_is(gpu: vramcast.VirtualGpu) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 30 * 30, 10)).cuda()
    traced = torch.jit.trace(model, _draw(1, 3, 32, 32))
    traced(_draw(2, 3, 32, 32)).sum().backward()
    assert model[0].weight.grad is not None
    assert any(note.topic == "torch.jit.trace" for note in gpu.trace().notes)


def test_an_op_with_kernels_of_its_own_is_not_taken_apart(gpu: vramcast.VirtualGpu) -> None:
    """SiLU's backward is a function of other ops on devices without a kernel for it; CUDA has one."""
    x = torch.randn(1 << 20, device="cuda", requires_grad=True)
    grown, _ = growth(lambda: F.silu(x).sum().backward())
    assert x.grad is not None and grown == 4 * MIB


# -- autocast ---------------------------------------------------------------------------------------------------


class _Sums(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.dtypes: list[torch.dtype] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.sum.dim_IntList:
            self.dtypes.append(out.dtype)
        return out


@pytest.mark.parametrize("inside, dtype", [(False, torch.bfloat16), (True, torch.float32)])
def test_autocast_reaches_what_autograd_itself_calls(inside: bool, dtype: torch.dtype) -> None:
    """A bias's gradient is a sum, which is made in float32 where the backward pass runs inside autocast (as the
    allocator's events of accumulation_no_sync.py show)."""
    with vramcast.virtual_gpu("h200"):
        layer = nn.Linear(64, 32).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = layer(torch.empty(128, 64, device="cuda")).float().mean()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=inside), _Sums() as sums:
            loss.backward()
    assert sums.dtypes == [dtype]


class _Counting(TorchDispatchMode):
    """Counts ops, as selective checkpointing and counters of operations do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_a_bias_is_added_out_of_place_under_a_mode_of_the_program(gpu: vramcast.VirtualGpu) -> None:
    """Where it cannot be fused with the product: the rows of the input do not follow each other."""
    layer, x = nn.Linear(64, 96, device="cuda"), torch.empty(16, 8, 64, device="cuda").transpose(0, 1)
    rows, result = x.numel() * 4, 8 * 16 * 96 * 4

    def taken() -> int:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        layer(x)
        return torch.cuda.max_memory_allocated() - before

    with torch.no_grad():
        layer(x)  # makes cuBLAS's workspace
        assert taken() == rows + result
        with _Counting():
            assert taken() == 2 * result


@pytest.mark.parametrize("first", [torch.no_grad, torch.inference_mode])
def test_a_cast_that_was_made_without_gradients_is_trained_later(gpu: vramcast.VirtualGpu, first: Any) -> None:
    """Since torch 2.11; before, autocast kept the cast that had no gradient."""
    weight = nn.Parameter(torch.ones(8, 8, device="cuda"))
    x = torch.ones(2, 8, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        with first():
            F.linear(x, weight)
        assert F.linear(x, weight).requires_grad == (INSTALLED >= CACHED_CASTS_ARE_TRAINED)
