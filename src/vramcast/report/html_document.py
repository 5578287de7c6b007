"""The file of a report: one HTML page with its styles, scripts and data, which loads nothing from anywhere.

Scripts and styles lie in `web/`; they are put into the page in the order of SCRIPTS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from vramcast.base.language import catalogue, language, say
from vramcast.report.names import NAMES

REPORT = "vramcast-report"
"""How the file names itself, near its beginning."""
SCRIPTS = ("common.js", "course.js", "icicle.js", "memory.js", "segments.js", "lanes.js", "main.js")
UPLOT = "vendor/uplot/uPlot.iife.min.js"
_STYLES = ("vendor/uplot/uPlot.min.css", "report.css")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; base-uri 'none'"


def html_document(title: str, header: str, body: str, footer: str, data: Mapping[str, Any]) -> str:
    """`header`, `body` and `footer` are HTML; `data` is what the scripts draw from."""
    return f"""<!doctype html>
<html lang="{language()}">
<head>
<meta charset="utf-8">
<meta name="generator" content="{REPORT}">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{styles()}
</style>
</head>
<body>
<header><div>{header}</div><button class="theme noprint" type="button">{escape(say("system theme"))}</button></header>
<main>
{body}
</main>
<footer>{footer}</footer>
<script type="application/json" id="data">{embedded({**data, "texts": texts()})}</script>
<script>{_web(UPLOT)}</script>
<script>(() => {{
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
{scripts(SCRIPTS)}
}})();</script>
</body>
</html>
"""


def embedded(data: Mapping[str, Any]) -> str:
    """JSON that can stand in a script element, whatever names a model has."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def texts() -> dict[str, str]:
    """What the scripts say, in the language in force; empty for English, which they have themselves."""
    known = catalogue(language())
    return {english: known[english] for english in (*script_messages(), *NAMES) if english in known}


@cache
def script_messages() -> tuple[str, ...]:
    """Every text that a script shows: t("...")."""
    return tuple(dict.fromkeys(re.findall(r"""\bt\("([^"]+)\"""", scripts([*SCRIPTS, "page.js"]))))


def styles() -> str:
    return "\n".join(map(_web, _STYLES))


def scripts(names: Sequence[str]) -> str:
    return "\n".join(map(_web, names))


@cache
def _web(name: str) -> str:
    return (files("vramcast.report") / "web" / name).read_text(encoding="utf-8").strip()
