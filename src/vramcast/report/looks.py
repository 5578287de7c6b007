"""How each result that Python hands out looks: as text, as JSON, and as HTML in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.features.advise.advise import JobAdvice
from vramcast.features.check.check import JobCheck
from vramcast.features.compare.scenarios import JobComparison
from vramcast.features.compare.side_by_side import Comparison
from vramcast.features.diagnose.diagnose import LogDiagnosis
from vramcast.features.explain.explain import JobExplanation
from vramcast.features.guard.entry import Guard
from vramcast.features.plan.plan import JobPlan
from vramcast.features.table.table import JobTable
from vramcast.features.what_if.result import WhatIfs
from vramcast.memory import Prediction
from vramcast.memory.alive import Alive
from vramcast.prediction.job_prediction import JobPrediction
from vramcast.report.advice import advice_document, advice_page
from vramcast.report.alive import write_alive
from vramcast.report.batch_table import table_document, table_page
from vramcast.report.check import check_document, check_page
from vramcast.report.console import plain_text
from vramcast.report.diagnosis import diagnosis_document, diagnosis_page
from vramcast.report.documents import comparison_document, prediction_document
from vramcast.report.explain import explanation_document, explanation_page
from vramcast.report.guard import guard_document
from vramcast.report.html import job_page
from vramcast.report.job_documents import job_document
from vramcast.report.outcomes import what_if_document, what_if_page
from vramcast.report.page import Line, Page, page_html, print_page
from vramcast.report.plan import plan_document, plan_page
from vramcast.report.scenarios import scenarios_document, scenarios_page
from vramcast.report.screen import MOST_LINES, USUAL_WIDTH
from vramcast.report.screens import (
    advice_screen,
    check_screen,
    comparison_screen,
    job_screen,
    prediction_screen,
    scenarios_screen,
)


def html(result: object) -> str:
    if isinstance(result, JobPrediction):
        return job_page(result.job_account())
    return page_html(_look(result).page(result))


def text(result: object) -> str:
    """One screen."""
    lines = plain_text(lambda console: print_page(screen(result), console), USUAL_WIDTH).splitlines()
    left = len(lines) - MOST_LINES
    if left > 0:
        lines = [*lines[: MOST_LINES - 1], f"and {left + 1} more lines: to_document() has all of it"]
    return "\n".join(lines)


def screen(result: object, width: int = USUAL_WIDTH) -> Page:
    """What the verb prints without --full; of verbs that have no such option, all of it."""
    look = _look(result)
    return look.page(result) if look.screen is None else look.screen(result, width)


def document(result: object) -> dict[str, Any]:
    return _look(result).document(result)


def write_report(result: Alive, folder: Path) -> Path:
    """As a file of its own in `folder`."""
    return write_alive(result, folder)


@dataclass(frozen=True, slots=True)
class _Look:
    document: Callable[[Any], dict[str, Any]]
    page: Callable[[Any], Page]
    screen: Callable[[Any, int], Page] | None = None


def _look(result: object) -> _Look:
    return _LOOKS[type(result)]


def _check_screen(result: JobCheck, width: int) -> Page:
    job = result.prediction
    return check_screen(result.verdict, job.time, job.throughput, job.sizes.get("batch"), width)


_LOOKS: dict[type, _Look] = {
    Prediction: _Look(prediction_document, lambda r: prediction_screen(r, 120), prediction_screen),
    JobPrediction: _Look(
        lambda r: job_document(r.job_account(), r.job.model_dump(mode="json", exclude_defaults=True)),
        lambda r: job_screen(r.job_account()),
        lambda r, width: job_screen(r.job_account(), (), width),
    ),
    JobCheck: _Look(lambda r: check_document(r.verdict), lambda r: check_page(r.verdict), _check_screen),
    JobAdvice: _Look(
        lambda r: advice_document(r.advice),
        lambda r: advice_page(r.advice),
        lambda r, width: advice_screen(r.advice, width),
    ),
    JobComparison: _Look(
        lambda r: scenarios_document(r.scenarios, r.lines() if len(r.predictions) > 1 else None),
        lambda r: scenarios_page(r.scenarios),
        lambda r, width: scenarios_screen(r.scenarios, width),
    ),
    Comparison: _Look(comparison_document, lambda r: comparison_screen(r, 120), comparison_screen),
    JobExplanation: _Look(
        lambda r: explanation_document(r.explanation, r.prediction.job.name, r.prediction.gpu.id),
        lambda r: explanation_page(r.explanation, r.prediction.job.name),
    ),
    JobPlan: _Look(lambda r: plan_document(r.ramp), lambda r: plan_page(r.ramp)),
    JobTable: _Look(lambda r: table_document(r.table), lambda r: table_page(r.table)),
    LogDiagnosis: _Look(lambda r: diagnosis_document(r.diagnosis), lambda r: diagnosis_page(r.diagnosis)),
    WhatIfs: _Look(what_if_document, what_if_page),
    Guard: _Look(lambda r: guard_document(r.result), lambda r: [Line(r.verdict)]),
}
