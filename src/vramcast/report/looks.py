"""How each result that Python hands out looks: as text, as JSON, and as HTML in a notebook."""

from __future__ import annotations

import functools
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
from vramcast.report.documents import prediction_document
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
    Screen,
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
    return page_html(_page(result))


def text(result: object) -> str:
    """One screen."""
    lines = plain_text(lambda console: print_page(screen(result), console), USUAL_WIDTH).splitlines()
    left = len(lines) - MOST_LINES
    if left > 0:
        lines = [*lines[: MOST_LINES - 1], f"and {left + 1} more lines: to_document() has all of it"]
    return "\n".join(lines)


@functools.singledispatch
def screen(result: object, width: int = USUAL_WIDTH) -> Page:
    """What the verb prints without --full; of verbs that have no such option, all of it."""
    return _page(result)


@screen.register
def _(result: Prediction, width: int = USUAL_WIDTH) -> Screen:
    return prediction_screen(result, width)


@screen.register
def _(result: JobPrediction, width: int = USUAL_WIDTH) -> Screen:
    return job_screen(result.job_account(), (), width)


@screen.register
def _(result: JobCheck, width: int = USUAL_WIDTH) -> Screen:
    job = result.prediction
    return check_screen(result.verdict, job.time, job.throughput, job.sizes.get("batch"), width)


@screen.register
def _(result: JobAdvice, width: int = USUAL_WIDTH) -> Screen:
    return advice_screen(result.advice, width)


@screen.register
def _(result: Comparison, width: int = USUAL_WIDTH) -> Screen:
    return comparison_screen(result, width)


@screen.register
def _(result: JobComparison, width: int = USUAL_WIDTH) -> Screen:
    return scenarios_screen(result.scenarios, width)


@functools.singledispatch
def document(result: object) -> dict[str, Any]:
    raise TypeError(f"nothing is known about how a {type(result).__name__} looks")


@functools.singledispatch
def _page(result: object) -> Page:
    raise TypeError(f"nothing is known about how a {type(result).__name__} looks")


@functools.singledispatch
def write_report(result: object, folder: Path) -> Path:
    raise TypeError(f"a {type(result).__name__} is not written to a file")


@document.register
def _(result: JobPrediction) -> dict[str, Any]:
    return job_document(result.job_account(), result.job.model_dump(mode="json", exclude_defaults=True))


@document.register
def _(result: JobAdvice) -> dict[str, Any]:
    return advice_document(result.advice)


@_page.register
def _(result: JobAdvice) -> Page:
    return advice_page(result.advice)


@document.register
def _(result: JobCheck) -> dict[str, Any]:
    return check_document(result.verdict)


@_page.register
def _(result: JobCheck) -> Page:
    return check_page(result.verdict)


@document.register
def _(result: JobComparison) -> dict[str, Any]:
    return scenarios_document(result.scenarios, result.lines() if len(result.predictions) > 1 else None)


@_page.register
def _(result: JobComparison) -> Page:
    return scenarios_page(result.scenarios)


@document.register
def _(result: JobExplanation) -> dict[str, Any]:
    return explanation_document(result.explanation, result.prediction.job.name, result.prediction.gpu.id)


@_page.register
def _(result: JobExplanation) -> Page:
    return explanation_page(result.explanation, result.prediction.job.name)


@document.register
def _(result: JobPlan) -> dict[str, Any]:
    return plan_document(result.ramp)


@_page.register
def _(result: JobPlan) -> Page:
    return plan_page(result.ramp)


@document.register
def _(result: JobTable) -> dict[str, Any]:
    return table_document(result.table)


@_page.register
def _(result: JobTable) -> Page:
    return table_page(result.table)


@document.register
def _(result: LogDiagnosis) -> dict[str, Any]:
    return diagnosis_document(result.diagnosis)


@_page.register
def _(result: LogDiagnosis) -> Page:
    return diagnosis_page(result.diagnosis)


@document.register
def _(result: Guard) -> dict[str, Any]:
    return guard_document(result.result)


@_page.register
def _(result: Guard) -> Page:
    return [Line(result.verdict)]


@document.register
def _(result: Prediction) -> dict[str, Any]:
    return prediction_document(result)


@_page.register
def _(result: Prediction) -> Page:
    return prediction_screen(result, 120)


@document.register
def _(result: WhatIfs) -> dict[str, Any]:
    return what_if_document(result)


@_page.register
def _(result: WhatIfs) -> Page:
    return what_if_page(result)


@write_report.register
def _(result: Alive, folder: Path) -> Path:
    return write_alive(result, folder)
