"""torchrun, python -m torch.distributed.run and torch.distributed.launch, as torch/distributed/run.py has them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from vramcast.base.errors import UsageError
from vramcast.launchers.launch import Launch
from vramcast.launchers.options import Options, OptionTable, names, whole

_WITH_VALUE = names("""
    nnodes nproc_per_node rdzv_backend rdzv_endpoint rdzv_id rdzv_conf max_restarts monitor_interval start_method
    event_log_handler role log_dir redirects tee local_ranks_filter duplicate_stdout_filters duplicate_stderr_filters
    node_rank master_addr master_port local_addr logs_specs numa_binding signals_to_handle
""")
_FLAGS = names("standalone module no_python run_path virtual_local_rank")
_SHORT = {"m": "module", "r": "redirects", "t": "tee"}
TORCHRUN = OptionTable("torchrun", _WITH_VALUE, _FLAGS, _SHORT, abbreviated=True)
LAUNCH = OptionTable("torch.distributed.launch", _WITH_VALUE, _FLAGS | {"use_env"}, _SHORT, abbreviated=True)

_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"

CARDS = 1
"""A virtual machine has one card: what `--nproc-per-node gpu` means."""


def launch(options: Options, target: Launch, environment: Mapping[str, str], table: OptionTable = TORCHRUN) -> Launch:
    """`target`: what is started in each process, as far as it is known."""
    given = {name: options.get(name, environment.get(f"PET_{name.upper()}", "")) for name in _WITH_VALUE}
    processes = _processes(table.command, str(given["nproc_per_node"] or "1"))
    nodes = _nodes(table.command, str(given["nnodes"] or "1"))
    is_legacy = table is LAUNCH and "use_env" not in options
    started = with_ranks(
        replace(target, launcher=table.command, processes=processes, nodes=nodes),
        address=str(given["master_addr"] or _host(str(given["rdzv_endpoint"])) or _own_address(options)),
        port=str(given["master_port"] or _port(str(given["rdzv_endpoint"])) or "29500"),
        role=str(given["role"] or "default"),
        restarts=str(given["max_restarts"] or "0"),
        run_id=str(given["rdzv_id"] or "none"),
        node_rank=whole(table.command, "node-rank", given["node_rank"] or "0"),
        signals=str(given["signals_to_handle"] or _SIGNALS),
        environment=environment,
    )
    return replace(started, local_rank_option="--local-rank" if is_legacy else "")


def with_ranks(
    target: Launch,
    *,
    address: str,
    port: str,
    role: str = "default",
    restarts: str = "0",
    run_id: str = "none",
    node_rank: int = 0,
    signals: str = _SIGNALS,
    environment: Mapping[str, str],
) -> Launch:
    """What torch's elastic agent puts into the environment of its workers (local_elastic_agent.py)."""
    world = str(target.world_size)
    variables = {
        "ROLE_NAME": role,
        "LOCAL_WORLD_SIZE": str(target.processes),
        "WORLD_SIZE": world,
        "GROUP_WORLD_SIZE": str(target.nodes),
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": restarts,
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": signals,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": environment.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    if target.processes > 1 and "OMP_NUM_THREADS" not in environment:
        variables["OMP_NUM_THREADS"] = "1"
    return replace(
        target,
        node_rank=node_rank,
        environment={**target.environment, **variables},
        rank_variables=("RANK", "ROLE_RANK"),
        local_rank_variables=("LOCAL_RANK",),
        node_rank_variables=("GROUP_RANK",),
    )


def _processes(command: str, text: str) -> int:
    if text in ("gpu", "auto"):
        return CARDS
    if text == "cpu":
        return os.cpu_count() or 1
    return whole(command, "nproc-per-node", text, 1)


def _nodes(command: str, text: str) -> int:
    """A range MIN:MAX stands for as many as there are: the fewest that it would start with."""
    least, _, most = text.partition(":")
    if most and whole(command, "nnodes", most, 1) < whole(command, "nnodes", least, 1):
        raise UsageError(f"{command}: --nnodes {text}: the second number must not be smaller")
    return whole(command, "nnodes", least, 1)


def _own_address(options: Options) -> str:
    return "localhost" if "standalone" in options else "127.0.0.1"


def _host(endpoint: str) -> str:
    return endpoint.rpartition(":")[0] if ":" in endpoint else endpoint


def _port(endpoint: str) -> str:
    return endpoint.rpartition(":")[2] if ":" in endpoint else ""
