"""What a command starts: one Python program, how many processes of it, and the variables in their environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    target: str
    """A script's path, or a module's dotted name."""
    is_module: bool = False
    arguments: tuple[str, ...] = ()
    folder: str = ""
    """Where it is started, where that is not here."""
    launcher: str = "python"
    """As a user would name it: python, torchrun, accelerate launch, deepspeed, fabric run."""
    processes: int = 1
    """On each node."""
    nodes: int = 1
    node_rank: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    """What the launcher sets for all its processes alike."""
    removed: tuple[str, ...] = ()
    """Variables that are taken out of the environment."""
    rank_variables: tuple[str, ...] = ()
    local_rank_variables: tuple[str, ...] = ()
    node_rank_variables: tuple[str, ...] = ()
    """What holds the rank of a process in the world, on its node, and the rank of the node."""
    local_rank_option: str = ""
    """Put before the program's own arguments, followed by = and the rank on the node."""
    notes: tuple[str, ...] = ()
    """What the reader of a prediction should know of the way it is started."""

    @property
    def world_size(self) -> int:
        return self.processes * self.nodes

    def environment_of(self, rank: int = 0) -> dict[str, str]:
        """What the launcher sets for the process of that rank."""
        node, local = divmod(rank, self.processes)
        return {
            **self.environment,
            **dict.fromkeys(self.rank_variables, str(rank)),
            **dict.fromkeys(self.local_rank_variables, str(local)),
            **dict.fromkeys(self.node_rank_variables, str(node)),
        }

    def arguments_of(self, rank: int = 0) -> list[str]:
        """What the program finds after its name in sys.argv."""
        first = [f"{self.local_rank_option}={rank % self.processes}"] if self.local_rank_option else []
        return [*first, *self.arguments]
