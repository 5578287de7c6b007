"""Why the worst published rows are off, as far as their neighbours tell; "most likely" where nobody could check."""

from __future__ import annotations

from lab.external.rows import CNN, TIMM, TRANSFORMER, XMEM
from lab.external.score import Scored

_CAUGHT = (
    "most likely the card was polled while cuDNN's benchmark held the largest workspace it tried, which is given back "
    "at once"
)
_WIDE = "most likely cuDNN 9.1 chose plans with larger workspaces for its wide convolutions than the model expects"
_NARROW = "most likely cuDNN 9.1 chose plans with smaller workspaces for its wide convolutions than the model expects"
_ONE_CLASS = "most likely the run ended after its first forward pass, whose loss refuses the labels"

# (source, row number) → explanation.
KNOWN: dict[tuple[str, int], str] = {
    (TIMM, 2017): f"twice and four times the batch took a third of it: {_CAUGHT}",
    (TIMM, 4205): f"twice the batch took less: {_CAUGHT}",
    (TIMM, 196): f"twice the batch took less: {_CAUGHT}",
    (TIMM, 1098): f"twice the batch took hardly more: {_CAUGHT}",
    (TIMM, 1522): f"twice the batch took a quarter more: {_CAUGHT}",
    (TIMM, 3010): f"twice the batch took a sixth more: {_CAUGHT}",
    (TIMM, 1354): f"half the batch is a spike too: {_CAUGHT}",
    (TIMM, 2133): f"twice the batch took hardly more: {_CAUGHT}",
    (TRANSFORMER, 10): "marked by the collection: 1.4 GiB above its neighbours; the figure is of the whole card",
    (TRANSFORMER, 32): "1 GiB above its neighbours, which agree to 2 MiB; the figure is of the whole card",
    (CNN, 169): _ONE_CLASS,
    (CNN, 396): f"{_ONE_CLASS}; {_WIDE}",
    (CNN, 307): _NARROW,
    (XMEM, 66): "most likely cuDNN was refused its workspaces near the card's limit and took plans that need less",
    (XMEM, 71): "a jump of the measured allocator: batches of 16 and 25 agree to 1 %",
    (XMEM, 30): "an exact repeat of this run took 1,004 MiB less, as predicted",
    (XMEM, 39): "batches from 400 on agree to 8 %: most likely cuDNN takes other plans for this one",
    (XMEM, 43): "batches from 400 on agree to 8 %: most likely cuDNN takes other plans for this one",
}


def explain(scored: Scored) -> str:
    known = KNOWN.get((scored.row.source, scored.row.number))
    if known:
        return known
    low = scored.total_error < 0
    if scored.flagged and low:
        return f"flagged by the collection for its workspaces: {_CAUGHT}"
    if scored.convolution:
        return _WIDE if low else _NARROW
    return "not explained"
