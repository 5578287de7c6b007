"""`fabric run` and `lightning run`, as lightning/fabric/cli.py has them: variables, then torchrun."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from vramcast.base.errors import UsageError
from vramcast.launchers.launch import Launch
from vramcast.launchers.options import OptionTable, names, whole
from vramcast.launchers.torchrun import CARDS, with_ranks

FABRIC = OptionTable(
    "fabric run", names("accelerator strategy devices num_nodes node_rank main_address main_port precision")
)
_PASSED_ON = ("accelerator", "strategy", "precision")


def split(words: list[str]) -> tuple[dict[str, str | bool], list[str]]:
    """Its options may also stand behind the script; what it does not know is the script's own."""
    options: dict[str, str | bool] = {}
    rest: list[str] = []
    at = 0
    while at < len(words):
        if words[at] == "--":
            rest += words[at + 1 :]
            break
        if FABRIC.has(words[at]):
            taken, after = FABRIC.split(words[at : at + (1 if "=" in words[at] else 2)])
            options |= taken
            at += (1 if "=" in words[at] else 2) - len(after)
        else:
            rest.append(words[at])
            at += 1
    if rest and rest[0].startswith("-"):
        raise UsageError(f"fabric run has no option {rest[0].partition('=')[0]}")
    return options, rest


def launch(options: Mapping[str, str | bool], target: Launch, environment: Mapping[str, str]) -> Launch:
    devices = str(options.get("devices", "1"))
    nodes = whole("fabric run", "num-nodes", options.get("num_nodes", "1"), 1)
    variables = {"LT_CLI_USED": "1", "LT_DEVICES": devices, "LT_NUM_NODES": str(nodes)}
    variables |= {f"LT_{name.upper()}": str(options[name]) for name in _PASSED_ON if name in options}
    if "OMP_NUM_THREADS" not in environment:
        variables["OMP_NUM_THREADS"] = str(os.cpu_count() or 1)
    processes = 1 if options.get("strategy") == "dp" else _processes(devices)
    started = replace(
        target,
        launcher="fabric run",
        processes=processes,
        nodes=nodes,
        environment={**target.environment, **variables},
    )
    return with_ranks(
        started,
        address=str(options.get("main_address", "127.0.0.1")),
        port=str(options.get("main_port", "29400")),
        node_rank=whole("fabric run", "node-rank", options.get("node_rank", "0")),
        environment={**environment, **variables},
    )


def _processes(devices: str) -> int:
    """A number, a list of cards (0,1), -1 or auto."""
    if devices in ("auto", "-1"):
        return CARDS
    if "," in devices:
        return len([word for word in devices.split(",") if word.strip()])
    return whole("fabric run", "devices", devices, 1)
