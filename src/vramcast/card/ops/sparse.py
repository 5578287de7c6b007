"""Sparse tensors: gradients of embeddings and the optimizers that take them, moves, conversions, products.

An op with a sparse argument needs a rule here (`sparse_kernel`), or one that is named in _AS_DENSE: meta kernels make
sparse results without elements, and so without memory. What a rule books was measured on an H200 with torch 2.11;
softmax and sums along some dimensions follow their sources.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from vramcast.card.dispatch import host_ops
from vramcast.card.dispatch.storages import known_values, sparse_parts
from vramcast.card.ops.copies import read_back
from vramcast.card.ops.registry import Call, Kernel, kernel
from vramcast.card.values import known_values as values

SPARSE_KERNELS: dict[str, Kernel] = {}

_AS_DENSE = frozenset({
    "_indices", "_values", "indices", "values", "crow_indices", "col_indices", "ccol_indices", "row_indices", "_nnz",
    "sparse_dim", "dense_dim", "_dimI", "_dimV", "is_coalesced", "_coalesced_", "detach", "detach_", "alias",
    "is_same_size", "requires_grad_", "sym_size", "sym_numel", "_sparse_coo_tensor_with_dims_and_tensors",
    "_sparse_coo_tensor_unsafe", "_validate_sparse_coo_tensor_args", "_coalesce", "clone", "sparse_mask", "add_",
    "sub_", "record_stream", "embedding_sparse_backward", "_embedding_bag_sparse_backward",
})  # fmt: skip
"""Ops that look at sparse tensors, and those whose rules of the usual kind know of them."""


def sparse_kernel(*names: str) -> Callable[[Kernel], Kernel]:
    """Register a rule for ops, all overloads, where one of their tensors is sparse."""

    def register(function: Kernel) -> Kernel:
        SPARSE_KERNELS.update(dict.fromkeys(names, function))
        return function

    return register


def sparse_rule(func: Any) -> Kernel | None:
    """The rule for an op with a sparse argument; raises LookupError where there is none."""
    name = func._schema.name.removeprefix("aten::")
    rule = SPARSE_KERNELS.get(name)
    if rule is None and name not in _AS_DENSE:
        raise LookupError(name)
    return rule


def compressed_tensor(parts: list[torch.Tensor], size: Any, layout: torch.layout) -> torch.Tensor:
    """CSR and its kin, of offsets, indices and values."""
    return torch.ops.aten._sparse_compressed_tensor_unsafe(  # type: ignore[no-any-return]
        *parts, list(size), dtype=parts[2].dtype, layout=layout, device=parts[2].device
    )


def rebuilt(tensor: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor:
    """A sparse tensor like this one, of other parts."""
    if tensor.layout is torch.sparse_coo:
        if parts[0].is_meta:
            return sparse_tensor(parts[0], parts[1], tensor.shape, tensor.is_coalesced())
        made = torch.sparse_coo_tensor(parts[0], parts[1], tensor.shape, check_invariants=False)
        return made._coalesced_(tensor.is_coalesced())
    return compressed_tensor(parts, tensor.shape, tensor.layout)


def sparse_tensor(indices: torch.Tensor, values: torch.Tensor, size: Any, coalesced: bool = False) -> torch.Tensor:
    return torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors(  # type: ignore[no-any-return]
        indices.size(0), values.dim() - 1, list(size), indices, values, dtype=values.dtype,
        layout=torch.sparse_coo, device=torch.device("meta"), is_coalesced=coalesced,
    )  # fmt: skip


@kernel("aten::_coalesce")
def coalesce(call: Call) -> Any:
    """Equal indices are sorted together and their rows summed."""
    tensor = call.args[0]
    indices, elements = tensor._indices(), tensor._values()
    n = indices.size(1)
    distinct = distinct_columns(indices, math.prod(tensor.shape[: indices.size(0)]))
    held = [call.empty((8 * n,), torch.uint8)]
    new_indices = call.empty((1, n), torch.int64)[:, :distinct]  # the rows as one number each, sorted
    held.append(call.empty((8 * n,), torch.uint8))
    call.scratch(2 * (-(-8 * n // 256) * 256) + 767)
    new_values = call.empty((distinct, *elements.shape[1:]), elements.dtype)
    if indices.size(0) > 1:
        held.append(new_indices)
        new_indices = call.empty((indices.size(0), distinct), torch.int64)
        if (content := known_values(indices)) is not None:
            values.learn(new_indices, torch.unique(content, dim=1))
    call.mode.machine.synchronize()
    del held
    return sparse_tensor(new_indices, new_values, tensor.shape, coalesced=True)


def distinct_columns(indices: torch.Tensor, rows: int, among: Sequence[int] = ()) -> int:
    """How many indices differ, in some dimensions or all: counted where they are known, else what uniform draws would
    give."""
    content = known_values(indices)
    if content is not None:
        return int(torch.unique(content[among] if among else content, dim=1).size(1))
    n = indices.size(1)
    return min(n, math.ceil(rows * -math.expm1(n * math.log1p(-1 / rows)))) if rows > 1 else min(n, 1)


@kernel("aten::clone")
def clone(call: Call) -> Any:
    tensor = call.args[0]
    if tensor.layout is not torch.sparse_coo:
        return call.run()
    indices, elements = tensor._indices(), tensor._values()
    dense = indices.is_contiguous() and elements.is_contiguous()
    if dense and call.mode.machine.engine_is_running() and not torch.is_grad_enabled():
        # AccumulateGrad keeps a gradient that nobody else holds; under a dispatch mode it cannot tell.
        return sparse_tensor(indices, elements, tensor.shape, tensor.is_coalesced())
    new_values = call.empty(elements.size(), elements.dtype)
    new_indices = call.empty(indices.size(), indices.dtype)
    return sparse_tensor(new_indices, new_values, tensor.shape, tensor.is_coalesced())


@kernel("aten::sparse_mask")
def sparse_mask(call: Call) -> Any:
    dense, mask = call.args[0], call.args[1]
    indices, elements = mask._indices(), mask._values()
    new_values = call.empty((indices.size(1), *elements.shape[1:]), dense.dtype)
    new_indices = call.empty(indices.size(), indices.dtype)
    call.scratch(new_values.numel() * new_values.element_size())
    return sparse_tensor(new_indices, new_values, mask.shape, coalesced=True)


@kernel("aten::add_.Tensor", "aten::sub_.Tensor")
def add_(call: Call) -> Any:
    target, other = call.args[0], call.args[1]
    if isinstance(other, torch.Tensor) and other.layout is torch.sparse_coo:
        if target.layout is torch.sparse_coo:
            target.data = _joined(call, target, other)
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
    from vramcast.card.ops.embedding import weight_gradient

    return weight_gradient(call, grad, indices, call.argument("num_weights"), small=False, in_bags=True)


def _gathered(call: Call, grad: torch.Tensor, indices: torch.Tensor, rows: int) -> torch.Tensor:
    """One row of gradient for each index looked up."""
    rows_of = call.empty((indices.numel(), grad.size(-1)), grad.dtype)
    return sparse_tensor(indices.reshape(1, -1), rows_of, (rows, grad.size(-1)))


# -- moves and conversions ----------------------------------------------------------------------------------------


@sparse_kernel("_to_copy")
def to_copy(call: Call) -> Any:
    """Part by part, the values first where indices are compressed."""
    tensor, device = call.args[0], call.kwargs.get("device")
    parts = sparse_parts(tensor)
    dtype = call.kwargs.get("dtype") or tensor.dtype
    wanted = [dtype if position == len(parts) - 1 else part.dtype for position, part in enumerate(parts)]
    if device is not None and device.type == "cpu" and tensor.is_meta:
        back = [read_back(call, part, kind) for part, kind in zip(parts, wanted, strict=True)]
        if any(part.is_meta for part in back):
            back = [part if part.is_meta else host_ops.empty_twin(part) for part in back]
        return rebuilt(tensor, back)
    order = list(range(len(parts)))
    if len(parts) == 3:
        order = [2, 0, 1]
    copies: dict[int, torch.Tensor] = {}
    for position in order:
        part = parts[position]
        copies[position] = copy = call.empty(part.size(), wanted[position], part.contiguous().stride())
        content = known_values(part) if part.is_meta else part
        if content is not None and values.small(part):
            values.learn(copy, content.to(copy.dtype, copy=True).contiguous())
    return rebuilt(tensor, [copies[position] for position in range(len(parts))])


@sparse_kernel("_to_dense", "to_dense")
def to_dense(call: Call) -> Any:
    tensor = call.args[0]
    out = call.empty(tensor.shape, call.argument("dtype") or tensor.dtype)
    if tensor.layout is not torch.sparse_coo:
        n = tensor.col_indices().numel() if tensor.layout is torch.sparse_csr else tensor.values().size(0)
        call.scratch(*[8 * n] * 8)  # rows are made of offsets, and both written as one index
    return out


@sparse_kernel("_to_sparse_csr", "to_sparse_csr")
def coo_to_csr(call: Call) -> Any:
    """Columns and values are shared; only the offsets of rows are new."""
    tensor = call.args[0]
    if tensor.layout is torch.sparse_csr:
        return tensor
    if tensor.layout is not torch.sparse_coo:
        raise NotImplementedError
    if not tensor.is_coalesced():
        tensor = coalesce(Call(call.mode, call.func, (tensor,), {}, call.device))
    rows = call.empty((tensor.size(0) + 1,), torch.int64)
    return compressed_tensor([rows, tensor._indices()[1], tensor._values()], tensor.shape, torch.sparse_csr)


@kernel("aten::_to_sparse.default", "aten::_to_sparse.sparse_dim", "aten::to_sparse")
def dense_to_coo(call: Call) -> Any:
    tensor = call.args[0]
    n = _nonzero(call, tensor)
    positions = call.empty((n, max(tensor.dim(), 1)), torch.int64)
    indices = call.empty((tensor.dim(), n), torch.int64)
    elements = call.empty((n,), tensor.dtype)
    call.scratch(n * tensor.element_size())
    del positions
    return sparse_tensor(indices, elements, tensor.shape, coalesced=True)


@kernel("aten::_to_sparse_csr")
def dense_to_csr(call: Call) -> Any:
    tensor = call.args[0]
    mask = call.empty(tensor.shape, torch.bool)
    n = _nonzero(call, tensor)
    positions = call.empty((2, n), torch.int64)
    rows = call.empty((tensor.size(0) + 1,), torch.int64)
    flat = call.empty((n,), torch.int64)
    elements = call.empty((n,), tensor.dtype)
    del flat, mask
    return compressed_tensor([rows, positions[1], elements], tensor.shape, torch.sparse_csr)


def _nonzero(call: Call, tensor: torch.Tensor) -> int:
    content = known_values(tensor)
    call.mode.machine.synchronize()
    if content is not None:
        return int(content.count_nonzero())
    call.unknown_read("conversion to a sparse tensor", f"all {tensor.numel()} elements differ from zero")
    return tensor.numel()


# -- arithmetic ---------------------------------------------------------------------------------------------------


@sparse_kernel(
    "mul", "div", "neg", "abs", "sqrt", "relu", "sin", "tanh", "sign", "floor", "ceil", "round", "asin", "atan", "sinh",
    "asinh", "atanh", "expm1", "log1p", "erf", "tan", "trunc", "rad2deg", "deg2rad",
)  # fmt: skip
def elementwise(call: Call) -> Any:
    """An op on one sparse tensor and numbers: indices and values are new."""
    tensor, *others = call.args
    numbers = all(not isinstance(o, torch.Tensor) or (o.dim() == 0 and o.layout is torch.strided) for o in others)
    if not numbers or not isinstance(tensor, torch.Tensor) or tensor.layout is torch.strided:
        raise NotImplementedError
    return _copied(call, tensor)


@sparse_kernel("zeros_like", "empty_like")
def without_elements(call: Call) -> Any:
    if call.args[0].layout is not torch.sparse_coo or call.kwargs.get("layout") not in (None, torch.sparse_coo):
        raise NotImplementedError
    tensor = call.args[0]
    indices = call.empty((tensor.sparse_dim(), 0), torch.int64)
    elements = call.empty((0, *tensor._values().shape[1:]), call.kwargs.get("dtype") or tensor.dtype)
    return sparse_tensor(indices, elements, tensor.shape)


@sparse_kernel("mul_", "div_", "zero_")
def in_place(call: Call) -> Any:
    """Values are written where they are."""
    if call.args[0].layout is torch.strided or any(
        isinstance(o, torch.Tensor) and (o.dim() or o.layout is not torch.strided) for o in call.args[1:]
    ):
        raise NotImplementedError
    values.forget(sparse_parts(call.args[0])[-1])
    return call.args[0]


@sparse_kernel("add", "sub")
def add(call: Call) -> Any:
    """The elements of both, one after the other; or a dense sum."""
    tensor, other = call.args[0], call.args[1]
    if not isinstance(other, torch.Tensor):
        raise NotImplementedError
    layouts = {tensor.layout, other.layout}
    if layouts == {torch.sparse_coo}:
        return _joined(call, tensor, other)
    if layouts == {torch.sparse_coo, torch.strided}:
        return call.empty(tensor.shape, torch.result_type(tensor, other))
    raise NotImplementedError


@sparse_kernel("norm", "linalg_vector_norm", "sum", "_sparse_sum")
def total(call: Call) -> Any:
    """The sum of all elements, or along some dimensions: then the indices that are left are coalesced."""
    tensor, over = call.args[0], call.argument("dim")
    if not over:
        return call.empty((), call.argument("dtype") or tensor.dtype)
    if call.func._schema.name != "aten::_sparse_sum" or tensor.layout is not torch.sparse_coo:
        raise NotImplementedError
    over = {dim % tensor.dim() for dim in ([over] if isinstance(over, int) else over)}
    indices = tensor._indices()
    left = [dim for dim in range(indices.size(0)) if dim not in over]
    size = [tensor.size(dim) for dim in range(tensor.dim()) if dim not in over]
    new_elements = call.empty((indices.size(1), *size[len(left) :]), tensor.dtype)
    if not left:
        return call.empty(size, tensor.dtype)
    new_indices = call.empty((len(left), indices.size(1)), torch.int64)
    if (content := known_values(indices)) is not None:
        values.learn(new_indices, content[left].contiguous())
    summed = sparse_tensor(new_indices, new_elements, size)
    return coalesce(Call(call.mode, call.func, (summed,), {}, call.device))


@sparse_kernel("_sparse_sum_backward")
def sum_backward(call: Call) -> Any:
    """Each element's gradient is that of the row it was added to."""
    return _copied(call, call.args[1])


@sparse_kernel("_sparse_softmax", "_sparse_log_softmax")
def softmax(call: Call) -> Any:
    """Elements are sorted by the row that they belong to; each row has a maximum (SoftMax.cu, compute_pool_max)."""
    tensor, dim = call.args[0], call.args[1]
    if tensor.layout is not torch.sparse_coo:
        raise NotImplementedError
    if not tensor.is_coalesced():
        tensor = coalesce(Call(call.mode, call.func, (tensor,), {}, call.device))
    out = _copied(call, tensor)
    indices = tensor._indices()
    others = [d for d in range(indices.size(0)) if d != dim % tensor.dim()]
    if len(others) == indices.size(0):
        return out._coalesced_(True)
    n = indices.size(1)
    rows = distinct_columns(indices, math.prod(tensor.size(d) for d in others), others) if others else 1
    held = [call.empty((8 * n,), torch.uint8), call.empty((8 * n,), torch.uint8)]  # which row, and the order
    call.scratch(16 * n)
    held += [call.empty((4 * n,), torch.uint8), call.empty((4 * rows,), torch.uint8)]
    held.append(call.empty((rows, *tensor._values().shape[1:]), tensor.dtype))
    del held
    return out._coalesced_(True)


@sparse_kernel("_sparse_softmax_backward_data", "_sparse_log_softmax_backward_data")
def softmax_backward(call: Call) -> Any:
    return softmax(Call(call.mode, call.func, (call.args[1], call.args[2]), {}, call.device))


@sparse_kernel("t", "transpose", "transpose_", "permute")
def transpose(call: Call) -> Any:
    """Not a view: rows and columns of the indices change places in a copy."""
    tensor = call.args[0]
    if tensor.layout is not torch.sparse_coo or call.func._schema.name.endswith("_"):
        raise NotImplementedError
    order = list(range(tensor.dim()))
    if call.func._schema.name == "aten::permute":
        order = list(call.argument("dims"))
    else:
        first, second = (0, 1) if call.func._schema.name == "aten::t" else call.args[1:3]
        order[first], order[second] = order[second], order[first]
    if any(d >= tensor.sparse_dim() for i, d in enumerate(order) if i < tensor.sparse_dim()):
        raise NotImplementedError
    indices, elements = tensor._indices(), tensor._values()
    new_elements = call.empty(elements.size(), elements.dtype)
    new_indices = call.empty(indices.size(), indices.dtype)
    call.scratch(8 * indices.size(1))
    content = known_values(indices)
    if content is not None:
        values.learn(new_indices, content[order[: tensor.sparse_dim()]].contiguous())
    return sparse_tensor(new_indices, new_elements, [tensor.size(d) for d in order])


@sparse_kernel("_sparse_addmm", "_sparse_mm", "addmm", "mm", "addmv", "mv")
def product(call: Call) -> Any:
    """A sparse matrix times a dense one. cuSPARSE takes rows compressed to 32 bits, and a copy of the result."""
    operands = [a for a in call.args if isinstance(a, torch.Tensor)][-2:]
    sparse, dense = operands
    if sparse.layout not in (torch.sparse_coo, torch.sparse_csr) or dense.layout is not torch.strided:
        raise NotImplementedError
    out = call.empty((sparse.size(0), *dense.shape[1:]), dense.dtype)
    if sparse.layout is torch.sparse_coo and not sparse.is_coalesced():
        sparse = coalesce(Call(call.mode, call.func, (sparse,), {}, call.device))
    held = []
    if sparse.layout is torch.sparse_coo:
        n = sparse._indices().size(1)
        held.append(call.empty((sparse.size(0) + 1,), torch.int32))
        call.scratch(4 * n)
        held.append(call.empty((n,), torch.int32))
        held.append(call.empty(out.size(), out.dtype))
        call.scratch(3131)
    elif dense.dim() == 2:
        held.append(call.empty(out.size(), out.dtype))
        call.scratch(sparse.values().size(0) // 3 + 8)
    del held
    return out


def _copied(call: Call, tensor: torch.Tensor) -> torch.Tensor:
    parts = []
    for part in sparse_parts(tensor):
        copy = call.empty(part.size(), part.dtype)
        content = known_values(part)
        if content is not None and not part.dtype.is_floating_point:
            values.learn(copy, content.clone(memory_format=torch.contiguous_format))
        parts.append(copy)
    return rebuilt(tensor, parts)


def _joined(call: Call, tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    n = tensor._indices().size(1) + other._indices().size(1)
    indices = call.empty((tensor.sparse_dim(), n), torch.int64)
    both = [known_values(tensor._indices()), known_values(other._indices())]
    if both[0] is not None and both[1] is not None:
        values.learn(indices, torch.cat([both[0], both[1]], 1))
    elements = call.empty((n, *tensor._values().shape[1:]), tensor.dtype)
    return sparse_tensor(indices, elements, tensor.shape)
