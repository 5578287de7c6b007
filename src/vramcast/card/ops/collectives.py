"""Collectives of torch.distributed: nothing is moved, and every rank holds what this one holds.

Each op gives what its schema says (the tensors, the work), with a future that carries the tensors as NCCL's does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from vramcast.allocator.card_streams import without_card
from vramcast.base.torch_versions import NCCL_HOLDS_TENSORS
from vramcast.card.device.installed_torch import INSTALLED
from vramcast.card.device.one_card import CARD
from vramcast.card.dispatch.storages import GPU, block_of, known_values
from vramcast.card.ops.registry import Call, kernel
from vramcast.card.values import known_values as values


def _answer(call: Call, result: Any) -> Any:
    """What the op returns: nothing, the work, or the first argument and the work."""
    if call.device == GPU:
        _use(call, _group(call))
    returns = len(call.func._schema.returns)
    if returns == 0:
        return None
    future: Any = torch.futures.Future()
    future.set_result(_flat(result))
    c10d: Any = torch._C._distributed_c10d
    work = c10d._create_work_from_future(future).boxed()
    return work if returns == 1 else (result, work)


def _use(call: Call, group: Any, *, is_functional: bool = False) -> None:
    """NCCL has a communicator for the group from now on, and it takes time."""
    op = call.func._schema.name.rpartition("::")[2]
    machine = call.mode.machine
    if _is_nccl(group):
        machine.kept_sums.begin_collective(group.group_name, is_broadcast=op == "broadcast_")
    ranks = functools.partial(torch.distributed.get_process_group_ranks, group)
    known = machine.communicators.note(group.group_name, op, ranks, CARD.count)
    kind = next((kind for name, kind in _KINDS.items() if op.startswith(name)), None)
    if kind is None or known.size == 1:
        return
    size = max(_bytes(value) for value in (*call.args[:2], []))
    if is_functional and kind == "all_gather":
        size *= known.size
    # NCCL's own stream runs what the program waits for later: functional collectives, DDP's sums, what is sent on.
    beside = is_functional or (without_card(machine.ledger.stream) == 0 and (kind == "send" or op == "allreduce_"))
    queue = "own" if beside else "here"
    machine.op_log.communicate(f"{kind} {size} {known.size} {known.nodes} {queue}")


_KINDS = {
    "allreduce": "all_reduce", "all_reduce": "all_reduce", "allgather": "all_gather", "_allgather": "all_gather",
    "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "_reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "all_to_all": "all_to_all", "shard_dim_alltoall": "all_to_all", "broadcast": "broadcast",
    "reduce_": "reduce", "gather_": "gather", "scatter_": "scatter", "send": "send", "recv": "recv",
}  # fmt: skip
"""How the names of ops begin, the longer first; and the collective that they are."""


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(_bytes, value)) if isinstance(value, (list, tuple)) else 0


def _flat(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [tensor for item in result for tensor in _flat(item)]


def _group(call: Call) -> Any:
    return torch.distributed.ProcessGroup.unbox(call.argument("process_group"))


def _reduction(call: Call) -> Callable[[torch.Tensor, int], torch.Tensor | None]:
    """What becomes of a tensor that all of these ranks hold alike."""
    reduce_op = call.argument("reduce_op")
    if not reduce_op._has_method("op"):  # an older torch does not tell
        return lambda content, size: None
    kind = reduce_op.op()
    if kind == torch.distributed.ReduceOp.SUM:
        return lambda content, size: content * size
    if kind == torch.distributed.ReduceOp.PRODUCT:
        return lambda content, size: content**size
    return lambda content, size: content


def _content(tensor: torch.Tensor) -> torch.Tensor | None:
    return known_values(tensor) if tensor.is_meta else tensor


def _write(tensor: torch.Tensor, content: torch.Tensor | None) -> None:
    """Give a tensor this content, or none that is known."""
    with torch.utils._python_dispatch._disable_current_modes():
        if not tensor.is_meta:
            if content is not None:
                tensor.copy_(content.reshape(tensor.shape))
            return
        held = known_values(tensor)
        if content is None:
            values.forget(tensor)
        elif held is not None:
            held.copy_(content.reshape(tensor.shape))
        elif values.small(tensor) and tensor.is_contiguous():
            values.learn(tensor, content.reshape(tensor.shape).to(tensor.dtype, copy=True))


@kernel("c10d::broadcast_", "c10d::barrier", "c10d::monitored_barrier_", "c10d::gather_", "c10d::scatter_")
def unchanged(call: Call) -> Any:
    return _answer(call, call.args[0])


@kernel("c10d::send")
def send(call: Call) -> Any:
    return _answer(call, [])


@kernel("c10d::recv_", "c10d::recv_any_source_", "c10d::alltoall_")
def received(call: Call) -> Any:
    for tensor in _flat(call.args[0]):
        if tensor.is_meta:
            values.forget(tensor)
    return _answer(call, call.args[0] if len(call.func._schema.returns) == 2 else [])


@kernel("c10d::allreduce_", "c10d::allreduce_coalesced_", "c10d::reduce_")
def all_reduce(call: Call) -> Any:
    reduce, size = _reduction(call), _group(call).size()
    for tensor in call.args[0]:
        content = _content(tensor)
        if content is not None and values.small(tensor):
            _write(tensor, reduce(content, size))
    if call.device == GPU and call.mode.machine.engine_is_running():
        return _sum_of_ddp(call)
    return _answer(call, call.args[0])


def _sum_of_ddp(call: Call) -> Any:
    """DDP's sums, which its reducer starts from the backward pass. It waits for their futures and never for the work
    itself."""
    group = _group(call)
    answer = _answer(call, call.args[0])
    if _is_nccl(group):
        blocks = [block_of(tensor) for tensor in call.args[0]]
        call.mode.machine.kept_sums.add(
            group.group_name, [block.block_id for block in blocks if block is not None and block.block_id >= 0]
        )
    return answer


def _is_nccl(group: Any) -> bool:
    """Whether it is NCCL's, of a version that keeps tensors itself."""
    known: Any = torch.distributed.distributed_c10d._world.pg_map.get(group)
    return INSTALLED >= NCCL_HOLDS_TENSORS and known is not None and "nccl" in known[0]


@kernel("c10d::allgather_", "c10d::allgather_coalesced_")
def all_gather(call: Call) -> Any:
    outputs, inputs = call.args[0], call.args[1]
    for given, source in zip(outputs, inputs, strict=False):
        for tensor in given:
            _write(tensor, _content(source))
    return _answer(call, outputs)


@kernel("c10d::_allgather_base_", "c10d::allgather_into_tensor_coalesced_")
def all_gather_into_tensor(call: Call) -> Any:
    outputs, inputs, size = _flat(call.args[0]), _flat(call.args[1]), _group(call).size()
    for output, source in zip(outputs, inputs, strict=True):
        content = _content(source) if values.small(output) else None
        _write(output, None if content is None else content.flatten().repeat(size))
    return _answer(call, call.args[0])


@kernel("c10d::_reduce_scatter_base_", "c10d::reduce_scatter_tensor_coalesced_", "c10d::reduce_scatter_")
def reduce_scatter(call: Call) -> Any:
    outputs, inputs, group = _flat(call.args[0]), call.args[1], _group(call)
    reduce, size, rank = _reduction(call), group.size(), group.rank()
    for output, source in zip(outputs, [inputs] if isinstance(inputs, torch.Tensor) else inputs, strict=True):
        mine = source.flatten().chunk(size)[rank] if isinstance(source, torch.Tensor) else source[rank]
        content = _content(mine) if values.small(output) else None
        _write(output, None if content is None else reduce(content, size))
    return _answer(call, call.args[0])


@kernel("c10d::alltoall_base_")
def all_to_all(call: Call) -> Any:
    """Each rank sends what this one would send to itself."""
    output, source, group = call.args[0], call.args[1], _group(call)
    splits = call.argument("input_split_sizes")
    content = _content(source) if values.small(output) else None
    if content is not None:
        parts = content.split(list(splits)) if splits else content.chunk(group.size())
        content = torch.cat([parts[group.rank()]] * group.size()) if content.numel() else None
    fits = content is not None and content.numel() == output.numel()
    _write(output, content if fits else None)
    return _answer(call, output)


@kernel(
    "_c10d_functional::all_reduce", "_c10d_functional::all_reduce_coalesced", "_c10d_functional::broadcast",
    "_c10d_functional::all_gather_into_tensor", "_c10d_functional::all_gather_into_tensor_coalesced",
    "_c10d_functional::reduce_scatter_tensor", "_c10d_functional::reduce_scatter_tensor_coalesced",
    "_c10d_functional::all_to_all_single", "_dtensor::shard_dim_alltoall",
)  # fmt: skip
def functional(call: Call) -> Any:
    """Collectives that make their result: the op itself would need the group's data."""
    if not any(tensor.is_meta for tensor in _flat(call.args[0])):
        return call.func(*call.args, **call.kwargs)
    if call.device == GPU:
        c10d: Any = torch.distributed.distributed_c10d
        _use(call, c10d._resolve_process_group(call.argument("group_name")), is_functional=True)
    out = call.mode.calls.run(call.func, call.args, call.kwargs, call.known)
    call.mode.adopt(out, call.device)
    return out


@kernel("_c10d_functional::_wrap_tensor_autograd")
def wrap_tensor(call: Call) -> Any:
    """The tensor itself, in a subclass that waits for it; torch's rule for tensors without data would copy it."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    return AsyncCollectiveTensor(call.args[0])


@kernel("_c10d_functional::wait_tensor")
def wait_tensor(call: Call) -> Any:
    return call.args[0]
