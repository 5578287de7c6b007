"""Why a test of the CI gate failed: the verdict, and the account at the peak."""

from __future__ import annotations

import io

from rich.console import Console

from vramcast.base.units import format_gib
from vramcast.memory import Prediction
from vramcast.report.console import emit
from vramcast.report.terminal import peak_lines, print_kinds, print_modules
from vramcast.report.wording import verdict


def gate_text(prediction: Prediction, margin: float) -> str:
    lines = [verdict(prediction)]
    if margin:
        allowed = int(prediction.limit_bytes * (1 - margin))
        over = prediction.device_bytes - allowed
        text = f"with a margin of {margin:.0%}, {format_gib(allowed)} may be used"
        lines.append(f"{text}: {format_gib(over)} too much" if over > 0 else text)
    lines += [*peak_lines(prediction), ""]

    def render(console: Console) -> None:
        print_kinds(prediction.account.parts, prediction.account.device_bytes, console)
        console.print()
        print_modules(prediction.account, console)

    buffer = io.StringIO()
    emit(render, buffer, width=100)
    return "\n".join(lines) + "\n" + buffer.getvalue().rstrip()
