"""The `deepspeed` command, as deepspeed/launcher/runner.py and launch.py have it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace

from vramcast.base.errors import UsageError
from vramcast.launchers.launch import Launch
from vramcast.launchers.options import Options, OptionTable, names, whole
from vramcast.launchers.torchrun import CARDS

DEEPSPEED = OptionTable(
    "deepspeed",
    names("""
        hostfile include exclude num_nodes min_elastic_nodes max_elastic_nodes num_gpus num_accelerators master_port
        master_addr node_rank launcher launcher_args enable_each_rank_log autotuning bind_core_list ssh_port venv_script
        log_level
    """),
    names("""
        module no_python no_local_rank no_ssh no_ssh_check force_multi save_pid elastic_training bind_cores_to_rank
        quiet
    """),
    {"H": "hostfile", "i": "include", "e": "exclude", "q": "quiet"},
    abbreviated=True,
)
_HOSTFILE = "/job/hostfile"
_SLOTS = re.compile(r"(\S+)\s+slots=(\d{1,4})")
_MOST_BYTES = 1 << 20

Hosts = dict[str, list[int]]


def launch(options: Options, target: Launch, environment: Mapping[str, str]) -> Launch:
    if "autotuning" in options:
        raise UsageError("deepspeed --autotuning starts many trainings: leave it out to predict one of them")
    hosts = _chosen(options, _hosts(options), environment)
    slots = next(iter(hosts.values()))
    if any(len(other) != len(slots) for other in hosts.values()):
        raise UsageError("deepspeed: nodes with different numbers of GPUs are not followed")
    node_rank = whole("deepspeed", "node_rank", options.get("node_rank", "0"))
    variables = {
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, slots)),
        "MASTER_ADDR": str(options.get("master_addr") or "127.0.0.1"),
        "MASTER_PORT": str(options.get("master_port", "29500")),
        "WORLD_SIZE": str(len(slots) * len(hosts)),
        "CROSS_SIZE": str(len(hosts)),
        "LOCAL_SIZE": str(len(slots)),
    }
    return replace(
        target,
        launcher="deepspeed",
        processes=len(slots),
        nodes=len(hosts),
        node_rank=node_rank,
        environment={**target.environment, **variables},
        rank_variables=("RANK",),
        local_rank_variables=("LOCAL_RANK",),
        node_rank_variables=("CROSS_RANK",),
        local_rank_option="" if "no_local_rank" in options or "elastic_training" in options else "--local_rank",
    )


def _hosts(options: Options) -> Hosts:
    """Each node's cards: those of the host file, or the one of this virtual machine."""
    path = str(options.get("hostfile", _HOSTFILE))
    if not os.path.isfile(path):
        return {"localhost": list(range(CARDS))}
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file.read(_MOST_BYTES).splitlines()]
    hosts: Hosts = {}
    for line in lines:
        match = _SLOTS.match(line)
        if match is not None:
            hosts[match[1]] = list(range(int(match[2])))
        elif line and not line.startswith("#"):
            raise UsageError(f"{path}: {line[:60]!r} is not of the form HOST slots=N")
    if not any(hosts.values()):
        raise UsageError(f"{path}: names no host")
    return hosts


def _chosen(options: Options, hosts: Hosts, environment: Mapping[str, str]) -> Hosts:
    include, exclude = str(options.get("include", "")), str(options.get("exclude", ""))
    gpus = options.get("num_gpus", options.get("num_accelerators"))
    nodes = options.get("num_nodes")
    if (gpus or nodes) and (include or exclude):
        raise UsageError("deepspeed: --include and --exclude do not go with --num_gpus and --num_nodes")
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    if visible and not (include or exclude or gpus or nodes) and list(hosts) == ["localhost"]:
        include = f"localhost:{visible}"
    if include:
        named = _places(include)
        hosts = {host: slots or hosts.get(host, [0]) for host, slots in named.items()}
    elif exclude:
        named = _places(exclude)
        hosts = {
            host: [slot for slot in slots if slot not in named[host]] if host in named else slots
            for host, slots in hosts.items()
            if host not in named or named[host]
        }
    if nodes is not None:
        wanted = whole("deepspeed", "num_nodes", nodes, 1)
        if wanted > len(hosts):
            raise UsageError(f"deepspeed: --num_nodes {wanted}, and the host file names {len(hosts)}")
        hosts = dict(list(hosts.items())[:wanted])
    if gpus is not None:
        slots = list(range(whole("deepspeed", "num_gpus", gpus, 1)))
        hosts = dict.fromkeys(hosts, slots)
    if not hosts or not all(hosts.values()):
        raise UsageError("deepspeed: no GPU is left to run on")
    return hosts


def _places(text: str) -> Hosts:
    """NAME[:SLOT,SLOT...][@NAME...]."""
    hosts: Hosts = {}
    for part in text.split("@"):
        host, _, slots = part.partition(":")
        words = [word.strip() for word in slots.split(",") if word.strip()]
        if not host or not all(word.isdecimal() and len(word) < 5 for word in words):
            raise UsageError(f"deepspeed: {text[:60]!r} is not of the form HOST:0,1@HOST:0")
        hosts[host] = [int(word) for word in words]
    return hosts
