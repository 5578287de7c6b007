"""What ops resize, set and share, sparse tensors and restricted attention: as measured on an H200 with torch 2.11."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import vramcast
from vramcast.base.units import MIB
from vramcast.card.device.context import VirtualGpu
from vramcast.card.device.installed_torch import INSTALLED
from vramcast.errors import CannotPredict


@pytest.fixture(scope="module")
def card() -> Iterator[VirtualGpu]:
    with vramcast.virtual_gpu("h200") as card:
        x = torch.ones(64, 64, device="cuda", requires_grad=True)
        (x @ x).sum().backward()  # cuBLAS has its workspaces
        del x
        yield card


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda")


def bytes_(n: int) -> torch.Tensor:
    return empty(n, dtype=torch.uint8)


def into(make: Callable[..., Any], *inputs: torch.Tensor, out: Any) -> Any:
    make(*inputs, out=out)
    return inputs, out


def places() -> torch.Tensor:
    return empty(0, dtype=torch.int64)


def coo(rows: int = 100_000, *, width: int | None = None) -> torch.Tensor:
    """200,000 elements, of which some are at the same place."""
    generator = torch.Generator().manual_seed(0)
    indices = torch.stack([torch.randint(high, (200_000,), generator=generator) for high in (rows, 2000)])
    beside = () if width is None else (width,)
    return torch.sparse_coo_tensor(indices, torch.ones(200_000, *beside), (rows, 2000, *beside))


def on_card(rows: int = 100_000) -> torch.Tensor:
    return coo(rows).coalesce().cuda()


def with_(make: Callable[..., Any], *inputs: Any) -> Any:
    return inputs, make(*inputs)


def resized(tensor: torch.Tensor, size: int) -> Any:
    tensor.resize_(size)
    return tensor


def resized_as(tensor: torch.Tensor, other: torch.Tensor) -> Any:
    tensor.resize_as_(other)
    return tensor, other


def with_storage(tensor: torch.Tensor, *sizes: int) -> Any:
    for size in sizes:
        tensor.untyped_storage().resize_(size)
    return tensor


def set_larger() -> Any:
    return empty(0).set_(empty(1 << 20).untyped_storage(), 0, (16 << 20,))  # type: ignore[call-overload]


def data_given() -> Any:
    tensor = empty(8 << 20)
    tensor.data = empty(1 << 20)
    return tensor


def swapped() -> Any:
    pair = empty(8 << 20), empty(1 << 20)
    torch.utils.swap_tensors(*pair)
    return pair


def sparse_backward() -> Any:
    sparse, dense = on_card(), torch.zeros(2000, 64, device="cuda", requires_grad=True)
    out = torch.sparse.mm(sparse, dense)
    out.sum().backward()
    return sparse, dense, out


def fake_quantized() -> Any:
    x = torch.ones(1024, 1024, device="cuda", requires_grad=True)
    out = torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)
    out.sum().backward()
    return x, out


def complex_product() -> Any:
    z = torch.ones(1024, 1024, dtype=torch.complex64, device="cuda", requires_grad=True)
    out = z * z.conj()
    out.real.sum().backward()
    return z, out


def jagged_padded() -> Any:
    rows = [torch.ones(100 * k, 64, device="cuda") for k in range(1, 9)]
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged)
    del rows
    return nested, nested.to_padded_tensor(0.0)


CUDNN, FLASH, EFFICIENT = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION
MATH, OVERRIDEABLE = SDPBackend.MATH, SDPBackend.OVERRIDEABLE


def attention(
    backends: Any, *, length: int = 2048, keys: int | None = None, heads: int | None = None, trains: bool = True,
    masked: bool = False, dtype: torch.dtype = torch.bfloat16, set_priority: bool = False, width: int = 64,
) -> Any:  # fmt: skip
    def make(heads: int, length: int) -> torch.Tensor:
        return torch.zeros(2, heads, length, width, device="cuda", dtype=dtype, requires_grad=trains)

    q, k, v = make(16, length), make(heads or 16, keys or length), make(heads or 16, keys or length)
    mask = torch.ones(2, 1, length, keys or length, dtype=torch.bool, device="cuda") if masked else None
    with sdpa_kernel(backends, set_priority=set_priority):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=heads is not None)
    if trains:
        out.sum().backward()
    return q, k, v, mask, out


def without_cudnn() -> Any:
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        q = torch.zeros(2, 16, 2048, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        out = F.scaled_dot_product_attention(q, q, q)
        out.sum().backward()
        return q, out
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)


def cat(*tensors: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return torch.cat(tensors * 3, out=out)


MEASURED: dict[str, tuple[Callable[[], Any], int, int]] = {
    # what was run: what it leaves allocated, its peak
    "cat out= empty": (lambda: into(cat, bytes_(64 * MIB), out=bytes_(0)), 268435456, 268435456),
    "cat out= too small": (lambda: into(cat, bytes_(64 * MIB), out=bytes_(10 * MIB)), 268435456, 278921216),
    "cat out= too large": (lambda: into(cat, bytes_(64 * MIB), out=bytes_(300 * MIB)), 381681664, 381681664),
    "neg out= empty": (lambda: into(torch.neg, empty(4 << 20), out=empty(0)), 33554432, 33554432),
    "exp out= wider": (lambda: into(torch.exp, empty(4 << 20), out=empty(0, dtype=torch.float64)), 50331648, 50331648),
    "mm out= empty": (lambda: into(torch.mm, *[empty(2048, 2048)] * 2, out=empty(0)), 33554432, 33554432),
    "mm out= strided": (
        lambda: into(torch.mm, *[empty(2048, 2048)] * 2, out=empty(4096, 4096)[::2, ::2]), 83886080, 100663296,
    ),
    "sum out= empty": (
        lambda: into(lambda x, out: torch.sum(x, 0, out=out), empty(2048, 2048), out=empty(0)), 16785408, 50340352,
    ),
    "max out= empty": (
        lambda: into(lambda x, out: torch.max(x, 0, out=out), empty(2048, 2048), out=(empty(0), places())),
        16801792, 151020032,
    ),
    "masked_select out= empty": (
        lambda: into(lambda x, out: torch.masked_select(x, x > 0, out=out), torch.ones(512, 512, device="cuda"),
                     out=empty(0)),
        2097152, 6553600,
    ),
    "arange out= empty": (lambda: torch.arange(1 << 20, out=empty(0)), 4194304, 4194304),
    "randn out= empty": (lambda: torch.randn(1024, 1024, out=empty(0)), 4194304, 4194304),
    "resize_": (lambda: resized(empty(1 << 20), 8 << 20), 33554432, 37748736),
    "resize_ smaller": (lambda: resized(empty(8 << 20), 1 << 20), 33554432, 33554432),
    "resize_as_": (lambda: resized_as(empty(0), empty(8 << 20)), 67108864, 67108864),
    "storage larger": (lambda: with_storage(empty(1 << 20), 64 << 20), 67108864, 71303168),
    "storage smaller": (lambda: with_storage(empty(8 << 20), 1 << 20), 1048576, 34603008),
    "storage to nothing and back": (lambda: with_storage(empty(8 << 20), 0, 32 << 20), 33554432, 33554432),
    "set_ larger": (set_larger, 67108864, 71303168),
    "set_ to nothing": (lambda: empty(1 << 20).set_(), 0, 4194304),  # type: ignore[call-overload]
    "UntypedStorage": (lambda: torch.UntypedStorage(64 << 20, device="cuda"), 67108864, 67108864),
    "storage.clone": (lambda: with_(lambda x: x.untyped_storage().clone(), empty(8 << 20)), 67108864, 67108864),
    ".data =": (data_given, 4194304, 37748736),
    "swap_tensors": (swapped, 37748736, 37748736),
    "COO .cuda()": (lambda: coo().cuda(), 4000256, 4000256),
    "hybrid COO .cuda()": (lambda: coo(width=8).cuda(), 9600000, 9600000),
    "COO coalesce": (lambda: with_(torch.Tensor.coalesce, coo().cuda()), 7998976, 12798976),
    "COO @ dense": (lambda: with_(torch.sparse.mm, on_card(), empty(2000, 64)), 30110720, 82514432),
    "COO @ dense, backward": (sparse_backward, 30622720, 82514432),
    "COO to dense": (lambda: with_(torch.Tensor.to_dense, on_card(2000)), 19902464, 19902464),
    "COO + COO": (lambda: with_(lambda x: x + x, on_card()), 11995648, 11995648),
    "COO * 2": (lambda: with_(lambda x: x * 2, on_card()), 7997440, 7997440),
    "COO .t()": (lambda: with_(torch.t, on_card()), 7997440, 9596928),
    "COO to CSR": (lambda: with_(torch.Tensor.to_sparse_csr, on_card()), 4798976, 4798976),
    "CSR .cuda()": (lambda: coo().coalesce().to_sparse_csr().cuda(), 3199488, 3199488),
    "CSC .cuda()": (lambda: coo().coalesce().to_sparse_csc().cuda(), 2415616, 2415616),
    "BSR .cuda()": (lambda: torch.eye(2048).to_sparse_bsr((16, 16)).cuda(), 133632, 133632),
    "CSR @ dense": (
        lambda: with_(torch.matmul, coo().coalesce().to_sparse_csr().cuda(), empty(2000, 64)), 29311488, 54978560,
    ),
    "fake quantization": (fake_quantized, 12582912, 13632512),
    "complex": (complex_product, 25165824, 41944064),
    "jagged to padded": (jagged_padded, 2560512, 2560512),
    "cuDNN attention": (lambda: attention(CUDNN), 58720256, 84412928),
    "cuDNN attention, evaluation": (lambda: attention(CUDNN, trains=False), 33554432, 33555968),
    "cuDNN attention, mask": (lambda: attention(CUDNN, masked=True), 67108864, 109578752),
    "cuDNN attention, grouped": (lambda: attention(CUDNN, heads=4), 33554432, 76024320),
    "cuDNN attention, other keys": (lambda: attention(CUDNN, keys=1000), 41943040, 67635712),
    "flash before cuDNN": (lambda: attention([FLASH, CUDNN], set_priority=True), 58720256, 92801024),
    "flash or cuDNN": (lambda: attention([FLASH, CUDNN]), 58720256, 84412928),
    "efficient before cuDNN": (lambda: attention([EFFICIENT, CUDNN], set_priority=True), 58720256, 84427776),
    "math first": (lambda: attention([MATH, CUDNN, FLASH], length=512, set_priority=True), 14680064, 155190272),
    "overrideable or flash": (lambda: attention([OVERRIDEABLE, FLASH]), 58720256, 92801024),
    "cuDNN switched off": (without_cudnn, 25165824, 76023808),
}  # fmt: skip


@pytest.mark.skipif(INSTALLED < (2, 11), reason="measured with torch 2.11")
@pytest.mark.parametrize("name", MEASURED)
def test_as_measured(card: VirtualGpu, name: str) -> None:
    run, left, peak = MEASURED[name]
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept = run()
    assert torch.cuda.memory_allocated() - before == left
    assert torch.cuda.max_memory_allocated() - before == peak
    del kept


NONE_FITS = "No available kernel. Aborting execution."
NONE_LEFT = "No viable backend for scaled_dot_product_attention was found."


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: attention(CUDNN, dtype=torch.float32), NONE_FITS),
        (lambda: attention(CUDNN, width=20), NONE_FITS),
        (lambda: attention(FLASH, masked=True), NONE_FITS),
        (lambda: attention(OVERRIDEABLE), NONE_LEFT),
        (lambda: attention([]), NONE_LEFT),
    ],
)
@pytest.mark.skipif(INSTALLED < (2, 8), reason="another order of checks before torch 2.8")
@pytest.mark.usefixtures("card")
def test_attention_that_no_allowed_kernel_can_do(run: Callable[[], Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        run()


@pytest.mark.parametrize(
    "run",
    [
        lambda: torch.sparse.sum(on_card().to_sparse_csr(), 0),
        lambda: torch.nested.nested_tensor([empty(2, 3), empty(4, 3)]),
        lambda: torch.histogram(empty(8), 4),
        lambda: torch.sparse.mm(on_card(2000), on_card(2000)),
    ],
)
def test_what_has_no_rule_says_so(card: VirtualGpu, run: Callable[[], Any]) -> None:
    with pytest.raises(CannotPredict, match=r"no rule for aten::\w+\(.*called at .*test_booked.py"):
        run()
    assert card.unknown_kernels
    card._machine.unknown_kernels.clear()


def test_softmax_and_sums_of_a_sparse_matrix(card: VirtualGpu) -> None:
    """Three elements in two rows: 8 bytes an index, 4 a value, each tensor in blocks of 512."""
    indices = torch.tensor([[0, 0, 5], [1, 2, 3]]).cuda()
    matrix = torch.sparse_coo_tensor(indices, torch.ones(3, device="cuda", requires_grad=True), (9, 9)).coalesce()
    before = torch.cuda.memory_allocated()
    shares, rows = torch.sparse.softmax(matrix, 1), torch.sparse.sum(matrix, 1)
    assert (shares._nnz(), rows._nnz()) == (3, 2)
    assert torch.cuda.memory_allocated() - before == 4 * 512
    (torch.sparse.sum(shares) + torch.sparse.sum(rows)).backward()


@pytest.mark.parametrize("given", [(), (7,)])
def test_padding_that_is_taken_away_leaves_the_other_rows(card: VirtualGpu, given: tuple[int, ...]) -> None:
    padded, offsets = empty(2, 4, 256), torch.tensor([0, 3, 7]).cuda()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    rows = torch.ops.aten._padded_dense_to_jagged_forward(padded, [offsets], *given)
    assert rows.shape == (7, 256)
    assert torch.cuda.memory_allocated() - before == 7 * 256 * 4
    assert torch.cuda.max_memory_allocated() - before == 2 * 7 * 256 * 4
