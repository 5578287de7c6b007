"""`vramcast gpus` and `vramcast watch` on a real GPU, held against nvidia-smi.

    python -m lab.measuring.watch_on_gpu --out DIR

Writes DIR/nvml.json (the recording for the tests), here.json, watch.jsonl, watch.txt and result.json: for a process
that holds memory, what NVML and nvidia-smi say at the same time, and what the watch saw of a command.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from lab import ROOT
from lab.measuring.record_nvml import HOLD, smi

_SLEEP = (
    "import time, torch; x = [torch.zeros(2**30, dtype=torch.uint8, device='cuda')]; time.sleep(2); "
    "x += [torch.zeros(2**30, dtype=torch.uint8, device='cuda') for _ in range(3)]; torch.cuda.synchronize(); "
    "time.sleep(3); free, total = torch.cuda.mem_get_info(); print(torch.cuda.memory_reserved(), total - free); "
    "raise SystemExit(7)"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {
        "record": _run([sys.executable, "lab/measuring/record_nvml.py", "--out", str(out / "nvml.json")])
    }
    result["same_moment"] = _same_moment(out)
    result["watch"] = _watch(out)
    result["container"] = {"cgroup": Path("/proc/1/cgroup").read_text()[:200], "pid_1": _read("/proc/1/comm")}
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 0


def _same_moment(out: Path) -> dict[str, Any]:
    """One process of known size: NVML through vramcast, and nvidia-smi."""
    held = subprocess.Popen([sys.executable, "-c", HOLD, "3"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert held.stdin is not None and held.stdout is not None
    reserved = held.stdout.readline().strip()
    here = _vramcast("gpus", "--here", "--json")
    (out / "here.json").write_text(here["stdout"])
    (out / "here.txt").write_text(_vramcast("gpus", "--here")["stdout"])
    listing = {
        "compute_apps": smi("--query-compute-apps=pid,used_memory"),
        "gpus": smi("--query-gpu=index,memory.total,memory.reserved,memory.used,memory.free"),
    }
    once = _vramcast("watch", "--once", "--pid", str(held.pid))
    held.stdin.close()
    held.wait()
    processes = [process for card in json.loads(here["stdout"])["gpus"] for process in card["processes"]]
    told = {f"{process['pid']}": process["used_bytes"] for process in processes}
    listed = {}
    for line in (listing["compute_apps"] or [])[1:]:
        pid, _, size = line.partition(", ")
        listed[pid] = int(size.split()[0]) * 2**20 if size.split()[:1] and size.split()[0].isdigit() else None
    return {
        "pid": held.pid, "reserved_bytes": reserved, "vramcast": told, "nvidia_smi": listed, "equal": told == listed,
        "smi": listing, "watch_once": once,
    }  # fmt: skip


def _watch(out: Path) -> dict[str, Any]:
    log = out / "watch.jsonl"
    log.unlink(missing_ok=True)
    command = f'{sys.executable} -c "{_SLEEP}"'
    done = _vramcast("watch", "--command", command, "--log", str(log), "--interval", "0.25", "--predicted", "4.6GiB")
    drawn = _vramcast("watch", "--replay", str(log))
    (out / "watch.txt").write_text(done["stdout"] + done["stderr"] + drawn["stdout"])
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return {
        "rc": done["rc"],
        "rows": len(rows),
        "basis": sorted({row["basis"] for row in rows if row["basis"]}),
        "peak_bytes": max((row["watched_bytes"] or 0 for row in rows), default=None),
        "stdout": done["stdout"][-500:],
        "stderr": done["stderr"][-1500:],
    }


def _vramcast(*words: str) -> dict[str, Any]:
    return _run([sys.executable, "-m", "vramcast", *words])


def _run(words: list[str]) -> dict[str, Any]:
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    return {"rc": done.returncode, "stdout": done.stdout, "stderr": done.stderr[-3000:]}


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        return str(error)


if __name__ == "__main__":
    raise SystemExit(main())
