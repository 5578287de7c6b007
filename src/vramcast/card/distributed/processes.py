"""torch.multiprocessing.spawn: of the processes that a program starts for its ranks, this process is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vramcast.card.distributed.world import World, world_in_environment

if TYPE_CHECKING:
    from vramcast.card.device.machine import Machine
    from vramcast.card.device.patches import Patches


def install(put: Patches, machine: Machine) -> None:
    import torch.multiprocessing

    for name in ("spawn", "start_processes"):
        put.set(torch.multiprocessing, name, _in_this_process(getattr(torch.multiprocessing, name), machine))


def _in_this_process(original: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
    def spawn(
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        *rest: Any,
        **options: Any,
    ) -> Any:
        if not join:
            return original(fn, args, nprocs, join, *rest, **options)
        rank = world_in_environment().rank
        chosen = World(rank if rank < nprocs else 0, nprocs).rank
        if nprocs > 1:
            machine.note("distributed", f"of the {nprocs} processes that the program starts, number {chosen} is run")
        fn(chosen, *args)
        return None

    return spawn
