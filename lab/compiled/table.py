"""Write the tables of docs/lab/compiled-code.md from the records.

python -m lab.compiled.table
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.compiled.records import compiled_to_eager, measured, measured_seconds, predicted

PAGE = Path(__file__).parents[2] / "docs" / "lab" / "compiled-code.md"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
GRAPHS = ("reduce-overhead", "graph", "graphed")
OTHERS = ("liger", "fla", "torchao")


def kind_of(name: str) -> str:
    if name.startswith(OTHERS):
        return "kernels of others"
    if name == "gpt-graph-break" or not any(word in name for word in GRAPHS):
        return "compiled"
    return "CUDA graphs"


def rows() -> list[dict[str, Any]]:
    """What both know, the measured and the predicted."""
    ours, found = predicted(), []
    for name, record in measured().items():
        result = ours.get(name)
        if result is None or not record["steps"]:
            continue
        reserved = record["steps"][-1]["peak_reserved"]
        row = {
            "name": name, "kind": kind_of(name), "reserved": reserved, "off": result["peak_reserved"] / reserved - 1,
            "compiled": measured_seconds(record, "compiled"), "eager": measured_seconds(record, "eager"),
            "ratio": compiled_to_eager(record), "predicted": result["step_seconds"],
            "predicted_eager": result["eager_step_seconds"], "there": result.get("there"),
        }  # fmt: skip
        if row["predicted"] is None or record["name"].startswith(OTHERS):
            row["compiled"] = None  # no time, or of eager code
        found.append(row)
    return sorted(found, key=lambda row: (row["kind"], row["name"]))


def high(values: Sequence[float], share: float) -> float:
    """The value that this share does not exceed."""
    return sorted(values)[max(0, round(share * len(values)) - 1)]


def memory_errors(found: Sequence[dict[str, Any]], kind: str) -> list[float]:
    return [abs(row["off"]) for row in found if row["kind"] == kind]


def time_errors(found: Sequence[dict[str, Any]]) -> list[float]:
    return [abs(row["predicted"] / row["compiled"] - 1) for row in found if row["compiled"]]


def orders(found: Sequence[dict[str, Any]]) -> list[bool]:
    """Whether the faster way, eager or compiled, was predicted; where the two differ by more than 3 %. What took turns
    is predicted for the host that it was timed on."""
    return [
        _compiled_is_faster(row) == (row["ratio"] < 1)
        for row in found
        if row["compiled"] and row["predicted_eager"] and row["ratio"] and abs(row["ratio"] - 1) > 0.03
    ]


def _compiled_is_faster(row: dict[str, Any]) -> bool:
    compiled, eager = row["there"] or (row["predicted"], row["predicted_eager"])
    return bool(compiled < eager)


def page_text() -> str:
    found = rows()
    lines = ["| | workloads | median | 95th percentile | largest |", "|---|---|---|---|---|"]
    for kind in ("compiled", "CUDA graphs", "kernels of others"):
        errors = memory_errors(found, kind)
        lines.append(
            f"| reserved, {kind} | {len(errors)} | {statistics.median(errors):.2%} | {high(errors, 0.95):.2%} | "
            f"{max(errors):.2%} |"
        )
    times, right = time_errors(found), orders(found)
    lines.append(
        f"| step time | {len(times)} | {statistics.median(times):.0%} | {high(times, 0.95):.0%} | {max(times):.0%} |"
    )
    within = sum(error <= 0.2 for error in times) / len(times)
    lines += [
        "",
        f"{within:.0%} of the step times are within 20 %; which of eager and compiled code is faster was right in "
        f"{sum(right)} of {len(right)} pairs that differ by more than 3 %.",
        "",
        "| workload | reserved, MiB | predicted | step, ms | predicted | as eager code, ms | predicted |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found:
        cells = [row["name"], f"{row['reserved'] / 2**20:,.0f}", f"{row['off']:+.2%}"]
        for real, ours in (("compiled", "predicted"), ("eager", "predicted_eager")):
            known = row[real] and row[ours]
            cells += [f"{row[real] * 1e3:.1f}", f"{row[ours] / row[real] - 1:+.0%}"] if known else ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{page_text()}{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
