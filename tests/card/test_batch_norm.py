"""PyTorch's own batch norm on CUDA. Sizes of the recorded RegNet (bf16, channels last) and DeepSpeech."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.card.reading import allocations, sizes_of
from vramcast.card.device.context import VirtualGpu


def normalized(x: torch.Tensor) -> torch.Tensor:
    weight, bias = (torch.zeros(x.size(1), device="cuda", requires_grad=True) for _ in range(2))
    return F.batch_norm(x, None, None, weight, bias, training=True)


def image(*size: int, layout: torch.memory_format = torch.channels_last) -> torch.Tensor:
    x = torch.empty(size, dtype=torch.bfloat16, device="cuda", memory_format=layout)
    return x.requires_grad_()


def test_blocks_meet_in_global_memory_where_columns_are_long(gpu: VirtualGpu) -> None:
    normalized(image(11, 528, 192, 192))
    normalized(image(11, 1056, 48, 48))
    normalized(image(11, 7392, 2, 2))
    sizes = sizes_of(gpu.trace(), "aten.native_batch_norm")
    assert sizes[:5] == [428_212_224, 2112, 2112, 1_081_344, 68]
    assert sizes[5:10] == [53_526_528, 4224, 4224, 1_672_704, 132]
    assert sizes[10:] == [650_496, 29_568, 29_568]


def test_sums_come_before_the_gradient_with_channels_last(gpu: VirtualGpu) -> None:
    x = image(11, 2904, 24, 24)
    y = normalized(x)
    gradient = torch.empty_like(y)
    made = allocations(gpu, lambda: y.backward(gradient))
    assert made == [11_616] * 4 + [580_800, 364, 36_799_488]


def test_a_gradient_that_cannot_be_flattened_is_copied(gpu: VirtualGpu) -> None:
    x = image(4, 32, 41, 30, layout=torch.contiguous_format)
    y = normalized(x)
    nbytes = 2 * y.numel()
    dense = torch.empty_like(y)
    assert allocations(gpu, lambda: y.backward(dense, retain_graph=True)) == [nbytes, 128, 128]
    permuted = torch.empty(4, 30, 32, 41, dtype=torch.bfloat16, device="cuda").permute(0, 2, 3, 1)
    made = allocations(gpu, lambda: torch.autograd.grad(y, x, permuted))
    assert made == [nbytes, nbytes]  # the gradients of weight and bias were not asked for
