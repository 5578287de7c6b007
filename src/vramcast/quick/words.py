"""The answer of the quick formula as lines and as JSON. Plain text: nothing slow is imported for it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vramcast.base.units import format_gib, format_size
from vramcast.quick.formula import QuickAnswer, QuickQuestion

FORMAT = "vramcast-quick-check"
VERSION = 1


def lines(answer: QuickAnswer, card: str = "") -> list[str]:
    q = answer.question
    verdict = "Safe" if answer.safe else "Not safe"
    if answer.safe:
        rest = f"{format_gib(answer.headroom_bytes)} to spare"
    else:
        rest = f"{format_size(max(1, -answer.headroom_bytes))} too much"
    rows = [
        f"{verdict} by the quick formula: {format_gib(answer.total_bytes)} of activations, "
        f"{format_gib(answer.allowed_bytes)} allowed, {rest}",
        f"one layer   {_product(q)} = {format_size(answer.layer_bytes)}",
        f"{q.layers:,} layers".ljust(12) + f"{format_size(answer.layer_bytes)} × {q.layers:,} = "
        f"{format_gib(answer.total_bytes)}",
        "allowed".ljust(12) + f"{format_gib(q.card_bytes)}{f' ({card})' if card else ''} × {q.threshold:g} = "
        f"{format_gib(answer.allowed_bytes)}; the rest is for weights, gradients and optimizer state",
    ]
    if not answer.safe:
        rows.append("what would be".ljust(12) + f" {_cures(answer)}")
    rows.append(
        "This is the formula and not a prediction: one tensor a layer and nothing else. "
        "`vramcast check JOB` runs the model."
    )
    return rows


def _product(q: QuickQuestion) -> str:
    factors = [f"batch {q.batch:,}"]
    if q.sequence > 1:
        factors.append(f"sequence {q.sequence:,}")
    if q.height * q.width > 1:
        factors.append(f"{q.height:,} × {q.width:,}")
    return " × ".join([*factors, f"hidden {q.hidden_dim:,}", f"{q.element_bytes} B"])


def _cures(answer: QuickAnswer) -> str:
    q = answer.question
    cures = []
    if 0 < answer.largest_batch < q.batch:
        batch = answer.kept_batch
        kept = f"batch {batch:,} with {q.batch // batch:,} accumulation steps for {q.batch:,}"
        largest = f", {answer.largest_batch:,} at most" if batch < answer.largest_batch else ""
        cures.append(f"{kept} (slower{largest})")
    if 0 < answer.largest_side < max(q.height, q.width):
        cures.append(f"{answer.largest_side:,} × {answer.largest_side:,} at batch {q.batch:,}")
    if q.element_bytes == 4 and answer.total_bytes // 2 < answer.allowed_bytes:
        cures.append("bf16")
    return "safe: " + ", or ".join(cures) if cures else "safe: a larger card, or fewer or narrower layers"


def document(answer: QuickAnswer, card: str = "") -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "is_prediction": False,
        "verdict": lines(answer, card)[0],
        "safe": answer.safe,
        "layer_bytes": answer.layer_bytes,
        "total_bytes": answer.total_bytes,
        "allowed_bytes": answer.allowed_bytes,
        "headroom_bytes": answer.headroom_bytes,
        "largest_batch": answer.largest_batch,
        "kept_batch": answer.kept_batch,
        "accumulation": answer.question.batch // answer.kept_batch if answer.kept_batch else None,
        "largest_side": answer.largest_side,
        "card": card,
        "question": asdict(answer.question),
    }
