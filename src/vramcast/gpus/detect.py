"""The card in this machine, if there is one. Needs no torch and creates no CUDA context."""

from __future__ import annotations

import shutil
import subprocess

from vramcast.errors import UsageError
from vramcast.gpus.catalogue import find_gpu
from vramcast.gpus.spec import GpuSpec
from vramcast.units import MIB


def detect_gpu() -> GpuSpec | None:
    """The first card that nvidia-smi lists; one that is not in gpus.toml is known by its size alone."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_smi(answer.stdout) if answer.returncode == 0 else None


def parse_smi(text: str) -> GpuSpec | None:
    """The first line of "name, total MiB"."""
    first = text.strip().splitlines()[:1]
    name, _, total_mib = first[0].rpartition(",") if first else ("", "", "")
    if not name or not total_mib.strip().isdigit():
        return None
    try:
        return find_gpu(name)
    except UsageError:
        return GpuSpec.from_memory(int(total_mib) * MIB)
