"""What NCCL takes for itself on the card, beside PyTorch's allocator: an interval, for nobody states it exactly.

Buffers are made for each communicator (a process group that has run a collective), channel and peer when they are first
needed. How many channels there are depends on the machine's links, so the interval is between few and many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

MIB = 1 << 20

RECEIVE_BYTES = 10 * MIB
"""By channel and peer: LL 0.5, LL128 4.69 and Simple 4 MiB, in granules of 2 MiB (NCCL 2.30, src/transport/p2p.cc)."""
SEND_BYTES = 2 * MIB
"""By channel and peer (the same)."""
FEWEST_CHANNELS, MOST_CHANNELS = 8, 32
"""Users' reports fit between: 544 MB for 2 and 688 MB for more A100s (NVIDIA/nccl#964)."""
RING_PEERS, TREE_PEERS = 1, 2
"""How many ranks a rank receives from on each channel: its neighbour in a ring; with trees, others too."""
NVLS_BYTES_PER_RANK = 32 * MIB
"""NVLink SHARP, on a node with a switch: 16 channels x 2 x 1 MiB for each rank of it (src/transport/nvls.cc)."""
NETWORK_BYTES = 512 * MIB
"""64 channels x 16 slots x 512 KiB (NVIDIA/nccl#2363)."""
POINT_TO_POINT = ("send", "recv", "alltoall", "all_to_all", "gather_", "scatter_")
"""Ops that connect each pair of ranks: 4.34 instead of 1.06 GB with all-to-all on 8 H100s (NVIDIA/nccl#1685)."""
MOST_PEERS = 64


@dataclass(slots=True)
class Communicator:
    """A group that has run collectives."""

    size: int
    nodes: int
    ops: set[str] = field(default_factory=set)

    @property
    def pairs(self) -> bool:
        return any(op.startswith(name) for op in self.ops for name in POINT_TO_POINT)

    @property
    def least_bytes(self) -> int:
        return 0 if self.size == 1 else FEWEST_CHANNELS * RING_PEERS * (RECEIVE_BYTES + SEND_BYTES)

    @property
    def most_bytes(self) -> int:
        if self.size == 1:
            return 0
        most = MOST_CHANNELS * min(TREE_PEERS, self.size - 1) * (RECEIVE_BYTES + SEND_BYTES)
        here = self.size // self.nodes
        if here > 2:
            most += NVLS_BYTES_PER_RANK * here
        if self.nodes > 1:
            most += NETWORK_BYTES
        if self.pairs:
            most += min(self.size - 1, MOST_PEERS) * MOST_CHANNELS * (RECEIVE_BYTES + SEND_BYTES)
        return most


class Communicators:
    """The communicators of a process, by the name of their group."""

    def __init__(self) -> None:
        self.by_name: dict[str, Communicator] = {}

    def note(self, name: str, op: str, ranks: Callable[[], list[int]], per_node: int) -> Communicator:
        """An op has run on a group; `ranks` are asked for once."""
        known = self.by_name.get(name)
        if known is None:
            members = ranks()
            nodes = len({rank // per_node for rank in members})
            known = self.by_name[name] = Communicator(len(members), nodes)
        known.ops.add(op)
        return known

    def interval(self) -> tuple[int, int]:
        """The least and the most bytes they take."""
        used = self.by_name.values()
        return sum(communicator.least_bytes for communicator in used), sum(
            communicator.most_bytes for communicator in used
        )

    def in_words(self) -> str | None:
        """For the report; None where NCCL is not used."""
        least, most = self.interval()
        if not most:
            return None
        count = sum(communicator.size > 1 for communicator in self.by_name.values())
        groups = "1 communicator" if count == 1 else f"{count} communicators"
        return (
            f"its buffers for {groups} take {least / (1 << 30):.1f} to {most / (1 << 30):.1f} GiB more on the card, "
            "outside PyTorch's allocator; they are not in the figures (from NCCL's source and users' reports, not "
            "measured)"
        )
