"""Scenarios side by side: one line each, the parts in GiB, and whether the card holds it; and as JSON."""

from __future__ import annotations

from typing import Any

from vramcast.base.units import GIB, format_gib
from vramcast.features.compare.scenario_results import COLUMNS, Scenario, Scenarios
from vramcast.features.compare.side_by_side import Comparison
from vramcast.report.documents import COMPARISON_FORMAT, COMPARISON_VERSION, comparison_document
from vramcast.report.page import Grid, Line, Page

_HEADINGS = ("at the peak, GiB", "trained", *COLUMNS, "other", "needs", "left")


def scenarios_page(found: Scenarios) -> Page:
    first, *others = (Line(text, tone) for text, tone in scenarios_verdict(found))
    return [first, scenarios_grid(found), *others]


def scenarios_grid(found: Scenarios) -> Grid:
    return Grid(_HEADINGS, tuple(_row(scenario) for scenario in found.rows if scenario.prediction is not None))


def scenarios_verdict(found: Scenarios) -> list[tuple[str, str]]:
    """What there is, what could not be predicted, and which of them fit; each with its tone."""
    what = "free on" if found.is_free else "on"
    lines = [(f"{format_gib(found.available_bytes)} {what} {found.card}", "heading")]
    lines += [(f"{one.name} could not be predicted: {one.problem}", "bad") for one in found.rows if one.problem]
    fitting = [one.name for one in found.rows if one.prediction is not None and one.prediction.fits]
    lines.append((f"fits: {', '.join(fitting)}", "good") if fitting else ("none of them fits", "bad"))
    return lines


def _row(scenario: Scenario) -> tuple[str, ...]:
    prediction, parameters = scenario.prediction, scenario.parameters
    assert prediction is not None
    training = parameters is not None and parameters.count
    trained = _millions(parameters.trained_count) if training and parameters is not None else "–"
    left = f"{prediction.headroom_bytes / GIB:.2f}" if prediction.fits or prediction.headroom_bytes < 0 else "in pieces"
    parts = scenario.part_bytes()
    return (scenario.name, trained, *(_gib(size) for size in parts.values()), _gib(prediction.device_bytes), left)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.2f}" if size_bytes else "–"


def _millions(count: int) -> str:
    if count >= 10**9:
        return f"{count / 10**9:.2f} B"
    return f"{count / 10**6:.1f} M" if count >= 10**5 else f"{count:,}"


def scenarios_document(scenarios: Scenarios, lines: Comparison | None) -> dict[str, Any]:
    """The comparison line by line, and what only jobs have."""
    base = {"format": COMPARISON_FORMAT, "version": COMPARISON_VERSION, "columns": [], "reference": None, "rows": []}
    return (base if lines is None else comparison_document(lines)) | {
        "card": scenarios.card,
        "available_bytes": scenarios.available_bytes,
        "is_free": scenarios.is_free,
        "scenarios": [_document(scenario) for scenario in scenarios.rows],
    }


def _document(scenario: Scenario) -> dict[str, Any]:
    prediction, parameters = scenario.prediction, scenario.parameters
    if prediction is None:
        return {"name": scenario.name, "problem": scenario.problem}
    return {
        "name": scenario.name,
        "problem": None,
        "fits": prediction.fits,
        "device_bytes": prediction.device_bytes,
        "headroom_bytes": prediction.headroom_bytes,
        "parts": scenario.part_bytes(),
        "most_activations_bytes": scenario.most_activations_bytes,
        "parameters": None if parameters is None else parameters.count,
        "trained_parameters": None if parameters is None else parameters.trained_count,
    }
