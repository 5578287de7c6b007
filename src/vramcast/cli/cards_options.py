"""--gpus, --nodes and --parallel of the verbs that take a job."""

from __future__ import annotations

import argparse
import re
from typing import Any

from vramcast.base.errors import CannotPredict, UsageError
from vramcast.cli.ranks import count

_STRATEGIES = ("ddp", "fsdp", "hsdp")
_DEGREES = {"tp": "gpus.tensor", "pp": "gpus.pipeline"}
_BY_PROGRAM = ("cp", "ep", "sp")
"""What a program can do, and a job cannot say."""
_PART = re.compile(r"([a-z]+)(?:=?([0-9]+))?")


def add_several_gpus_options(parser: argparse.ArgumentParser) -> None:
    """The same words as `run` has."""
    parser = parser.add_argument_group("several GPUs")  # type: ignore[assignment]
    parser.add_argument("--gpus", dest="cards_per_node", type=count, metavar="N", help="cards of each node")
    parser.add_argument("--nodes", type=count, metavar="N", help="machines with that many cards each (default 1)")
    parser.add_argument(
        "--parallel", metavar="HOW",
        help="ddp, fsdp, hsdp, zero1, zero2, zero3, tp, pp, or several with their sizes: fsdp+tp=8+pp=16 (default ddp)",
    )  # fmt: skip


def several_gpus_changes(args: argparse.Namespace) -> dict[str, Any]:
    """What the options say, as changes to the job."""
    gpus, nodes, parallel = (getattr(args, name, None) for name in ("cards_per_node", "nodes", "parallel"))
    if gpus is None and nodes is None and parallel is None:
        return {}
    if gpus is None:
        raise UsageError("--nodes and --parallel need --gpus N: how many cards each node has")
    changes: dict[str, Any] = {"gpus.count": gpus * (nodes or 1), "gpus.per_node": gpus}
    for part in (parallel or "").replace(",", "+").split("+"):
        if part.strip():
            changes |= _part(part.strip().lower(), gpus, nodes or 1)
    divided = changes.get("gpus.tensor", 1) * changes.get("gpus.pipeline", 1)
    if "gpus.strategy" not in changes and divided == changes["gpus.count"]:
        changes["gpus.strategy"] = "none"
    return changes


def _part(text: str, gpus: int, nodes: int) -> dict[str, Any]:
    match = _PART.fullmatch(text)
    name, size = (match[1], match[2]) if match else (text, None)
    if name in _STRATEGIES and size is None:
        return {"gpus.strategy": name}
    if name == "hsdp":
        return {"gpus.strategy": "hsdp", "gpus.replicas": int(size or 1)}
    if name == "zero" and size in ("1", "2", "3"):
        return {"gpus.strategy": "deepspeed", "gpus.zero_stage": int(size)}
    if name in _DEGREES:
        usual = gpus if name == "tp" or nodes == 1 else nodes
        return {_DEGREES[name]: int(size) if size else usual}
    if name in _BY_PROGRAM:
        raise CannotPredict(
            f"--parallel {text}: a job cannot say this; `vramcast run --gpus {gpus} train.py` runs a program that does"
        )
    raise UsageError(f"--parallel {text}: write ddp, fsdp, hsdp, zero1 to zero3, tp or pp, or several: fsdp+tp=8+pp=16")
