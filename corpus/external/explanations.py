"""Why the worst published rows are off, by what was found when they were looked into."""

from __future__ import annotations

from corpus.external.rows import TIMM
from corpus.external.score import Scored

KNOWN: dict[tuple[str, int], str] = {}
"""(source, row number) → explanation."""


def explain(scored: Scored) -> str:
    known = KNOWN.get((scored.row.source, scored.row.number))
    if known:
        return known
    flag = scored.row.notes().get("flag", "ok")
    if scored.row.source == TIMM and flag != "ok" and scored.total_error < 0:
        return (
            "flagged by the collection: the card held far more than its neighbours in batch do, the largest workspace "
            "cuDNN's benchmark tried"
        )
    if scored.convolution:
        return "workspace of another cuDNN version's plans"
    return "not explained"
