"""Jagged tensors (torch.nested): sequences of different lengths, without padding."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vramcast
from tests.card.reading import growth, ops, sizes_of
from vramcast.base.torch_versions import FLASH_SUMS_WITHOUT_PADDING
from vramcast.card.device.context import VirtualGpu
from vramcast.card.device.installed_torch import INSTALLED
from vramcast.card.ops.attention import efficient_accumulators

LENGTHS = (3, 70, 200)
TOTAL, HEADS, WIDTH = sum(LENGTHS), 2, 64


def _batch(dtype: torch.dtype = torch.float32, lengths: tuple[int, ...] = LENGTHS) -> torch.Tensor:
    parts = [torch.randn(length, WIDTH, device="cuda", dtype=dtype) for length in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, [HEADS, WIDTH // HEADS]).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(attended.transpose(1, 2).flatten(-2))


def _trained(dtype: torch.dtype) -> VirtualGpu:
    with vramcast.virtual_gpu("h200") as card:
        block = _Block().cuda().to(dtype)
        block(block(_batch(dtype))).values().float().sum().backward()
        for parameter in block.parameters():
            assert parameter.grad is not None
            assert parameter.grad.device.type == "cuda"
    return card


def test_a_jagged_tensor_is_on_the_card() -> None:
    with vramcast.virtual_gpu("h200"):
        batch = _batch()
        assert batch.device.type == "cuda"
        assert batch.is_cuda
        assert batch.values().device.type == batch.offsets().device.type == "cuda"
        assert batch.values().shape == (TOTAL, WIDTH)
        assert batch.offsets().tolist() == [0, 3, 73, 273]


@pytest.mark.skipif(INSTALLED < (2, 7), reason="logsumexp has another shape before torch 2.7")
def test_flash_attention_in_half_precision() -> None:
    trace = _trained(torch.bfloat16).trace()
    assert sizes_of(trace, "aten._flash_attention_forward")[:2] == [2 * TOTAL * WIDTH, 4 * HEADS * TOTAL]
    rows = TOTAL + 128 * len(LENGTHS)
    sums = rows if INSTALLED >= FLASH_SUMS_WITHOUT_PADDING else 256 * len(LENGTHS)
    gradients = [2 * TOTAL * WIDTH] * 3
    scratch = [4 * HEADS * sums, 4 * rows * WIDTH]
    assert sizes_of(trace, "aten._flash_attention_backward") == (gradients + scratch) * 2
    assert any("varied lengths" in note.text for note in trace.notes)


def test_efficient_attention_in_single_precision() -> None:
    trace = _trained(torch.float32).trace()
    sums = 4 * len(LENGTHS) * HEADS * 224  # the longest sequence, in whole 32
    assert sizes_of(trace, "aten._efficient_attention_forward") == [4 * TOTAL * WIDTH, sums] * 2
    # The product of output and gradient and its sums, twice; four tiles for the longest sequence, with their locks.
    product = [4 * TOTAL * WIDTH, 4 * TOTAL * HEADS, 4 * TOTAL * HEADS]
    accumulators = len(LENGTHS) * HEADS * 4 * (64 * 64 * 4 + 16)
    expected = [4 * TOTAL * WIDTH] * 3 + product + [accumulators]
    assert sizes_of(trace, "aten._efficient_attention_backward") == expected * 2


@pytest.mark.parametrize(
    ("heads", "keys", "width", "dtype", "expected"),
    [
        (4, 300, 64, torch.float32, 4 * 5 * (64 * 64 * 4 + 16)),
        (4, 300, 128, torch.float32, 4 * 3 * 2 * (128 * 64 * 4 + 16)),
        (4, 300, 128, torch.bfloat16, 4 * 3 * (128 * 128 * 4 + 16)),
        # Wider ones sum dk and dv as well: five blocks of keys, one where there are many heads.
        (4, 300, 256, torch.bfloat16, 4 * (3 * 4 * (128 * 64 * 4 + 16) + 5 * 64 * 512 * 4)),
        (64, 300, 256, torch.bfloat16, 64 * (3 * 4 * (128 * 64 * 4 + 16) + 3 * 64 * 512 * 4)),
        (512, 300, 256, torch.bfloat16, 512 * (3 * 4 * (128 * 64 * 4 + 16) + 64 * 512 * 4)),
    ],
)
def test_accumulators_of_efficient_attention(
    heads: int, keys: int, width: int, dtype: torch.dtype, expected: int
) -> None:
    """workspace_size in kernel_backward.h of PyTorch's CUTLASS kernels."""
    assert efficient_accumulators(heads, keys, keys, width, width, dtype) == expected


def test_autocast_chooses_the_kernel_of_its_precision() -> None:
    with vramcast.virtual_gpu("h200") as card:
        block = _Block().cuda()
        with torch.autocast("cuda", torch.bfloat16):
            loss = block(_batch()).values().float().sum()
        loss.backward()
    assert "aten._flash_attention_forward" in ops(card.trace())
    assert "aten._efficient_attention_forward" not in ops(card.trace())


def test_without_gradients_no_sums_are_kept() -> None:
    with vramcast.virtual_gpu("h200") as card, torch.no_grad():
        heads = _batch().unflatten(-1, [HEADS, WIDTH // HEADS]).transpose(1, 2)
        out = F.scaled_dot_product_attention(heads, heads, heads)
        assert out.device.type == "cuda"
    assert sizes_of(card.trace(), "aten._efficient_attention_forward") == [4 * TOTAL * WIDTH]


@pytest.mark.skipif(INSTALLED < (2, 7), reason="jagged matmul has no backward before torch 2.7")
def test_zeros_of_a_parts_gradient_are_on_the_card() -> None:
    """torch fills the gradient of what was not used, inside backward, with the device that it sees."""
    with vramcast.virtual_gpu("h200") as card:
        weight = torch.ones(WIDTH, 3 * WIDTH, device="cuda", requires_grad=True)
        first, _, _ = torch.matmul(_batch(), weight).chunk(3, -1)
        first.values().sum().backward()
        assert weight.grad is not None
        assert weight.grad.device.type == "cuda"
    assert 4 * TOTAL * 3 * WIDTH in list(card.trace().requested_bytes)


def test_a_padded_copy() -> None:
    with vramcast.virtual_gpu("h200"):
        batch = _batch()
        taken, padded = growth(lambda: batch.to_padded_tensor(0.0))
        assert taken == 4 * len(LENGTHS) * max(LENGTHS) * WIDTH
        assert isinstance(padded, torch.Tensor)
        assert padded.shape == (len(LENGTHS), max(LENGTHS), WIDTH)
        assert padded.device.type == "cuda"


def test_dtype_and_device_of_a_jagged_tensor_change() -> None:
    with vramcast.virtual_gpu("h200"):
        batch = _batch().bfloat16()
        assert (batch.dtype, batch.device.type) == (torch.bfloat16, "cuda")
        assert torch.zeros_like(batch).values().device.type == "cuda"
        layer = nn.Linear(WIDTH, WIDTH).cuda().bfloat16()
        assert layer(batch).offsets().device.type == "cuda"
