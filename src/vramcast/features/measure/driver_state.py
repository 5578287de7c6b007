"""What the driver says this process uses, and the versions of everything that decides a measurement."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from typing import Any

import torch

from vramcast.base.processes import ending_with_this

_MIB = 1024 * 1024
_PACKAGES = (
    "transformers",
    "diffusers",
    "torchvision",
    "torchaudio",
    "timm",
    "peft",
    "bitsandbytes",
    "accelerate",
    "torchao",
)


def process_used_bytes(pid: int | None = None) -> int | None:
    """GPU memory of one process as NVML counts it, context and loaded kernels included; None if it cannot say."""
    pid = os.getpid() if pid is None else pid
    try:
        return _nvml_process_bytes(pid)
    except Exception:  # NVML is optional, and each of its bindings raises errors of its own
        return _nvidia_smi_process_bytes(pid)


def device_used_bytes() -> int | None:
    """Memory in use on the first card by all processes; None without NVML. Creates no CUDA context."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
    except Exception:
        text = _nvidia_smi("--query-gpu=memory.used")
        return int(text.splitlines()[0]) * _MIB if text else None


def environment() -> dict[str, Any]:
    """Card, driver and library versions; needs a CUDA context."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "gpu_total_bytes": properties.total_memory,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "driver": _nvidia_smi("--query-gpu=driver_version").partition("\n")[0] or None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "allocator_conf": os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or "",
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def _nvml_process_bytes(pid: int) -> int | None:
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
        if process.pid == pid and process.usedGpuMemory is not None:
            return int(process.usedGpuMemory)
    return None


def _nvidia_smi_process_bytes(pid: int) -> int | None:
    for line in _nvidia_smi("--query-compute-apps=pid,used_memory").splitlines():
        first, _, used = line.partition(",")
        if first.strip() == str(pid) and used.strip().isdigit():
            return int(used) * _MIB
    return None


def _nvidia_smi(query: str) -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    answer = subprocess.run(
        [program, query, "--format=csv,noheader,nounits"],
        capture_output=True, text=True, timeout=30, check=False, preexec_fn=ending_with_this(),
    )  # fmt: skip
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
