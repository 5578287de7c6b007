"""Writes through indices. Accumulating ones sort the indices first, so that equal ones meet."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from vramcast.base.torch_versions import TOPK_KEEPS_SUMS, TOPK_TWO_BUFFERS
from vramcast.card.device.installed_torch import INSTALLED
from vramcast.card.ops.accumulate import written_over
from vramcast.card.ops.data_reads import alike_in_stride, expand_masks
from vramcast.card.ops.embedding import radix_sort_bytes
from vramcast.card.ops.layout import are_mergeable
from vramcast.card.ops.masks import refuse_bytes
from vramcast.card.ops.registry import KERNELS, Call, kernel
from vramcast.card.values import known_values as values


@kernel("aten::index_put_", "aten::index_put", "aten::_index_put_impl_", "aten::_unsafe_index_put")
def index_put(call: Call) -> Any:
    tensor, indices, source = call.args[0], call.args[1], call.args[2]
    in_place = call.func._schema.name.endswith("_")
    if in_place and _is_masked_fill(indices, source):
        refuse_bytes(next(i for i in indices if i is not None))
        values.update_in_place(call.mode, call.func, call.args, call.kwargs)
        return tensor
    number = None if source.is_meta else call.empty(source.size(), source.dtype)
    expanded = expand_masks(call, indices)
    out = tensor if in_place else written_over(call, through_indices=True)
    if out is None:
        out = call.empty(tensor.size(), tensor.dtype)
    if call.argument("accumulate"):
        _sorted_accumulation(call, expanded, source, tensor)
    else:
        alike_in_stride(call, expanded)
    if in_place:
        values.update_in_place(call.mode, call.func, call.args, call.kwargs)
    del number
    return out


def _is_masked_fill(indices: Any, source: torch.Tensor) -> bool:
    """`x[mask] = number` becomes masked_fill_, which needs no positions; the number is on the host."""
    given = [i for i in indices if i is not None]
    return (
        len(given) == 1 and given[0].dtype in (torch.bool, torch.uint8) and source.numel() == 1 and not source.is_meta
    )


def _sorted_accumulation(call: Call, indices: list[Any], source: torch.Tensor, tensor: torch.Tensor) -> None:
    """index_put_with_sort_kernel in aten/src/ATen/native/cuda/Indexing.cu. Where there is a dimension without an index
    between two that have one, the tensor is transposed first, and then copied as one that is not dense."""
    n = max((i.numel() for i in indices if i is not None), default=0)
    held = [call.empty((8 * n,), torch.uint8)]
    if not source.is_contiguous():
        held.append(call.empty(source.size(), source.dtype))
    places = [place for place, index in enumerate(indices) if index is not None]
    apart = any(following - place > 1 for place, following in pairwise(places))
    if apart or not tensor.is_contiguous():
        held.append(call.empty(tensor.size(), tensor.dtype))
    call.scratch(8 * n, 8 * n, 8 * n, radix_sort_bytes(n) if n > 2048 else 1)
    del held


@kernel("aten::masked_select")
def masked_select(call: Call) -> Any:
    """The mask becomes positions first, one column a dimension."""
    from vramcast.card.ops import data_reads

    out = data_reads.masked_select(call)
    dims = max(call.args[0].dim(), call.args[1].dim(), 1)
    call.scratch(8 * out.numel() * dims)
    return out


@kernel("aten::topk")
def topk(call: Call) -> Any:
    from vramcast.card.ops.data_reads import ranking

    out = ranking(call)
    x = call.args[0]
    dim = call.argument("dim", -1)
    length = x.size(dim) if x.dim() else 1
    slices = x.numel() // max(length, 1)
    held = [] if x.is_contiguous() else [call.empty(x.size(), x.dtype)]
    if _multi_block(slices, length):
        # Radix counts for each block and slice (sbtopk/mbtopk in TensorTopK.cu).
        per_thread = min(max(-(-slices * length // ((call.gpu.sm_count or 1) * 6 * 256)), 4), 64)
        blocks = -(-length // (256 * per_thread))
        each = 8 if INSTALLED >= TOPK_TWO_BUFFERS else 4
        state = (each * slices, each * slices, 512 * slices * blocks)
        if INSTALLED >= TOPK_KEEPS_SUMS:
            call.scratch(4 * slices, *state, 1024 * slices, 4 * slices, 4 * slices)
        else:
            call.scratch(4 * slices, 4 * slices, *state, 4 * slices, 4 * slices)
    del held
    return out


def _multi_block(slices: int, length: int) -> bool:
    """should_use_multiblock in TensorTopK.cu."""
    for fewest, least in ((4001, 400), (800, 800), (200, 3000), (81, 5000), (41, 8000), (21, 10000), (0, 20000)):
        if slices >= fewest:
            return length >= least
    return False


@kernel("aten::_euclidean_dist")
def euclidean_dist(call: Call) -> Any:
    """|x|² and |y|² are appended to the operands, so that one matrix product gives all distances."""
    x, y = call.args[:2]
    x_norms, x_ones = _norms(call, x)
    y_norms, y_ones = _norms(call, y)
    doubled = call.empty(x.size(), x.dtype)
    operands = [_with_two_more(call, x)]
    del x_ones, x_norms, doubled
    operands.append(_with_two_more(call, y))
    del y_norms, y_ones
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    out = call.empty((*batch, x.size(-2), y.size(-2)), x.dtype)
    call.mode.machine.use_cublas()
    del operands
    return out


def _norms(call: Call, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of each row, and as many ones."""
    squares = call.empty(x.size(), x.dtype)
    norms = call.empty((*x.shape[:-1], 1), x.dtype)
    del squares
    return norms, call.empty(norms.size(), x.dtype)


def _with_two_more(call: Call, x: torch.Tensor) -> torch.Tensor:
    return call.empty((*x.shape[:-1], x.size(-1) + 2), x.dtype)


@kernel("aten::_cdist_backward")
def cdist_backward(call: Call) -> Any:
    """The gradient of each pair is written out, then summed (cdist_backward_kernel_impl in DistanceKernel.cu)."""
    grad, _, y, p = call.args[:4]
    out = call.run()
    if p != 0 and out.numel() and grad.numel():
        call.scratch(out.numel() * y.size(-2) * out.element_size())
    return out


@kernel("aten::roll")
def roll(call: Call) -> Any:
    x, shifts = call.args[0], call.args[1]
    count = len(shifts) if isinstance(shifts, (list, tuple)) else 1
    first = [] if x.is_contiguous() else [call.empty(x.size(), x.dtype)]
    # One dimension after the other, each into a new tensor; the earlier ones live until the last is done.
    chain = [call.empty(x.size(), x.dtype)]
    del first
    for _ in range(count - 1):
        chain.append(call.empty(x.size(), x.dtype))
    out = chain.pop()
    values.propagate(call.mode, call.func, call.args, call.kwargs, out)
    return out


@kernel("aten::embedding")
def embedding(call: Call) -> Any:
    indices = call.args[1]
    held = [] if are_mergeable(indices.size(), indices.stride()) else [call.empty(indices.size(), indices.dtype)]
    out = call.run()
    del held
    return out


@kernel("aten::item")
def item(call: Call) -> Any:
    """A class of tensors that handles its ops itself sees `item` before it is taken apart."""
    return KERNELS["aten::_local_scalar_dense"](call)
