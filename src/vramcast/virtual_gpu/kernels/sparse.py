"""Sparse (COO) gradients of embeddings and the optimizers that take them."""

from __future__ import annotations

import math
from typing import Any

import torch

from vramcast.virtual_gpu.kernels.embedding import radix_sort_bytes
from vramcast.virtual_gpu.kernels.registry import Call, kernel
from vramcast.virtual_gpu.storages import known_values


def sparse_tensor(indices: torch.Tensor, values: torch.Tensor, size: Any, coalesced: bool = False) -> torch.Tensor:
    return torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors(  # type: ignore[no-any-return]
        indices.size(0), values.dim() - 1, list(size), indices, values, dtype=values.dtype,
        layout=torch.sparse_coo, device=torch.device("meta"), is_coalesced=coalesced,
    )  # fmt: skip


@kernel("aten::_coalesce")
def coalesce(call: Call) -> Any:
    """Equal indices are sorted together and their rows summed."""
    tensor = call.args[0]
    indices, values = tensor._indices(), tensor._values()
    n = indices.size(1)
    distinct = distinct_columns(indices, math.prod(tensor.shape[: indices.size(0)]))
    held = [call.empty((8 * n,), torch.uint8)]
    new_indices = call.empty((indices.size(0), n), torch.int64)[:, :distinct]
    held.append(call.empty((8 * n,), torch.uint8))
    call.scratch(radix_sort_bytes(n))
    new_values = call.empty((distinct, *values.shape[1:]), values.dtype)
    call.mode.machine.synchronize()
    del held
    return sparse_tensor(new_indices, new_values, tensor.shape, coalesced=True)


def distinct_columns(indices: torch.Tensor, rows: int) -> int:
    """How many indices differ: counted where they are known, else what uniform draws would give."""
    content = known_values(indices)
    if content is not None:
        return int(torch.unique(content, dim=1).size(1))
    n = indices.size(1)
    return min(n, math.ceil(rows * -math.expm1(n * math.log1p(-1 / rows)))) if rows > 1 else min(n, 1)


@kernel("aten::clone")
def clone(call: Call) -> Any:
    tensor = call.args[0]
    if tensor.layout is not torch.sparse_coo:
        return call.run()
    indices, values = tensor._indices(), tensor._values()
    if call.mode.machine.engine_is_running() and not torch.is_grad_enabled():
        # AccumulateGrad keeps a gradient that nobody else holds; under a dispatch mode it cannot tell.
        return sparse_tensor(indices, values, tensor.shape, tensor.is_coalesced())
    new_values = call.empty(values.size(), values.dtype)
    new_indices = call.empty(indices.size(), indices.dtype)
    return sparse_tensor(new_indices, new_values, tensor.shape, tensor.is_coalesced())


@kernel("aten::sparse_mask")
def sparse_mask(call: Call) -> Any:
    dense, mask = call.args[0], call.args[1]
    indices, values = mask._indices(), mask._values()
    new_values = call.empty((indices.size(1), *values.shape[1:]), dense.dtype)
    new_indices = call.empty(indices.size(), indices.dtype)
    call.scratch(new_values.numel() * new_values.element_size())
    return sparse_tensor(new_indices, new_values, mask.shape, coalesced=True)


@kernel("aten::add_.Tensor", "aten::sub_.Tensor")
def add_(call: Call) -> Any:
    target, other = call.args[0], call.args[1]
    if isinstance(other, torch.Tensor) and other.layout is torch.sparse_coo:
        return target  # rows are added in place
    return call.mode.run_in_place(call.func, call.args, call.kwargs, call.device)


@kernel("aten::embedding_sparse_backward", "aten::_embedding_bag_sparse_backward")
def embedding_sparse_backward(call: Call) -> Any:
    grad, indices = call.args[0], call.args[1]
    return _gathered(call, grad, indices, call.argument("num_weights"))


@kernel("aten::_embedding_bag_backward")
def embedding_bag_backward(call: Call) -> Any:
    grad, indices = call.args[0], call.args[1]
    if call.argument("sparse"):
        return _gathered(call, grad, indices, call.argument("num_weights"))
    from vramcast.virtual_gpu.kernels.embedding import weight_gradient

    return weight_gradient(call, grad, indices, call.argument("num_weights"), small=False, in_bags=True)


def _gathered(call: Call, grad: torch.Tensor, indices: torch.Tensor, rows: int) -> torch.Tensor:
    """One row of gradient for each index looked up."""
    values = call.empty((indices.numel(), grad.size(-1)), grad.dtype)
    return sparse_tensor(indices.reshape(1, -1), values, (rows, grad.size(-1)))
