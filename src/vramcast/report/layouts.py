"""The fastest layouts and the cheapest cards, as lines and as documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramcast.base.units import format_gib
from vramcast.features.advise.cheapest import Offers
from vramcast.features.advise.layouts import FastestLayouts
from vramcast.memory import Prediction
from vramcast.report.wording import seconds

_REFUSED_SHOWN = 3


def fastest_lines(found: FastestLayouts, where: str) -> list[str]:
    cards = f"{found.count:,} {found.gpu.short_name}"
    lines = []
    if not found.ways:
        lines.append(f"no way was found that holds it on {cards}; --fewest-gpus says how many it needs")
    for way in found.ways:
        lines.append(
            f"{way.layout.text}: a step takes {seconds(way.step_seconds)}, {way.samples_per_second:,.1f} samples/s; "
            f"{_needs(way.prediction)}"
        )
        lines.append(_command(where, found.gpu.id, way.changes))
    for text, reason in list(found.refused.items())[:_REFUSED_SHOWN]:
        lines.append(f"not tried: {text}: {reason}")
    lines.append(
        f"{found.considered} ways on {cards}, {found.traces} runs traced; the samples of a step stay the same; NCCL's "
        "own buffers are not in the figures, and no time was measured on several cards"
    )
    return lines


def fastest_document(found: FastestLayouts) -> dict[str, Any]:
    return {
        "gpu": found.gpu.id,
        "count": found.count,
        "considered": found.considered,
        "traces": found.traces,
        "refused": dict(found.refused),
        "ways": [
            {
                "layout": way.layout.text,
                "changes": dict(way.changes),
                "step_seconds": way.step_seconds,
                "samples_per_second": way.samples_per_second,
                **_figures(way.prediction),
            }
            for way in found.ways
        ],
    }


def cheapest_lines(found: Offers, where: str) -> list[str]:
    lines = []
    for offer in found.ways:
        count, card = offer.way.count, offer.gpu.short_name
        pace = f"{offer.per_hour:,.2f} an hour, {offer.samples_per_second:,.1f} samples/s"
        lines.append(
            f"{count:,} {card}, FSDP, {offer.way.text}: {offer.per_thousand_samples:.4g} for 1,000 samples ({pace}); "
            f"{_needs(offer.way.prediction)}"
        )
        lines.append(_command(where, offer.gpu.id, offer.changes))
    lines += [f"no number of {gpu.short_name} was found that holds it" for gpu in found.nothing_holds]
    lines.append(f"{found.traces} runs traced; a card's batch stays as it is; prices as given, per card and hour")
    return lines


def cheapest_document(found: Offers) -> dict[str, Any]:
    return {
        "traces": found.traces,
        "ways": [
            {
                "gpu": offer.gpu.id,
                "count": offer.way.count,
                "changes": dict(offer.changes),
                "per_hour": offer.per_hour,
                "per_thousand_samples": offer.per_thousand_samples,
                "samples_per_second": offer.samples_per_second,
                **_figures(offer.way.prediction),
            }
            for offer in found.ways
        ],
        "nothing_holds": [gpu.id for gpu in found.nothing_holds],
    }


def _command(where: str, gpu: str, changes: Mapping[str, Any]) -> str:
    settings = " ".join(f"--set {key}={value}" for key, value in changes.items())
    return f"  vramcast predict {where} --gpu {gpu} {settings}"


def _needs(prediction: Prediction) -> str:
    return f"needs {format_gib(prediction.device_bytes)} of {format_gib(prediction.limit_bytes)} on each"


def _figures(prediction: Prediction) -> dict[str, int]:
    return {
        "peak_allocated_bytes": prediction.peak_allocated_bytes,
        "peak_reserved_bytes": prediction.peak_reserved_bytes,
        "device_bytes": prediction.device_bytes,
    }
