"""torch.distributed on the virtual card: one rank of a world of any size, without a network and without NCCL.

PyTorch's own code runs (DDP, FSDP, DTensor, pipelining) over torch's fake process group, which moves nothing. What the
other ranks would say is taken to be what this one says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vramcast.card.device.machine import Machine
    from vramcast.card.device.patches import Patches


def install(put: Patches, machine: Machine) -> None:
    from vramcast.card.distributed import data_parallel, dtensor, object_collectives, process_group, processes

    processes.install(put, machine)
    data_parallel.install(put, machine)
    if torch.distributed.is_available():
        process_group.install(put, machine)
        object_collectives.install(put)
        dtensor.install(put, machine)
