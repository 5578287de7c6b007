"""Process groups of any size that move nothing: torch's fake backend under the name that the program asks for."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import torch

from vramcast.card.distributed.world import World, world_in_environment

if TYPE_CHECKING:
    from vramcast.card.device.machine import Machine
    from vramcast.card.device.patches import Patches

_TIMEOUT = timedelta(minutes=30)


def _assumed(rank: int, size: int) -> str:
    return (
        f"rank {rank} of {size}; nothing is sent, and the other ranks are taken to say what this one says, and to be "
        "as fast. Collectives take the time of the card's links and of the network that its machines usually have"
    )


def install(put: Patches, machine: Machine) -> None:
    c10d = torch.distributed.distributed_c10d
    init = _initializer(torch.distributed.init_process_group, machine, put)
    put.everywhere("init_process_group", torch.distributed.init_process_group, init)
    make = _maker(c10d._new_process_group_helper)
    put.everywhere("_new_process_group_helper", c10d._new_process_group_helper, make)
    split = _splitter(c10d)
    if hasattr(c10d, "split_group"):
        put.everywhere("split_group", c10d.split_group, split)
    put.everywhere("is_nccl_available", torch.distributed.is_nccl_available, lambda: True)
    put.everywhere("barrier", torch.distributed.barrier, _barrier(machine))
    put.everywhere("monitored_barrier", torch.distributed.monitored_barrier, lambda *args, **kwargs: None)
    utils = importlib.import_module("torch.distributed.utils")
    check = getattr(utils, "_verify_param_shape_across_processes", None)
    if check is not None:
        put.everywhere("_verify_param_shape_across_processes", check, lambda *args, **kwargs: True)
    put.set(torch.distributed, "_verify_params_across_processes", lambda *args, **kwargs: None)
    # DDP's record of how long its steps take: it warns where a tensor is neither the CPU's nor CUDA's.
    in_cpp: Any = torch._C._distributed_c10d
    put.set(in_cpp.Logger, "set_runtime_stats_and_log", lambda logger: None)


def _initializer(original: Callable[..., Any], machine: Machine, put: Patches) -> Callable[..., Any]:
    names = inspect.signature(original)

    c10d: Any = torch.distributed

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        asked = names.bind(*args, **kwargs).arguments
        world = _world(asked)
        # The first use of the fake backend registers it.
        from torch.testing._internal.distributed import fake_pg  # noqa: F401

        original(
            backend=asked.get("backend") or "cpu:gloo,cuda:nccl",
            store=c10d.HashStore(),
            rank=world.rank,
            world_size=world.size,
            timeout=asked.get("timeout") or _TIMEOUT,
        )
        _skip_checks_between_ranks(put)
        if world.size > 1:
            machine.note("distributed", _assumed(world.rank, world.size))

    return init_process_group


_CHECKS_BETWEEN_RANKS = (("deepspeed.runtime.zero.utils", "assert_ints_same_as_other_ranks"),)
"""Functions of libraries that compare what ranks hold with what rank 0 sends, which is not sent here."""


def _skip_checks_between_ranks(put: Patches) -> None:
    for module, name in _CHECKS_BETWEEN_RANKS:
        check = getattr(sys.modules.get(module), name, None)
        if check is not None:
            put.everywhere(name, check, lambda *args, **kwargs: None)


def _world(asked: dict[str, Any]) -> World:
    """The rank and size that the program states, or its environment."""
    from_environment = world_in_environment()
    rank, size = asked.get("rank", -1), asked.get("world_size", -1)
    url = urlsplit(str(asked.get("init_method") or "env://"))
    query = parse_qs(url.query)
    rank = int(query.get("rank", [rank])[0]) if rank in (-1, None) else rank
    size = int(query.get("world_size", [size])[0]) if size in (-1, None) else size
    return World(
        from_environment.rank if rank in (-1, None) else rank, from_environment.size if size in (-1, None) else size
    )


def _maker(original: Callable[..., Any]) -> Callable[..., Any]:
    """Every group is made of the fake backend, and goes by the name of the one that was asked for."""
    names = inspect.signature(original)

    def _new_process_group_helper(*args: Any, **kwargs: Any) -> Any:
        asked = names.bind(*args, **kwargs).arguments
        backend = asked["backend"]
        asked["backend"] = "fake"
        for name in ("backend_options", "pg_options", "device_id"):
            asked.pop(name, None)
        group, store = original(**asked)
        maps = torch.distributed.distributed_c10d._world.pg_map
        if group in maps:
            maps[group] = (backend, store)
        return group, store

    return _new_process_group_helper


def _barrier(machine: Machine) -> Callable[..., Any]:
    """All ranks are there already; the host only waits for its stream."""

    def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        machine.ledger.wait_for_stream()
        if not async_op:
            return None
        future: Any = torch.futures.Future()
        future.set_result([])
        c10d: Any = torch._C._distributed_c10d
        return c10d._create_work_from_future(future)

    return barrier


def _splitter(c10d: Any) -> Callable[..., Any]:
    """ncclCommSplit: the part of a group that this rank is in, as a group of its own."""

    def split_group(parent_pg: Any = None, split_ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        parent = parent_pg or c10d._get_default_group()
        members = c10d.get_process_group_ranks(parent)
        mine = c10d.get_rank()
        for part in split_ranks or []:
            ranks = [members[place] for place in part]
            if mine in ranks:
                return c10d.new_group(ranks, group_desc=kwargs.get("group_desc"))
        return None

    return split_group
