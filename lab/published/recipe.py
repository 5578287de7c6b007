"""What is run to predict a published row."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Recipe:
    """A program on one rank of a world of cards."""

    program: str
    arguments: list[str]
    gpu: str
    cards: int
    """In the whole world."""
    cards_per_node: int
    ranks: tuple[int, ...]
    """The largest of these is compared."""
    card_changes: dict[str, float] = field(default_factory=dict)
    """Figures of the card that differ from the catalogue's."""
    environment: dict[str, str] = field(default_factory=dict)
    steps: int = 3
    assumed: str = ""
    """What the source does not state."""
    python_path: tuple[str, ...] = ()
    """Checkouts of packages that the program imports."""
    further_passes: int = 0
    """Microbatches of a step beyond those that are run; each takes as long as the second."""


class NoRecipe(Exception):
    """Why a drawn row cannot be run."""
