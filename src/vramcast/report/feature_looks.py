"""How the results of features look. Apart from looks.py, since this imports every feature and `run` needs none."""

from __future__ import annotations

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
from vramcast.prediction.job_prediction import JobPrediction
from vramcast.report.advice import advice_document, advice_page
from vramcast.report.batch_table import table_document, table_page
from vramcast.report.check import check_document, check_page
from vramcast.report.diagnosis import diagnosis_document, diagnosis_page
from vramcast.report.documents import comparison_document
from vramcast.report.explain import explanation_document, explanation_page
from vramcast.report.guard import guard_document
from vramcast.report.job_documents import job_document
from vramcast.report.look import Look
from vramcast.report.outcomes import what_if_document, what_if_page
from vramcast.report.page import Line, Page
from vramcast.report.plan import plan_document, plan_page
from vramcast.report.scenarios import scenarios_document, scenarios_page
from vramcast.report.screens import (
    advice_screen,
    check_screen,
    comparison_screen,
    job_screen,
    scenarios_screen,
)


def _check_screen(result: JobCheck, width: int) -> Page:
    job = result.prediction
    return check_screen(result.verdict, job.time, job.throughput, job.sizes.get("batch"), width)


LOOKS: dict[type, Look] = {
    JobPrediction: Look(
        lambda r: job_document(r.job_account(), r.job.model_dump(mode="json", exclude_defaults=True)),
        lambda r: job_screen(r.job_account()),
        lambda r, width: job_screen(r.job_account(), (), width),
    ),
    JobCheck: Look(lambda r: check_document(r.verdict), lambda r: check_page(r.verdict), _check_screen),
    JobAdvice: Look(
        lambda r: advice_document(r.advice),
        lambda r: advice_page(r.advice),
        lambda r, width: advice_screen(r.advice, width),
    ),
    JobComparison: Look(
        lambda r: scenarios_document(r.scenarios, r.lines() if len(r.predictions) > 1 else None),
        lambda r: scenarios_page(r.scenarios),
        lambda r, width: scenarios_screen(r.scenarios, width),
    ),
    Comparison: Look(comparison_document, lambda r: comparison_screen(r, 120), comparison_screen),
    JobExplanation: Look(
        lambda r: explanation_document(r.explanation, r.prediction.job.name, r.prediction.gpu.id),
        lambda r: explanation_page(r.explanation, r.prediction.job.name),
    ),
    JobPlan: Look(lambda r: plan_document(r.ramp), lambda r: plan_page(r.ramp)),
    JobTable: Look(lambda r: table_document(r.table), lambda r: table_page(r.table)),
    LogDiagnosis: Look(lambda r: diagnosis_document(r.diagnosis), lambda r: diagnosis_page(r.diagnosis)),
    WhatIfs: Look(what_if_document, what_if_page),
    Guard: Look(lambda r: guard_document(r.result), lambda r: [Line(r.verdict)]),
}
