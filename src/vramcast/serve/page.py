"""The page itself: its controls as HTML, its script and styles from the report's."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from vramcast.base.language import language, say
from vramcast.report.html_document import SCRIPTS, UPLOT, embedded, scripts, styles, texts
from vramcast.report.html_parts import lanes_place, memory_place, segments_place

_EXACT = "Stacked by kind, at the moments of the step that holds the peak. Drag to zoom, double-click to see all of it."
_PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "pure-bf16", "pure-fp16")
_OPTIMIZERS = ("adamw", "adamw8bit", "sgd", "adafactor", "lion", "adam")


def page_html(start: dict[str, Any]) -> str:
    """`start`: what can be chosen."""
    gpus = [(gpu["id"], gpu["name"]) for gpu in start["gpus"]]
    unchanged = _said("as in the job")
    allocators = [("", say("as it is")), ("expandable_segments:True", say("expandable segments"))]
    jobs = (
        f'<optgroup label="{_said("Examples")}">{_options(start["examples"].items())}</optgroup>'
        f'<optgroup label="{_said("Below this folder")}">'
        f"{_options((name, name.partition(':')[2]) for name in start['folders'])}</optgroup>"
    )
    return f"""<!doctype html>
<html lang="{language()}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>vramcast</title>
<link rel="stylesheet" href="/page.css">
<link rel="icon" href="data:,">
</head>
<body class="page">
<header><div><h1>{_said("vramcast: does it fit?")}</h1></div>
<button class="theme noprint" type="button">{_said("system theme")}</button></header>
<main>
<form class="controls" id="controls" aria-label="{_said("Job and settings")}">
<label>{_said("Job")} <select name="job">{jobs}</select></label>
<label class="file">{_said("or send a config or a saved trace")}
<input type="file" id="upload" accept=".yaml,.yml,.json,.toml,.trace"></label>
<label>{_said("Card")} <select name="gpu">{_options(gpus)}</select></label>
<label>{_said("PyTorch may reserve")}
<input type="text" name="limit" placeholder="{_said("all of the card, or 20GiB")}" maxlength="40"></label>
<fieldset id="sizes"><legend>{_said("Sizes of one GPU's batch")}</legend></fieldset>
{_select(say("Precision"), "precision", _PRECISIONS)}
{_select(say("Optimizer"), "optimizer", _OPTIMIZERS)}
{_select(say("Checkpointing"), "checkpointing", ("none", "all"))}
{_select(say("Trained"), "mode", ("trained", "lora"))}
<label>{_said("Frozen parameters")}
<input type="text" name="freeze" placeholder="{_said("names, e.g. *embed*")}" maxlength="300"></label>
{_select("torch.compile", "compile", ("on", "off"))}
{_select(say("Task"), "task", ("training", "inference"))}
<label>{_said("Allocator")} <select name="allocator">{_options(allocators)}</select></label>
<label>{_said("Accumulation")} <input type="number" name="accumulation" min="1" placeholder="{unchanged}"></label>
<label>{_said("GPUs")} <input type="number" name="gpus" min="1" max="4096" placeholder="{unchanged}"></label>
{_select(say("Strategy"), "strategy", ("ddp", "fsdp", "hsdp"))}
<label>{_said("Tensor parallel")} <input type="number" name="tensor" min="1" max="64" placeholder="{unchanged}"></label>
<label>{_said("Pipeline stages")}
<input type="number" name="pipeline" min="1" max="64" placeholder="{unchanged}"></label>
</form>
<div class="answer">
<p class="verdict" id="verdict" role="status" aria-live="polite">…</p>
<p class="aside wrap" id="how"></p>
<div class="row noprint"><button type="button" id="stop" hidden>{_said("Stop")}</button>
<button type="button" id="copy-command" hidden>{_said("Copy the command")}</button>
<button type="button" id="copy-config" hidden>{_said("Copy the config")}</button>
<button type="button" id="copy-link">{_said("Copy a link")}</button><span id="copied" role="status"></span></div>
<p class="aside" id="busy" role="status"></p>
<div id="bar"></div>
<div class="row noprint"><button type="button" id="advise" hidden>{_said("What makes it fit?")}</button></div>
<div id="advice" role="status"></div>
<dl class="figures" id="figures"></dl>
<div id="parts" class="scroll" tabindex="0"></div>
<p id="time"></p><p id="cards"></p>
<p><code id="command" class="wrap"></code></p>
</div>
<article id="pictures" hidden></article>
<template id="picture-places">
<section class="memory"><h2>{_said("Memory over the step")}</h2>{memory_place(say(_EXACT))}</section>
<section class="segments"><h2>{_said("Segments of the allocator at the peak")}</h2>{segments_place()}</section>
<section class="lanes"><h2>{_said("Time of a step")}</h2>{lanes_place()}</section>
</template>
<section id="notes" hidden><h2>{_said("Assumed and not known")}</h2><ul></ul></section>
</main>
<footer>{_said("Nothing leaves this computer. `vramcast advise` searches what makes a job fit.")}</footer>
<script type="application/json" id="data">{embedded({**start, "texts": texts()})}</script>
<script src="/page.js"></script>
</body>
</html>
"""


def page_script() -> str:
    return f"""{scripts([UPLOT])}
(() => {{
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
{scripts([*SCRIPTS, "page.js"])}
}})();
"""


def page_styles() -> str:
    return f"{styles()}\n{scripts(['page.css'])}"


def _said(message: str) -> str:
    return escape(say(message))


def _select(label: str, name: str, values: Iterable[str]) -> str:
    shown = _options([("", say("as in the job")), *((value, value) for value in values)])
    return f'<label>{escape(label)} <select name="{name}">{shown}</select></label>'


def _options(pairs: Iterable[tuple[str, str]]) -> str:
    return "".join(f'<option value="{escape(value)}">{escape(text)}</option>' for value, text in pairs)
