"""Record histories from PyTorch's own allocator without a GPU, for tests/allocator/histories_standin.

    python -m lab.measuring.standin_cuda.record OUT_DIR TORCH_PACKAGE_DIR... --cuda-include DIR

TORCH_PACKAGE_DIR is the installed "torch" folder of a CUDA build: its headers and its libc10_cuda.so are used, on top
of a stand-in for libcudart (cudart.cpp) that counts memory and makes up addresses. So the allocator of a torch version
that no GPU machine at hand has can still be compared with, to the byte. Needs g++ and the headers of CUDA 13.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))

from vramcast.allocator.history import Event, History, HistoryHeader, save_history
from vramcast.allocator.replay import replay_history

HERE = Path(__file__).resolve().parent
TOTAL_BYTES = 16 << 30
TRACE_ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
)
"""TraceEntry::Action, in the order of the enumeration."""

RUNS = {
    # name: (configuration, memory fraction, what the driver can give, seed)
    "plain": ("", 1.0, None, 1),
    "expandable": ("expandable_segments:True", 0.2, None, 2),
    "full_card": ("expandable_segments:True,large_segment_size_mb:32", 1.0, 2 << 30, 3),
    "max_split_gc": ("max_split_size_mb:64,garbage_collection_threshold:0.6", 0.15, None, 4),
}


def calls(seed: int, count: int = 2400) -> list[str]:
    """Random calls whose sizes often repeat, so that many free blocks are equal and the tie rule matters."""
    chance = random.Random(seed)
    sizes = [int(2 ** chance.uniform(6, 28)) for _ in range(40)]
    live: list[int] = []
    lines: list[str] = []
    made = 0
    for _ in range(count):
        if live and chance.random() < (0.45 if len(live) < 150 else 0.9):
            lines.append(f"f {live.pop(chance.randrange(len(live)))}")
        else:
            size = chance.choice(sizes) if chance.random() < 0.9 else int(2 ** chance.uniform(0, 28))
            lines.append(f"m {size} {chance.choice((0, 0, 0, 7))}")
            live.append(made)
            made += 1
        if live and chance.random() < 0.004:
            lines += ["e", f"f {live.pop()}"]
    return lines


def build(torch_dir: Path, cuda_include: Path, folder: Path) -> None:
    """Compile the stand-in and the driver against one torch."""
    for name in ("libc10.so", "libc10_cuda.so"):
        shutil.copy(torch_dir / "lib" / name, folder / name)
    listed = subprocess.run(["nm", "-D", "--undefined-only", folder / "libc10_cuda.so"], capture_output=True, text=True)
    defined = set(re.findall(r"\b(cuda\w+)\(", (HERE / "cudart.cpp").read_text()))
    missing = sorted(set(re.findall(r"\b(cuda\w+)@", listed.stdout)) - defined)
    (folder / "rest.c").write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in missing))
    (folder / "version").write_text("libcudart.so.13 { global: *; };\n")
    run = lambda *command: subprocess.run([str(part) for part in command], check=True)
    run("gcc", "-c", "-fPIC", "-w", folder / "rest.c", "-o", folder / "rest.o")
    run(
        "g++",
        "-O1",
        "-fPIC",
        "-shared",
        f"-I{cuda_include}",
        HERE / "cudart.cpp",
        folder / "rest.o",
        "-o",
        folder / "libcudart.so.13",
        "-Wl,-soname,libcudart.so.13",
        f"-Wl,--version-script={folder / 'version'}",
    )
    run(
        "g++",
        "-O1",
        "-std=c++20",
        "-w",
        f"-I{torch_dir / 'include'}",
        f"-I{cuda_include}",
        HERE / "drive.cpp",
        "-o",
        folder / "drive",
        f"-L{folder}",
        "-lc10_cuda",
        "-lc10",
        "-l:libcudart.so.13",
        f"-Wl,-rpath,{folder}",
    )


def record(folder: Path, version: str, name: str) -> History:
    """Run one list of calls through the real allocator."""
    conf, fraction, capacity, seed = RUNS[name]
    environment = {
        **os.environ,
        "LD_PRELOAD": str(folder / "libcudart.so.13"),
        "PYTORCH_CUDA_ALLOC_CONF": conf,
        # Sharing between processes needs more of the driver than there is here.
        "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC": "0",
        "STANDIN_TOTAL": str(TOTAL_BYTES),
        "STANDIN_CAPACITY": str(capacity or TOTAL_BYTES),
        "STANDIN_SEED": str(seed),
    }
    done = subprocess.run(
        [folder / "drive", repr(fraction)],
        input="\n".join(calls(seed)) + "\n",
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    before, _, trace = done.stdout.partition("trace\n")
    stats = {key: int(value) for key, value in (line.split() for line in before.splitlines())}
    events = []
    for line in trace.splitlines():
        code, address, size, stream = map(int, line.split())
        action = TRACE_ACTIONS[code]
        events.append(Event(action, 0 if action == "oom" else address, size, stream))
    header = HistoryHeader(
        torch=version,
        card="none: PyTorch's allocator on a stand-in for the CUDA runtime",
        workload="random requests on two streams",
        conf=conf,
        total_bytes=TOTAL_BYTES,
        allowed_bytes=int(fraction * TOTAL_BYTES) if fraction < 1.0 else None,
        capacity_bytes=capacity,
        final_stats=stats,
    )
    return History(header, tuple(events))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("torch", type=Path, nargs="+", help="installed torch folders")
    parser.add_argument("--cuda-include", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    exact = True
    for torch_dir in arguments.torch:
        version = re.search(r"__version__ = '([^']+)'", (torch_dir / "version.py").read_text())
        assert version is not None
        with tempfile.TemporaryDirectory() as folder:
            build(torch_dir, arguments.cuda_include, Path(folder))
            for name in RUNS:
                history = record(Path(folder), version[1], name)
                short = ".".join(version[1].split(".")[:2])
                path = arguments.out / f"torch_{short}_{name}.json.gz"
                save_history(history, path)
                report = replay_history(history)
                exact &= report.exact
                print(path.name, f"{len(history.events)} events,", "exact" if report.exact else report.mismatch)
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
