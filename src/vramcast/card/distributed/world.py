"""Which of how many processes the virtual card plays."""

from __future__ import annotations

import os
from dataclasses import dataclass

from vramcast.base.errors import UsageError

LARGEST_WORLD = 1 << 20

USUAL_CARDS_PER_NODE = 8
"""Where the environment tells the size of the world and not that of a node."""


@dataclass(frozen=True, slots=True)
class World:
    """One process of a job, as a launcher describes it in the environment."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    """Processes on a node, each with a card of its own."""

    def __post_init__(self) -> None:
        if not 1 <= self.size <= LARGEST_WORLD:
            raise UsageError(f"a world has 1 to {LARGEST_WORLD:,} processes, not {self.size:,}")
        if not 0 <= self.rank < self.size:
            raise UsageError(f"rank {self.rank} is not in a world of {self.size} (0 to {self.size - 1})")

    @staticmethod
    def on_nodes(rank: int, per_node: int, nodes: int = 1) -> World:
        """A rank of `nodes` machines with `per_node` cards each."""
        return World(rank, per_node * nodes, rank % per_node, per_node)

    def environment(self) -> dict[str, str]:
        """What `torchrun` sets for this process."""
        node = self.rank // self.local_size
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "GROUP_RANK": str(node),
            "NODE_RANK": str(node),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
        }


def world_in_environment() -> World:
    """What RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE say; a world of one where they say nothing."""
    size = _number("WORLD_SIZE", 1)
    rank = _number("RANK", 0)
    local_rank = _number("LOCAL_RANK", 0)
    local_size = _number("LOCAL_WORLD_SIZE", min(size, USUAL_CARDS_PER_NODE))
    return World(rank, size, local_rank, max(local_size, local_rank + 1))


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"the environment variable {name} is {text!r}, not a number") from None
