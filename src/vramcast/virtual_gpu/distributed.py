"""torch.distributed on one card: a world of one, without a network and without NCCL."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from vramcast.errors import CannotPredict

if TYPE_CHECKING:
    from vramcast.virtual_gpu.machine import Machine
    from vramcast.virtual_gpu.patches import Patches


def install(put: Patches, machine: Machine) -> None:
    import torch.multiprocessing
    import torch.nn.parallel.comm

    for name in ("spawn", "start_processes"):
        put.set(torch.multiprocessing, name, _in_this_process(getattr(torch.multiprocessing, name)))
    put.set(torch.nn.parallel.comm, "scatter", _scatter)
    if torch.distributed.is_available():
        _install_collectives()
        start = _starter(torch.distributed.init_process_group)
        put.everywhere("init_process_group", torch.distributed.init_process_group, start)
        put.set(torch.distributed, "is_nccl_available", lambda: True)
        put.set(torch.distributed, "_verify_params_across_processes", lambda *args, **kwargs: None)
        parallel = torch.nn.parallel.DistributedDataParallel
        put.set(parallel, "__init__", _with_hook(parallel.__init__, parallel.register_comm_hook))
        put.set(parallel, "register_comm_hook", lambda *args, **kwargs: None)


_collectives: list[Any] = []


def _install_collectives() -> None:
    """Kernels for tensors without data, which torch has itself since 2.11: in a world of one nothing is moved."""
    if _collectives or torch._C._dispatch_has_kernel_for_dispatch_key("c10d::broadcast_", "Meta"):
        return
    library = torch.library.Library("c10d", "IMPL")
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("c10d::"):
            returns = len(getattr(torch.ops.c10d, name.removeprefix("c10d::")).default._schema.returns)
            library.impl(name.removeprefix("c10d::"), _collective(returns), "Meta")
    _collectives.append(library)


def _collective(returns: int) -> Callable[..., Any]:
    """Returns what the schema says: nothing, the work, or the first argument and the work."""

    def run(first: Any, *rest: Any) -> Any:
        if returns == 0:
            return None
        group: Any = torch.distributed.distributed_c10d._get_default_group()
        work = group._get_backend(torch.device("cuda")).barrier().boxed()
        return work if returns == 1 else (first, work)

    return run


def _starter(original: Callable[..., Any]) -> Callable[..., Any]:
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        import os

        from torch.testing._internal.distributed.fake_pg import FakeStore

        size = kwargs.get("world_size", -1)
        if size in (-1, None):
            size = int(os.environ.get("WORLD_SIZE", "1"))
        if size != 1:
            raise CannotPredict(
                f"the program wants {size} processes; a virtual GPU is one card in one process. Set WORLD_SIZE=1 "
                "(and RANK=0, LOCAL_RANK=0) to predict what one of them takes without its share of a larger world."
            )
        original(backend="fake", store=FakeStore(), rank=0, world_size=1)

    return init_process_group


def _with_hook(original: Callable[..., None], register: Callable[..., None]) -> Callable[..., None]:
    """DistributedDataParallel whose gradient buckets are summed over a world of one: nothing to do."""

    def summed(state: Any, bucket: Any) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    bucket_type: Any = vars(torch.distributed)["GradBucket"]  # torch checks the annotations
    summed.__annotations__ = {"bucket": bucket_type, "return": torch.futures.Future[torch.Tensor]}

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        register(self, None, summed)

    return __init__


def _scatter(
    tensor: torch.Tensor, devices: Any = None, chunk_sizes: Any = None, dim: int = 0, streams: Any = None, **_: Any
) -> tuple[torch.Tensor, ...]:
    """What DataParallel does with a batch: on one card it goes there whole, from the host on a stream of its own."""
    if tensor.is_cuda:
        return (tensor.view_as(tensor),)
    with streams[0] if streams and streams[0] is not None else nullcontext():
        return (tensor.to("cuda", non_blocking=True),)


def _in_this_process(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch.multiprocessing.spawn: one process that is waited for is this one."""

    def spawn(
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        *rest: Any,
        **options: Any,
    ) -> Any:
        if nprocs != 1:
            raise CannotPredict(f"the program starts {nprocs} processes; a virtual GPU is one card in one process")
        if not join:
            return original(fn, args, nprocs, join, *rest, **options)
        fn(0, *args)
        return None

    return spawn
