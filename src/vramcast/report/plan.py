"""A ramp-up as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vramcast.base.units import GIB, format_gib
from vramcast.features.plan.result import CheckItem, Ramp, RampStep
from vramcast.report.advice import advice_document, paste
from vramcast.report.page import Grid, Line, Page
from vramcast.report.wording import margin, verdict

PLAN_FORMAT = "vramcast-plan"
PLAN_VERSION = 1


def plan_page(ramp: Ramp) -> Page:
    page: list[Line | Grid] = [Line(verdict(ramp.wished), "good" if ramp.reached else "bad")]
    rows = tuple((item.name, _mark(item), item.text) for item in ramp.checks)
    page += [Grid(("before", "", ""), rows, text_columns=3), _grid(ramp)]
    for i, step in enumerate(ramp.steps, 1):
        if not step.fits:
            break
        page += [Line(""), Line(f"{i}. {step.name}", "heading")] if i > 1 else [Line(f"1. {step.name}", "heading")]
        page.append(Line(f"   {_how_long(step, ramp.steps_key)}"))
        page += [Line(f"   watch: {text}") for text in step.watch]
        page += paste(step.config) if step.overrides else [Line("   nothing to change")]
    if not ramp.reached:
        page += _stop(ramp)
    page += [Line(f"left out: {text}", "aside") for text in ramp.left_out]
    what = f" ({ramp.recognised_as})" if ramp.recognised_as else ""
    page.append(
        Line(
            f"{ramp.job}{what}; every run was traced as it is; margin "
            f"{margin(ramp.wished)}; `vramcast watch` draws a run live",
            "aside",
        )
    )
    return page


def _mark(item: CheckItem) -> str:
    return {True: "ok", False: "no", None: "look"}[item.ok]


def _grid(ramp: Ramp) -> Grid:
    rows = tuple(
        (
            f"{i}. {step.name}",
            "fits" if step.comfortable else "close" if step.fits else "does not fit",
            f"{step.prediction.device_bytes / GIB:.2f}",
            f"{step.prediction.headroom_bytes / GIB:.2f}",
            f"{step.gpus} × {step.batch:,} × {step.accumulation:,}",
        )
        for i, step in enumerate(ramp.steps, 1)
    )
    return Grid(("run", "", "GiB", "left", "GPUs × batch × acc."), rows, text_columns=2)


def _how_long(step: RampStep, key: str) -> str:
    if not step.overrides:
        return f"the run that was wished for; its peak is reached by step {step.steps}, and stays"
    name = "" if not key else f": {key} {step.steps}" if key.startswith("--") else f": {key} = {step.steps}"
    return f"run {step.steps} optimizer steps, by which the peak is reached{name}"


def _stop(ramp: Ramp) -> list[Line]:
    step, advice = ramp.first_that_does_not_fit, ramp.advice
    number = len(ramp.steps)
    page = [Line("")]
    if step is not None:
        short = -step.prediction.headroom_bytes
        missing = f"{format_gib(short)} short" if short > 0 else "no free range is large enough"
        page.append(Line(f"Stop before run {number}, {step.name}: {missing}", "bad"))
    if advice is None:
        return page
    if not advice.best:
        page.append(
            Line("Nothing that can be changed makes the job fit; `vramcast advise` names the least that would do")
        )
        return page
    best = advice.best[0]
    page.append(
        Line(f"Go on with {best.text}: {format_gib(best.prediction.device_bytes)}, the same samples a step", "heading")
    )
    page += [Line(f"   {change.text}: {change.risk}; {change.cost}") for change in best.changes]
    page += paste(best.config)
    page.append(Line("   `vramcast advise` shows the alternatives"))
    return page


def plan_document(ramp: Ramp) -> dict[str, Any]:
    stop = ramp.first_that_does_not_fit
    return {
        "format": PLAN_FORMAT,
        "version": PLAN_VERSION,
        "job": ramp.job,
        "recognised_as": ramp.recognised_as,
        "gpu": ramp.wished.gpu.id,
        "limit_bytes": ramp.wished.limit_bytes,
        "local": None if ramp.local is None else asdict(ramp.local),
        "reached": ramp.reached,
        "wished": {"fits": ramp.wished.fits, "device_bytes": ramp.wished.device_bytes},
        "checks": [asdict(item) for item in ramp.checks],
        "steps": [_step(step) for step in ramp.steps],
        "steps_key": ramp.steps_key,
        "stop": None if stop is None else ramp.steps.index(stop),
        "advice": None if ramp.advice is None else advice_document(ramp.advice),
        "left_out": list(ramp.left_out),
    }


def _step(step: RampStep) -> dict[str, Any]:
    prediction = step.prediction
    return {
        "name": step.name,
        "overrides": dict(step.overrides),
        "batch": step.batch,
        "accumulation": step.accumulation,
        "gpus": step.gpus,
        "sizes": dict(step.sizes),
        "fits": step.fits,
        "comfortable": step.comfortable,
        "device_bytes": prediction.device_bytes,
        "with_margin_bytes": prediction.with_margin_bytes,
        "interval_bytes": list(prediction.interval),
        "peak_reserved_bytes": prediction.peak_reserved_bytes,
        "peak_allocated_bytes": prediction.peak_allocated_bytes,
        "headroom_bytes": prediction.headroom_bytes,
        "steps": step.steps,
        "watch": list(step.watch),
        "config": asdict(step.config),
    }
