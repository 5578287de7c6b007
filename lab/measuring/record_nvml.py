"""Record what NVML answers on this machine, for the tests: every C call that vramcast makes, with its reply or error.

    python -m lab.measuring.record_nvml --out recording.json [--gib 3]

Three moments: as it is; with a process that holds `--gib` GiB through torch; after it has ended. Beside each stands
what nvidia-smi printed at the same time. Identifiers of the machine (card UUIDs, paths of programs) are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lab.measuring.nvml_calls import Recorder, use_library
from vramcast.gpus.nvml import NvmlSession

HOLD = (
    "import sys, torch; x = torch.zeros(int(float(sys.argv[1]) * 2**30), dtype=torch.uint8, device='cuda'); "
    "torch.cuda.synchronize(); print(torch.cuda.memory_reserved(), flush=True); sys.stdin.read()"
)
_QUERIES = {
    "gpus": "--query-gpu=index,name,driver_version,memory.total,memory.reserved,memory.used,memory.free,"
    "utilization.gpu,temperature.gpu,mig.mode.current",
    "compute_apps": "--query-compute-apps=pid,used_memory",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gib", type=float, default=3.0)
    args = parser.parse_args()

    import pynvml

    pynvml._LoadNvmlLibrary()
    recorder = Recorder(pynvml.nvmlLib)
    moments = []
    with use_library(recorder):
        moments.append(_moment(recorder, "as it is"))
        held = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(args.gib)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert held.stdin is not None and held.stdout is not None
        reserved = held.stdout.readline().strip()
        if reserved:
            moments.append(_moment(recorder, "a process holds memory") | {
                "process": {"pid": held.pid, "user": os.environ.get("USER") or str(os.getuid()),
                            "reserved_bytes": int(reserved)}})  # fmt: skip
        else:
            print("no torch with a GPU here: the moment with a process is left out", file=sys.stderr)
        held.stdin.close()
        held.wait()
        time.sleep(2)  # the driver takes its memory back a moment later
        moments.append(_moment(recorder, "it has ended"))
    document = {
        "format": "vramcast-nvml-recording",
        "constructed": False,
        "binding": _version("nvidia-ml-py"),
        "moments": moments,
    }
    args.out.write_text(_scrub(json.dumps(document, indent=1)) + "\n", encoding="utf-8")
    print(f"{args.out}: {sum(len(moment['calls']) for moment in moments)} calls")
    return 0


def _moment(recorder: Recorder, label: str) -> dict[str, Any]:
    recorder.calls.clear()
    with NvmlSession() as session:
        session.survey()
    return {"moment": label, "calls": list(recorder.calls), "nvidia_smi": {k: smi(q) for k, q in _QUERIES.items()}}


def smi(query: str) -> list[str] | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    done = subprocess.run([program, query, "--format=csv"], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else [f"exit {done.returncode}", *done.stdout.splitlines()]


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _scrub(text: str) -> str:
    """Each UUID becomes one of its own that says nothing; programs keep their last name."""
    made: dict[str, str] = {}

    def stand_in(match: re.Match[str]) -> str:
        number = made.setdefault(match[2], f"{len(made):08x}-0000-0000-0000-000000000000")
        return match[1] + number

    text = re.sub(r"((?:GPU|MIG)-)([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", stand_in, text)
    return re.sub(r'"/(?:[^"/\s]+/)+([^"/\s]*)"', r'"\1"', text)


if __name__ == "__main__":
    raise SystemExit(main())
