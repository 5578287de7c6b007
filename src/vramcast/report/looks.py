"""How each result that Python hands out looks: as text, as JSON, and as HTML in a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vramcast.memory import Prediction
from vramcast.memory.alive import Alive
from vramcast.report.alive import write_alive
from vramcast.report.console import plain_text
from vramcast.report.documents import prediction_document
from vramcast.report.html import job_page
from vramcast.report.look import Look
from vramcast.report.page import Page, page_html, print_page
from vramcast.report.screen import MOST_LINES, USUAL_WIDTH
from vramcast.report.screens import prediction_screen


def html(result: object) -> str:
    from vramcast.prediction.job_prediction import JobPrediction

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


def _look(result: object) -> Look:
    if isinstance(result, Prediction):
        return _PREDICTION
    from vramcast.report.feature_looks import LOOKS

    return LOOKS[type(result)]


_PREDICTION = Look(prediction_document, lambda r: prediction_screen(r, 120), prediction_screen)
