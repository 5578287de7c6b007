"""The tables that only a job has, as plain rows: parameters, activations by stage, and cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

from vramcast.base.units import GIB, MIB
from vramcast.memory.cards import CardFit
from vramcast.memory.parameters import ParameterNode
from vramcast.memory.stages import ROLES, Stage
from vramcast.report.folded_tree import Branch, Row, Values, rows

_MOST_ROWS = 14
_MOST_CARDS = 8
_STAYS = (0, *range(3, 3 + 2 * len(ROLES), 2))


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit for a whole table, so that its figures can be compared."""

    name: str
    size_bytes: int

    @classmethod
    def for_size(cls, largest_bytes: int) -> Unit:
        return cls("GiB", GIB) if largest_bytes >= GIB else cls("MiB", MIB)

    def text(self, size_bytes: int) -> str:
        return f"{size_bytes / self.size_bytes:.2f}" if size_bytes else "–"


def parameter_rows(root: ParameterNode) -> list[Row]:
    """count, weights, gradients, optimizer state; components first, then their modules."""
    return rows(_parameters(root), _sums, lambda values: values[0], most=_MOST_ROWS, depth=5, every_first=True)


def stage_rows(root: Stage) -> list[Row]:
    """stays, inside a checkpointed block, for a moment; then by ROLES what stays and what is inside. Of equal modules
    what stays is added up, the others are not."""
    return rows(_stages(root), _sum_then_largest, lambda values: max(values[:3]), most=_MOST_ROWS, depth=7)


_ROLE_HEADINGS = {"base": "base", "qkv": "QKV", "attention": "attn", "ffn": "FFN", "warp": "warp"}


@dataclass(frozen=True, slots=True)
class StageLine:
    row: Row
    sizes: tuple[int, ...]
    """One for each of `StageTable.sizes`."""
    roles: tuple[int, ...]
    """One for each of `StageTable.roles`: what stays and what one checkpointed block makes again."""


@dataclass(frozen=True, slots=True)
class StageTable:
    """Activations by stage: which columns there are, and the figures in them."""

    unit: Unit
    sizes: tuple[str, ...]
    """Headings: what stays, what is in one checkpointed block (where there are any), what is there for a moment."""
    roles: tuple[str, ...]
    """Headings; none where all of it has one role."""
    lines: tuple[StageLine, ...]


def stage_columns(root: Stage) -> StageTable:
    unit = Unit.for_size(max(root.stays_bytes, root.momentary_bytes))
    has_size = (True, root.inside_bytes > 0, True)
    has_role = [len(root.roles) > 1 and (role != "warp" or role in root.roles) for role in ROLES]
    lines = []
    for row in stage_rows(root):
        pairs = row.values[3:]
        by_role = [stays + inside for stays, inside in zip(pairs[::2], pairs[1::2], strict=True)]
        lines.append(StageLine(row, tuple(compress(row.values, has_size)), tuple(compress(by_role, has_role))))
    headings = (f"stay, {unit.name}", "in one block", "for a moment")
    roles = tuple(_ROLE_HEADINGS[role] for role in compress(ROLES, has_role))
    return StageTable(unit, tuple(compress(headings, has_size)), roles, tuple(lines))


def _parameters(node: ParameterNode) -> Branch:
    values = (node.count, node.weights_bytes, node.gradients_bytes, node.optimizer_bytes)
    return Branch(node.name.rpartition(".")[2], node.name, values, tuple(_parameters(child) for child in node.children))


def _stages(node: Stage) -> Branch:
    by_role = [node.roles.get(role) for role in ROLES]
    roles = [size for part in by_role for size in ((part.stays_bytes, part.inside_bytes) if part else (0, 0))]
    values = (node.stays_bytes, node.inside_bytes, node.momentary_bytes, *roles)
    return Branch(node.name.rpartition(".")[2], node.name, values, tuple(_stages(child) for child in node.children))


def _sums(figures: Sequence[Values]) -> Values:
    return tuple(sum(column) for column in zip(*figures, strict=True))


def _sum_then_largest(figures: Sequence[Values]) -> Values:
    """What stays adds up over the layers; what is there for a moment is there for one layer after the other."""
    columns = enumerate(zip(*figures, strict=True))
    return tuple(sum(column) if place in _STAYS else max(column) for place, column in columns)


@dataclass(frozen=True, slots=True)
class CardRows:
    shown: tuple[CardFit, ...]
    """The smallest that hold it."""
    n_fitting: int
    n_known: int
    largest: CardFit
    """The largest of all known cards."""


def card_rows(cards: Sequence[CardFit]) -> CardRows:
    fitting = sorted((card for card in cards if card.fits), key=lambda card: (card.limit_bytes, card.gpu.id))
    return CardRows(
        shown=tuple(fitting[:_MOST_CARDS]),
        n_fitting=len(fitting),
        n_known=len(cards),
        largest=max(cards, key=lambda card: card.limit_bytes),
    )


def shape_text(path: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    shape = shapes.get(path)
    return "" if shape is None else " × ".join(str(dimension) for dimension in shape)
