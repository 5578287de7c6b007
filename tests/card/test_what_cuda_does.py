"""Where CUDA allocates differently from a meta tensor. Sizes are worked out by hand from shapes and dtypes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import vramcast
from tests.card.reading import allocations, growth, ops, sizes_of
from vramcast.card.choices.attention import prefers_cudnn
from vramcast.card.device.context import VirtualGpu
from vramcast.card.device.installed_torch import INSTALLED, cudnn_version


def peak_during(action: Callable[[], object]) -> int:
    """How far memory rises above what is allocated now."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    action()
    return torch.cuda.max_memory_allocated() - before


# -- dropout, attention -----------------------------------------------------------------------------------------


def test_a_dropout_mask_takes_one_byte_an_element(gpu: VirtualGpu) -> None:
    x = torch.empty(1000, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    y = F.dropout(x, 0.1)
    assert sorted(sizes_of(gpu.trace(), "aten.native_dropout")) == [32_000, 64_000]
    assert y.grad_fn.name() == "NativeDropoutBackward0"


def test_dropout_that_does_nothing_allocates_nothing(gpu: VirtualGpu) -> None:
    x = torch.empty(1000, device="cuda", requires_grad=True)
    assert allocations(gpu, lambda: F.dropout(x, 0.0)) == []
    assert allocations(gpu, lambda: F.dropout(x, 0.5, training=False)) == []


CUDNN, FLASH, EFFICIENT, MATH = "cudnn", "flash", "efficient", "math"
# test_attention_versions.py says of which version this holds.
FIRST_ON_HOPPER = CUDNN if prefers_cudnn((9, 0), INSTALLED, cudnn_version()) else FLASH


@pytest.mark.parametrize(
    ("card", "dtype", "backend"),
    [
        ("h200", torch.bfloat16, FIRST_ON_HOPPER),
        ("h200", torch.float16, FIRST_ON_HOPPER),
        ("h200", torch.float32, EFFICIENT),
        ("rtx-4090", torch.bfloat16, FLASH),
        ("rtx-4090", torch.float32, EFFICIENT),
        ("rtx-3090", torch.float16, FLASH),
        ("t4", torch.float16, EFFICIENT),  # flash needs Ampere
        ("v100-32gb", torch.bfloat16, MATH),  # so does the memory-efficient kernel for bfloat16
    ],
)
def test_the_attention_kernel_is_the_one_of_the_card(card: str, dtype: torch.dtype, backend: str) -> None:
    batch, heads, length, width = 2, 4, 128, 64
    with vramcast.virtual_gpu(card) as gpu:
        q, k, v = (torch.empty(batch, heads, length, width, dtype=dtype, device="cuda") for _ in range(3))
        q.requires_grad_()
        F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    names = set(ops(gpu.trace()))
    if backend == MATH:
        assert not any("_scaled_dot_product" in name for name in names)
        assert "aten._safe_softmax" in names
        return
    forward = f"aten._scaled_dot_product_{backend}_attention"
    assert {forward, f"{forward}_backward"} <= names
    output = batch * heads * length * width * dtype.itemsize
    statistics = batch * heads * length * 4  # one float a row
    assert {output, statistics} <= set(sizes_of(gpu.trace(), forward))


def test_a_program_can_choose_the_attention_kernel(gpu: VirtualGpu) -> None:
    q = torch.empty(2, 4, 128, 64, dtype=torch.bfloat16, device="cuda")
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        F.scaled_dot_product_attention(q, q, q)
    assert "aten._safe_softmax" in ops(gpu.trace())
    assert not any("flash" in name for name in ops(gpu.trace()))


def test_multihead_attention_keeps_no_score_matrix(gpu: VirtualGpu) -> None:
    batch, length, width, heads = 2, 512, 64, 4
    layer = nn.MultiheadAttention(width, heads, batch_first=True).cuda().bfloat16()
    x = torch.empty(batch, length, width, device="cuda", dtype=torch.bfloat16)
    made = allocations(gpu, lambda: layer(x, x, x, need_weights=False))
    scores = batch * heads * length * length * 2
    assert scores not in made
    made = allocations(gpu, lambda: layer(x, x, x, need_weights=True))
    assert scores in made, "asked for the weights, it must have them"


def test_a_transformer_encoder(gpu: VirtualGpu) -> None:
    batch, length, width, inner = 2, 64, 32, 128
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 4, inner, batch_first=True), 2).cuda().bfloat16()
    encoder(torch.empty(batch, length, width, device="cuda", dtype=torch.bfloat16)).sum().backward()
    trace = gpu.trace()
    tokens = batch * length
    masks = [size for size in sizes_of(trace, "aten.native_dropout") if size in (tokens * width, tokens * inner)]
    # Each layer: after attention, inside the feed-forward (wide), after it. Attention's own is inside its kernel.
    assert masks == [tokens * width, tokens * inner, tokens * width] * 2
    # Output and statistics, and from torch 2.7 on seed and offset too.
    assert ops(trace).count("aten._scaled_dot_product_flash_attention") == 2 * (4 if INSTALLED >= (2, 7) else 2)
    assert "TransformerEncoder.layers.1.linear1" in trace.modules


# -- autocast ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (lambda x: x @ x, torch.bfloat16),
        (lambda x: F.linear(x, x), torch.bfloat16),
        (lambda x: F.conv1d(x[None], x[:, :, None]), torch.bfloat16),
        (lambda x: torch.einsum("ij,jk->ik", x, x), torch.bfloat16),
        (lambda x: F.layer_norm(x.bfloat16(), (8,)), torch.float32),
        (lambda x: F.softmax(x.bfloat16(), -1), torch.float32),
        (lambda x: x.bfloat16().exp(), torch.float32),
        (lambda x: F.mse_loss(x.bfloat16(), x.bfloat16()), torch.float32),
        (lambda x: torch.addcmul(x.bfloat16(), x, x), torch.float32),
        (lambda x: x.bfloat16() + x.bfloat16(), torch.bfloat16),
        (lambda x: x.bfloat16().relu(), torch.bfloat16),
        (lambda x: x.double() @ x.double(), torch.float64),
    ],
)
def test_autocast_chooses_dtypes_as_cuda_does(gpu: VirtualGpu, op: Any, dtype: torch.dtype) -> None:
    x = torch.empty(8, 8, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert op(x).dtype == dtype
    assert (x @ x).dtype == torch.float32, "outside the region nothing is cast"


def test_autocast_leaves_cpu_tensors_alone(gpu: VirtualGpu) -> None:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_weight_casts_are_kept_until_the_region_ends(gpu: VirtualGpu) -> None:
    layer = nn.Linear(512, 512, bias=False).cuda()
    x = torch.empty(16, 512, device="cuda", dtype=torch.bfloat16)
    layer(x)  # cuBLAS takes its workspace with the first multiplication
    torch.empty(1, device="cuda").new_empty(1)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        layer(x)  # and cuBLASLt or a new handle, if it needs one
    weight_copy = 512 * 512 * 2
    before = torch.cuda.memory_allocated()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        first = allocations(gpu, lambda: layer(x))
        second = allocations(gpu, lambda: layer(x))
        assert weight_copy in first and weight_copy not in second
        assert torch.cuda.memory_allocated() == before + weight_copy
        with torch.autocast("cuda", dtype=torch.bfloat16):
            layer(x)
        assert torch.cuda.memory_allocated() == before + weight_copy, "an inner region keeps the cache"
    assert torch.cuda.memory_allocated() == before
    with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
        layer(x)
        assert torch.cuda.memory_allocated() == before


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("old", [False, True])
def test_a_grad_scaler_lets_the_step_happen(gpu: VirtualGpu, old: bool) -> None:
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.cuda.amp.GradScaler() if old else torch.amp.GradScaler("cuda")
    for _ in range(2):
        with torch.cuda.amp.autocast() if old else torch.autocast("cuda", dtype=torch.float16):
            out = model(torch.randn(8, 64, device="cuda"))
            assert out.dtype == torch.float16
        scaler.scale(out.float().sum()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert gpu.trace().steps == 2
    assert optimizer.state[model.weight]["exp_avg"].is_cuda
    assert scaler.get_scale() == 65536.0, "no overflow is assumed"
    assert [note.topic for note in gpu.trace().notes].count("GradScaler") == 1


# -- optimizers -------------------------------------------------------------------------------------------------


def test_foreach_is_the_default_and_takes_a_copy_fused_does_not(gpu: VirtualGpu) -> None:
    copy = 256 * 256 * 4

    def rise(**options: Any) -> int:
        parameter = nn.Parameter(torch.empty(256, 256, device="cuda"))
        optimizer = torch.optim.AdamW([parameter], **options)
        for _ in range(2):
            parameter.grad = torch.empty_like(parameter)
            peak = peak_during(optimizer.step)
        return peak

    assert rise() == rise(foreach=True) == copy
    assert rise(fused=True) == 0
    assert rise(foreach=False) == 2 * copy  # sqrt, then its quotient


@pytest.mark.parametrize(
    ("make", "copies"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1),
        (lambda p: torch.optim.Adam(p), 2),
        (lambda p: torch.optim.Adam(p, amsgrad=True), 3),
        (lambda p: torch.optim.Adagrad(p), 1),
        (lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True), 3),
    ],
)
def test_optimizer_state_appears_with_the_first_step(gpu: VirtualGpu, make: Any, copies: int) -> None:
    parameter = nn.Parameter(torch.empty(256, 256, device="cuda"))
    optimizer = make([parameter])
    parameter.grad = torch.empty_like(parameter)
    first, _ = growth(optimizer.step)
    second, _ = growth(optimizer.step)
    at_birth = 256 * 256 * 4 if isinstance(optimizer, torch.optim.Adagrad) else 0  # its state is made with it
    assert first + at_birth == copies * 256 * 256 * 4
    assert second == 0


def test_eight_bit_adam(gpu: VirtualGpu) -> None:
    bnb = pytest.importorskip("bitsandbytes")
    elements = 256 * 256
    model = nn.Linear(256, 256, bias=False).cuda()
    optimizer = bnb.optim.Adam8bit(model.parameters())
    model(torch.empty(4, 256, device="cuda")).sum().backward()
    state, _ = growth(optimizer.step)
    # Two moments of a byte an element, a float for each block of 256, and two tables of 256 floats.
    assert state == 2 * elements + 2 * (elements // 256) * 4 + 2 * 256 * 4


# -- what the backward pass needs -------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x)))


class Stack(nn.Module):
    def __init__(self, depth: int, reentrant: bool | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(128) for _ in range(depth)])
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return x


def test_checkpointing_keeps_one_tensor_a_block(gpu: VirtualGpu) -> None:
    depth, rows = 6, 4096
    narrow = rows * 128 * 4
    held = {}
    for reentrant in (None, False, True):
        model = Stack(depth, reentrant).cuda()
        x = torch.empty(rows, 128, device="cuda", requires_grad=True)
        model(x).sum().backward()  # workspaces and gradients are there
        held[reentrant], out = growth(lambda model=model, x=x: model(x))
        del out
    # A block keeps its input, the wide tensor before GELU and the one after; the sum's output is the next one's
    # input, and the last is the result.
    assert held[None] == depth * (4 + 4 + 1) * narrow
    for reentrant in (False, True):
        # Random states of the host lie beside the input; the card's own are on the host too.
        assert held[reentrant] == depth * narrow


def test_checkpointing_books_the_same_modules(gpu: VirtualGpu) -> None:
    found = {}
    for reentrant in (None, False, True):
        model = Stack(2, reentrant).cuda()
        first = gpu.trace().n_blocks
        model(torch.empty(64, 128, device="cuda", requires_grad=True)).sum().backward()
        trace = gpu.trace()
        found[reentrant] = {
            trace.modules[trace.module[block]].partition(".")[2]
            for block in range(first, trace.n_blocks)
            if trace.phases[trace.phase[block]] == "backward"
        } - {""}
    assert {"blocks.0.up", "blocks.1.down"} <= found[None]
    assert found[None] <= found[False] and found[None] <= found[True]


def test_frozen_layers_keep_nothing(gpu: VirtualGpu) -> None:
    backbone, head = nn.Linear(64, 4096).cuda(), nn.Linear(4096, 8).cuda()
    backbone.requires_grad_(False)
    x = torch.empty(256, 64, device="cuda")
    head(backbone(x)).sum().backward()
    head.zero_grad()
    kept, out = growth(lambda: head(torch.relu(backbone(x))))
    # Only the head's input stays, and its output.
    assert kept == 256 * 4096 * 4 + 256 * 8 * 4
    assert backbone.weight.grad is None
    del out
    with torch.no_grad():
        kept, _out = growth(lambda: head(torch.relu(backbone(x))))
    assert kept == 256 * 8 * 4


def test_accumulation_costs_no_more_memory(gpu: VirtualGpu) -> None:
    model = Stack(2, None).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(parts: int) -> None:
        for _ in range(parts):
            model(torch.empty(512, 128, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step(2)
    # From the second part on the gradients are there already, and each new one is a temporary beside the old.
    assert peak_during(lambda: step(2)) == peak_during(lambda: step(5))
    assert gpu.trace().steps == 3


def test_a_custom_function_saves_what_it_says(gpu: VirtualGpu) -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, x.cos())
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            x, extra = ctx.saved_tensors
            assert extra.is_cuda and torch.cuda.is_available(), "backward sees the card too"
            return 2 * x * grad

    size = 10_240 * 4
    x = torch.empty(10_240, device="cuda", requires_grad=True)
    kept, y = growth(lambda: Square.apply(x).sum())
    assert kept == size + 512, "the cosine, and the sum"
    made = allocations(gpu, lambda: y.backward())
    assert made == [4, size, size], "the seed, 2 * x, and its product with the gradient"
    assert x.grad.is_cuda


# -- layouts, recurrence, spectra, extensions -------------------------------------------------------------------


def test_channels_last_goes_through_convolutions(gpu: VirtualGpu) -> None:
    conv = nn.Conv2d(8, 16, 3, padding=1).cuda()
    x = torch.empty(2, 8, 16, 16, device="cuda")
    assert conv(x).is_contiguous()
    copies, _ = growth(lambda: conv.to(memory_format=torch.channels_last))
    assert copies == 0, "the new weight takes the place of the old"
    taken, y = growth(lambda: x.to(memory_format=torch.channels_last))
    assert taken == 2 * 8 * 16 * 16 * 4
    out = conv(y)
    assert out.is_contiguous(memory_format=torch.channels_last) and not out.is_contiguous()
    assert nn.BatchNorm2d(16).cuda()(out).is_contiguous(memory_format=torch.channels_last)


def test_an_lstm_is_one_kernel_on_one_buffer(gpu: VirtualGpu) -> None:
    layers, width, hidden = 2, 16, 32
    model = nn.LSTM(width, hidden, layers).cuda()
    model(torch.empty(5, 4, width, device="cuda"))[0].sum().backward()
    trace = gpu.trace()
    weights = 4 * hidden * (width + hidden + 2) + 4 * hidden * (2 * hidden + 2)
    assert sizes_of(trace, "aten._cudnn_rnn_flatten_weight") == [weights * 4]
    assert ops(trace).count("aten._cudnn_rnn_flatten_weight") == 1
    outputs = 5 * 4 * hidden * 4
    assert outputs in sizes_of(trace, "aten._cudnn_rnn")
    assert not any("tanh" in name or "sigmoid" in name for name in ops(trace)), "no step-by-step cells"


def test_spectra_are_complex(gpu: VirtualGpu) -> None:
    x = torch.empty(8, 64, device="cuda", requires_grad=True)
    taken, y = growth(lambda: torch.fft.rfft(x))
    assert y.dtype == torch.complex64 and y.shape == (8, 33)
    assert taken == -(-8 * 33 * 8 // 512) * 512
    weight = torch.empty(33, 33, dtype=torch.complex64, device="cuda", requires_grad=True)
    torch.fft.irfft(y @ weight).sum().backward()
    assert x.grad.dtype == torch.float32 and weight.grad.dtype == torch.complex64
    assert growth(lambda: torch.view_as_real(y))[0] == 0


def test_deformable_convolution(gpu: VirtualGpu) -> None:
    torchvision_ops = pytest.importorskip("torchvision.ops")
    layer = torchvision_ops.DeformConv2d(8, 16, 3, padding=1).cuda()
    x = torch.empty(2, 8, 10, 10, device="cuda", requires_grad=True)
    offset = torch.empty(2, 18, 10, 10, device="cuda")
    out = layer(x, offset)
    assert out.shape == (2, 16, 10, 10)
    columns = 8 * 9 * 2 * 10 * 10 * 4
    assert columns in sizes_of(gpu.trace(), "torchvision.deform_conv2d"), "the unfolded input is a temporary"
    out.sum().backward()
    assert x.grad.shape == x.shape


def test_the_default_dtype_is_obeyed(gpu: VirtualGpu) -> None:
    assert growth(lambda: torch.zeros(1024, device="cuda"))[0] == 4096
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert growth(lambda: torch.zeros(1024, device="cuda"))[0] == 2048
        with torch.device("meta"):
            assert nn.Linear(2, 2).weight.dtype == torch.bfloat16
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_discarded_model_gives_its_memory_back(gpu: VirtualGpu) -> None:
    with contextlib.suppress(ZeroDivisionError):
        model = Stack(2, None).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.empty(8, 128, device="cuda")).sum().backward()
        optimizer.step()
    workspaces = sum(gpu.trace().requested_bytes[b] for b in range(gpu.trace().n_blocks) if gpu.trace().kind[b] == 8)
    assert torch.cuda.memory_allocated() > workspaces
    del model, optimizer
    trace = gpu.trace()
    alive = [b for b in range(trace.n_blocks) if trace.died_event[b] < 0]
    assert {trace.kind[b] for b in alive} == {8}, "only cuBLAS's workspaces stay"


# -- what kernels refuse ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "channels", "last", "runs"), [
    (62, 150, True, True), (63, 150, True, False), (63, 150, False, True), (900, 15, True, True),
])  # fmt: skip
def test_enlarged_channels_last_images_have_fewer_elements_than_an_int_counts(
    batch: int, channels: int, last: bool, runs: bool
) -> None:
    layout = torch.channels_last if last else torch.contiguous_format
    with vramcast.virtual_gpu("b200", limit_bytes=2**50):
        x = torch.empty(batch, channels, 48, 48, device="cuda", dtype=torch.bfloat16, memory_format=layout)
        refused = contextlib.nullcontext() if runs else pytest.raises(RuntimeError, match=r"INT_MAX .* \[63, 150, 480,")
        with refused:
            F.interpolate(x, size=(480, 480), mode="bilinear")


def test_a_number_written_into_a_tensor_stays_on_the_host(gpu: VirtualGpu) -> None:
    x = torch.zeros(64, 32, device="cuda")
    mask, rows = x > 0, torch.arange(4, device="cuda")

    def through_slices() -> None:
        x[2:8, 1:3] = 3

    def through_a_mask() -> None:
        x[mask] = 0.0

    def through_indices() -> None:
        x[rows] = 1.0

    assert allocations(gpu, through_slices) == []
    assert allocations(gpu, through_a_mask) == []
    assert allocations(gpu, through_indices) == [4]
    assert "aten.scalar_tensor" not in ops(gpu.trace())


@pytest.mark.skipif(not hasattr(torch.ops.aten.addmm, "dtype"), reason="out_dtype came with torch 2.8")
def test_a_product_of_halves_may_be_kept_in_fp32(gpu: VirtualGpu) -> None:
    a = torch.randn(256, 512, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(256, 256, device="cuda")
    torch.mm(a, a.t(), out_dtype=torch.float32)  # cuBLAS takes its workspace
    for product in (
        lambda: torch.mm(a, a.t(), out_dtype=torch.float32),
        lambda: torch.addmm(bias, a, a.t(), out_dtype=torch.float32),
    ):
        before = torch.cuda.memory_allocated()
        out = product()
        assert out.dtype == torch.float32 and out.shape == (256, 256)
        assert torch.cuda.memory_allocated() - before == 256 * 256 * 4
        del out
    before = torch.cuda.memory_allocated()
    torch.addmm(bias, a, a.t(), out_dtype=torch.float32, out=bias)
    assert torch.cuda.memory_allocated() == before


def test_a_layer_norm_with_a_bias_alone(gpu: VirtualGpu) -> None:
    x = torch.randn(8, 16, device="cuda", requires_grad=True)
    bias = torch.zeros(16, device="cuda", requires_grad=True)
    F.layer_norm(x, (16,), None, bias).sum().backward()
    assert bias.grad is not None
    assert bias.grad.shape == (16,)


def test_the_gradient_of_cumprod_is_a_sum_from_the_end(gpu: VirtualGpu) -> None:
    """Alone on a card PyTorch goes through the columns only where it finds a zero; under a mode it always would."""
    x = torch.rand(8, 16, device="cuda", requires_grad=True)
    y = x.cumprod(1)
    before = len(ops(gpu.trace()))
    y.backward(torch.empty(8, 16, device="cuda"))
    assert x.grad is not None and x.grad.shape == x.shape
    named = ops(gpu.trace())[before:]
    assert named.count("aten.cumsum") == 1 and named.count("aten.flip") == 2 and len(named) < 12
    (second,) = torch.autograd.grad(torch.autograd.grad(x.cumprod(1).sum(), x, create_graph=True)[0].sum(), x)
    assert second.shape == x.shape
    host = torch.rand(3, 4, requires_grad=True)
    host.cumprod(1).sum().backward()
    assert host.grad is not None
