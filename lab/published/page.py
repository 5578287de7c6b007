"""Write docs/lab/published.md from the draw and the recorded predictions."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from pathlib import Path

from lab import ROOT
from lab.published.predict import read
from lab.published.score import Scored, memory, pairs_in_order, rate, speed, summary

PAGE = ROOT / "docs" / "lab" / "published.md"
MEMORY_BOUND, SPEED_BOUND = 0.15, 0.20
HEAD = """# Published runs on many cards

Others published what their runs took. This page compares predictions with a random draw of those figures.
`python -m lab.published page` writes it from `lab/published/drawn_*.csv` (the draw, made before anything was
predicted), `results_*.csv` (the predictions) and `excluded.csv` (every row left out, and why).

How a row is predicted: the program that was run is run again, on a virtual card, as the rank that was recorded.

- **Megatron-LM's golden values** (exact bytes of its CI): Megatron-LM at the commit that recorded the figure, with the
  settings beside it, and TransformerEngine at the revision which that commit pins. The kernels of
  TransformerEngine, Apex and flash-attn are replaced by functions that allocate what their sources allocate
  (vramcast's stand-ins, and `lab/published/engine_kernels`).
- **SimuMax's records** on eight B200: the same, with the arguments of its launchers. The last rank of each stage is
  run.
- **torchtitan**, also in torchao's tables: its own trainer, at the revision named or the nearer of two. Runs of torch
  before 2.9 take flash attention before cuDNN's, as it did.
- **torchtune** and **torchao's optimizers**: the recipe and the benchmark that the tables name, on one card.

Experts are taken to be chosen evenly. Everything runs with torch 2.11, whatever version the run had. Nothing is fitted
to a row. Of a step of more than four microbatches (SimuMax) four are run, and the others take as long as the second.

What sources leave open:

- Release tests of Megatron-LM do not say on how many cards they ran. Three tell it by what they hold after a step (128
  and 256 cards); for the others 64 are assumed, or as many as their layout needs.
- One golden file (row 545) is a copy, byte for byte, of another test's: it is run with that test's settings.
- On Blackwell torch 2.12 gives each cuBLAS handle 32 MiB, torch 2.11 8 MiB: two handles would be the 50 MiB that some
  runs on GB200 lack here; which torch they had is not known.
- The H100s of Meta's runs (torchtitan, torchao) are limited to 500 W and have HBM2e at 2.4 TB/s. torchao's own roofline
  says that large products reach 60 % of the peak there; the clock of the tensor cores is taken from that.
- The B200s of torchao's table are "power limited", to what is not said. They are taken to do what another benchmark
  measured at 750 W, and come out twice as fast as published, in the right order.
- Float8 with a scale for each row runs kernels of PyTorch's own, which are slower than cuBLAS's; how much slower is not
  modelled. torchtitan's page calls its figures of this kind low.
"""


def write(path: Path = PAGE) -> None:
    path.write_text(text(), encoding="utf-8")


def text() -> str:
    return "\n".join([HEAD, *_memory_part(memory()), *_speed_part(speed()), *_excluded()]) + "\n"


def _memory_part(rows: list[Scored]) -> list[str]:
    lines = ["## Memory", "", f"| source | rows | answered | median error | within {MEMORY_BOUND:.0%} of all |", _RULE5]
    lines += [_summary_line(name, group, MEMORY_BOUND) for name, group in _groups(rows)]
    lines += ["", "The largest errors:", "", "| row | run | card | published GiB | predicted GiB | error |", _RULE6]
    answered = sorted((row for row in rows if row.error is not None), key=lambda row: -abs(row.error or 0.0))
    lines += [_line(row) for row in answered[:15]]
    return [*lines, *_unanswered(rows)]


def _speed_part(rows: list[Scored]) -> list[str]:
    right, total = pairs_in_order(rows)
    lines = ["## Speed", "", f"| source | rows | answered | median error | within {SPEED_BOUND:.0%} of all |", _RULE5]
    lines += [_summary_line(name, group, SPEED_BOUND) for name, group in _groups(rows)]
    share = f"{right / total:.0%}" if total else "none"
    lines += [
        "",
        f"Order of two runs of one model on one card that differ by more than 10 %: {right} of {total} right ",
    ]
    lines[-1] += f"({share})."
    lines += ["", "| row | run | layout | tokens/s a card | predicted | error |", _RULE6]
    for row in rows:
        if row.predicted:
            published, predicted = rate(row, row.published), rate(row, row.predicted)
            cells = (row.row["row"], _name(row), _layout(row), f"{published:,.0f}", f"{predicted:,.0f}")
            lines.append(f"| {' | '.join(cells)} | {predicted / published - 1:+.0%} |")
    return [*lines, *_unanswered(rows)]


_RULE5, _RULE6 = "|---|---|---|---|---|", "|---|---|---|---|---|---|"


def _groups(rows: list[Scored]) -> list[tuple[str, list[Scored]]]:
    found = defaultdict(list)
    for row in rows:
        found[row.by].append(row)
    return [*sorted(found.items()), ("**all**", rows)]


def _summary_line(name: str, rows: list[Scored], bound: float) -> str:
    of = summary(rows, bound)
    median = "–" if math.isnan(of.median) else f"{of.median:.1%}"
    return f"| {name} | {of.rows} | {of.answered} | {median} | {of.within:.0%} |"


def _name(row: Scored) -> str:
    return f"{row.by}: {row.row['model']}, {row.row['precision']}"


def _layout(row: Scored) -> str:
    parts = [
        f"{name} {row.row[name]}" for name in ("fsdp", "dp", "tp", "pp", "cp", "ep") if row.row[name] not in ("", "1")
    ]
    return f"{row.row['n_gpus']} × {row.row['gpu']}: {', '.join(parts)}"


def _line(row: Scored) -> str:
    cells = (row.row["row"], _name(row), row.row["gpu"], f"{row.published:.2f}", f"{row.predicted:.2f}")
    return f"| {' | '.join(cells)} | {row.error:+.1%} |"


def _unanswered(rows: list[Scored]) -> list[str]:
    missing = [row for row in rows if row.predicted is None]
    if not missing:
        return [""]
    reasons = Counter(row.result.get("failure") or "not run" for row in missing)
    lines = ["", "Not answered, and counted as outside:", "", "| rows | why |", "|---|---|"]
    return [*lines, *(f"| {count} | {_short(why)} |" for why, count in reasons.most_common()), ""]


def _short(why: str) -> str:
    """The reason without places of one machine."""
    text = why.split("the script failed: ")[-1].split(" (--traceback")[0].replace("|", "/")
    return text[:160]


def _excluded() -> list[str]:
    lines = ["## Left out before the draw", "", "| of | rows | why |", "|---|---|---|"]
    return [*lines, *(f"| {entry['of']} | {entry['rows']} | {entry['why']} |" for entry in read("excluded.csv"))]
