"""Several jobs, or variants of one, against one card: what each takes at its peak, part by part."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.memory.account import Account
from vramcast.memory.parameters import ParameterNode
from vramcast.memory.prediction import Prediction
from vramcast.trace.schema import KINDS

OPTIMIZER = "optimizer"

COLUMNS: dict[str, tuple[str, ...]] = {
    "weights": ("weights", "buffers", "autocast copies"),
    "gradients": ("gradients",),
    "optimizer": ("optimizer state",),
    "activations": ("saved activations", "temporaries", "inputs", "outputs/other"),
}
"""Parts of the account that are shown together; all others are `other`. Temporaries of the optimizer's step are the
optimizer's."""
_ACTIVATIONS = tuple(KINDS.index(kind) for kind in COLUMNS["activations"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str
    prediction: Prediction | None
    """None where it could not be predicted."""
    parameters: ParameterNode | None = None
    problem: str = ""
    """Why it could not be predicted."""

    def part_bytes(self) -> dict[str, int]:
        """Bytes by COLUMNS and `other`, at the peak; they sum to what it takes on the device."""
        assert self.prediction is not None
        return _grouped(self.prediction.account)

    @property
    def most_activations_bytes(self) -> int:
        """At their highest in the forward and backward passes, which need not be where the whole is."""
        assert self.prediction is not None
        points = (point for point in self.prediction.account.timeline if point.phase != OPTIMIZER)
        return max((sum(point.by_kind_bytes[kind] for kind in _ACTIVATIONS) for point in points), default=0)


def _grouped(account: Account) -> dict[str, int]:
    grouped = {column: sum(account.part(name) for name in names) for column, names in COLUMNS.items()}
    if account.moment.phase == OPTIMIZER:
        temporary = account.part("temporaries")
        grouped["activations"] -= temporary
        grouped["optimizer"] += temporary
    return grouped | {"other": account.device_bytes - sum(grouped.values())}


@dataclass(frozen=True, slots=True)
class Scenarios:
    rows: tuple[Scenario, ...]
    card: str
    available_bytes: int
    is_free: bool
    """What is free on a card here, rather than what a named one has."""
