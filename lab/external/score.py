"""Score predictions of published rows: one fitted constant a group, then errors by card and by kind of row."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.comparing.errors import ErrorSummary, summarize
from lab.external.evaluate import MISMATCH, Predicted
from lab.external.rows import CNN, MLP, TIMM, TRANSFORMER, XMEM, Row

MLP_TRUSTED_MIB = 2048
"""Below this a published MLP figure is mostly the constant."""


@dataclass(frozen=True)
class Scored:
    """A row with its error once the constant of its group is known."""

    predicted: Predicted
    constant_mib: float

    @property
    def row(self) -> Row:
        return self.predicted.row

    @property
    def difference_mib(self) -> float:
        return self.predicted.reserved_mib + self.constant_mib - self.row.measured_mib

    @property
    def total_error(self) -> float:
        """Relative error of the published figure."""
        return self.difference_mib / self.row.measured_mib

    @property
    def net_error(self) -> float:
        """Relative error of what remains of it without the constant."""
        return self.difference_mib / max(1.0, self.row.measured_mib - self.constant_mib)

    @property
    def flagged(self) -> bool:
        return self.row.source == TIMM and self.row.notes().get("flag") != "ok"

    @property
    def convolution(self) -> bool:
        return self.predicted.convolution

    @property
    def trusted(self) -> bool:
        """Rated by the collection's notes as good enough to judge errors of 1 to 3 %."""
        if self.row.source == MLP:
            return self.row.measured_mib > MLP_TRUSTED_MIB
        return not self.convolution and not self.flagged


@dataclass(frozen=True)
class Group:
    """The two errors of some of the rows."""

    name: str
    total: ErrorSummary
    net: ErrorSummary


@dataclass(frozen=True)
class Evaluation:
    scored: tuple[Scored, ...]
    constants_mib: dict[str, float]
    unanswered: tuple[Predicted, ...]
    mismatched: int
    versions: dict[str, str]

    def group(self, name: str, choose: Callable[[Scored], bool]) -> Group:
        mine = [s for s in self.scored if choose(s)]
        return Group(name, summarize(s.total_error for s in mine), summarize(s.net_error for s in mine))

    def by_card(self) -> list[Group]:
        groups = []
        for card in sorted({s.row.gpu for s in self.scored}):
            groups.append(self.group(f"{card}, all rows", lambda s, card=card: s.row.gpu == card))  # type: ignore[misc]
            for source in (TRANSFORMER, MLP, CNN, TIMM, XMEM):
                for kind, heavy in (("", False), (", convolutions", True)):
                    group = self.group(
                        f"{card}, {SOURCE_NAMES[source]}{kind}",
                        lambda s, c=card, o=source, h=heavy: (  # type: ignore[misc]
                            s.row.gpu == c and s.row.source == o and s.convolution == h
                        ),
                    )
                    if group.total.count:
                        groups.append(group)
        return groups

    def headline(self) -> list[Group]:
        return [
            self.group("rows rated good to 1–3 %", lambda s: s.trusted),
            self.group("convolution-heavy rows, all", lambda s: s.convolution),
            self.group("convolution-heavy rows not flagged", lambda s: s.convolution and not s.flagged),
            self.group("MLP rows below 2 GiB", lambda s: not s.trusted and not s.convolution and s.row.source == MLP),
            self.group("all rows", lambda s: True),
        ]

    def worst(self, count: int = 10) -> list[Scored]:
        return sorted(self.scored, key=lambda s: -abs(s.total_error))[:count]


SOURCE_NAMES = {
    TRANSFORMER: "GPUMemNet transformers",
    MLP: "GPUMemNet MLPs",
    CNN: "GPUMemNet CNNs",
    TIMM: "GPUMemNet timm models",
    XMEM: "xMem",
}


def score(predicted: list[Predicted], versions: dict[str, str]) -> Evaluation:
    answered = [p for p in predicted if not p.error]
    groups: dict[str, list[float]] = {}
    for p in answered:
        groups.setdefault(p.row.group, []).append(p.row.measured_mib - p.reserved_mib)
    constants = {group: statistics.median(values) for group, values in groups.items()}
    return Evaluation(
        scored=tuple(Scored(p, constants[p.row.group]) for p in answered),
        constants_mib=constants,
        unanswered=tuple(p for p in predicted if p.error and not p.error.startswith(MISMATCH)),
        mismatched=sum(p.error.startswith(MISMATCH) for p in predicted),
        versions=versions,
    )


def load(path: Path) -> Evaluation:
    """Score what `python -m lab.external` wrote."""
    document: dict[str, Any] = json.loads(path.read_text())
    predicted = [Predicted(**{**entry, "row": Row(**entry["row"])}) for entry in document["rows"]]
    return score(predicted, document["versions"])
