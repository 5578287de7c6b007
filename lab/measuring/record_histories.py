"""Record allocator histories of real runs on a GPU, for tests/allocator/histories.

    PYTHONPATH=src python -m lab.measuring.record_histories OUT_DIR [--only NAME ...] [--jobs 4]

Each history is one workload in a process of its own, recorded from before its first allocation on, written as
OUT_DIR/NAME.json.gz, replayed at once and compared. Needs torch and torchvision with a CUDA GPU; --dry-run runs the
workloads in miniature on the CPU and records nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from vramcast.allocator.history import HistoryHeader, from_trace, save_history
from vramcast.allocator.replay import COMPARED_STATS, replay_history

GIB = 1 << 30
CHILD_SECONDS = 60
"""A child that takes longer is stopped and reported."""
MAX_ENTRIES = 1_000_000


@dataclass(frozen=True)
class Place:
    """Where a workload runs, and whether in miniature."""

    device: torch.device
    tiny: bool

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"


@dataclass(frozen=True)
class Recording:
    words: str
    run: Callable[[Place], None]
    conf: str = ""
    limit_bytes: int | None = None


# --- a GPT-2-like transformer ---------------------------------------------------------------------------------------


class GptBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(attended.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm_2(x)))))


class Gpt(nn.Module):
    def __init__(self, vocabulary: int, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def train_gpt(place: Place, shapes: list[tuple[int, int]]) -> int:
    """One AdamW step under bf16 autocast for each (batch, length); returns how many ran out of memory."""
    size = (97, 32, 2, 2, 16) if place.tiny else (50257, 768, 12, 8, 1024)
    model = Gpt(*size).to(place.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def loss_of(batch: int, length: int) -> Tensor:
        ids = torch.randint(0, size[0], (batch, length), device=place.device)
        with torch.autocast(place.device.type, dtype=torch.bfloat16):
            return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

    return sum(not step(optimizer, loss_of, *shape) for shape in ([(2, 8)] * 2 if place.tiny else shapes))


def step(optimizer: torch.optim.Optimizer, loss_of: Callable[[int, int], Tensor], batch: int, size: int) -> bool:
    """One training step; False if it ran out of memory."""
    try:
        loss_of(batch, size).backward()
        optimizer.step()
        return True
    except torch.OutOfMemoryError:
        return False
    finally:
        optimizer.zero_grad(set_to_none=True)


def gpt_steps(place: Place) -> None:
    train_gpt(place, [(8, 1024)] * 4)


def gpt_varying_lengths(place: Place) -> None:
    train_gpt(place, [(8, 512), (6, 777), (9, 391), (5, 1000), (11, 640)])


# --- a convolutional network with a new shape at every step ---------------------------------------------------------


def train_resnet(place: Place, shapes: list[tuple[int, int]]) -> int:
    """One SGD step for each (batch, image side); returns how many ran out of memory."""
    import torchvision

    model = torchvision.models.resnet50(weights=None).to(place.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def loss_of(batch: int, side: int) -> Tensor:
        images = torch.randn(batch, 3, side, side, device=place.device)
        labels = torch.randint(0, 1000, (batch,), device=place.device)
        return F.cross_entropy(model(images), labels)

    return sum(not step(optimizer, loss_of, *shape) for shape in ([(2, 32), (3, 40)] if place.tiny else shapes))


def resnet_varying_shapes(place: Place) -> None:
    train_resnet(place, [(16, 224), (24, 192), (12, 288), (40, 160), (9, 320), (28, 208)])


def resnet_into_the_limit(place: Place) -> None:
    """Growing batches: what was cached for a smaller one has to go, until even that does not help."""
    ooms = train_resnet(
        place, [(16, 224), (24, 224), (32, 224), (37, 224), (96, 224), (20, 256), (128, 224), (12, 224)]
    )
    if place.on_gpu and ooms == 0:
        raise RuntimeError("the limit was meant to be too small for this, but no step ran out of memory")


def resnet_and_gpt(place: Place) -> None:
    """Two models that want each other's cached memory."""
    shapes = [(20, 224), (28, 192)]
    train_resnet(place, shapes)
    train_gpt(place, [(2, 512), (3, 384), (2, 600)])
    train_resnet(place, shapes)


# --- random requests ------------------------------------------------------------------------------------------------


def stress(place: Place, seed: int, requests: int = 6000) -> None:
    """Log-uniform sizes from 1 B to 512 MiB on two streams, random lifetimes, the cache emptied now and then."""
    chance = random.Random(seed)
    top, requests = (12.0, 200) if place.tiny else (29.0, requests)
    streams = [torch.cuda.default_stream(), torch.cuda.Stream()] if place.on_gpu else []
    live: list[Tensor] = []
    for _ in range(requests):
        wanted = chance.choice((20, 60, 150))
        while len(live) > wanted and chance.random() < 0.6:
            live.pop(chance.randrange(len(live)))
        size = int(2 ** chance.uniform(0.0, top))
        try:
            if streams and chance.random() < 0.15:
                with torch.cuda.stream(streams[1]):
                    live.append(torch.empty(size, dtype=torch.uint8, device=place.device))
            else:
                live.append(torch.empty(size, dtype=torch.uint8, device=place.device))
        except torch.OutOfMemoryError:
            for _ in range(min(10, len(live))):
                live.pop(chance.randrange(len(live)))
        if place.on_gpu and live and chance.random() < 0.006:
            torch.cuda.empty_cache()
            # Nothing in a trace says that the cache was emptied, but a free right after it cannot have done it.
            live.pop()


RECORDINGS = {
    "gpt_bf16": Recording("GPT-2-like, 8 layers of 768, batch 8 x 1024, bf16 autocast, AdamW, 4 steps", gpt_steps),
    "resnet50_varying": Recording(
        "ResNet-50, fp32, SGD, another batch and image size at each step", resnet_varying_shapes
    ),
    "resnet50_varying_expandable": Recording(
        "ResNet-50, fp32, SGD, another batch and image size at each step",
        resnet_varying_shapes,
        "expandable_segments:True",
    ),
    "resnet50_limit": Recording(
        "ResNet-50 with growing batches under a limit of 4 GiB, out of memory caught",
        resnet_into_the_limit,
        "",
        4 * GIB,
    ),
    "resnet50_limit_expandable": Recording(
        "ResNet-50 with growing batches under a limit of 4 GiB, out of memory caught",
        resnet_into_the_limit,
        "expandable_segments:True",
        4 * GIB,
    ),
    "resnet50_gpt_max_split_gc": Recording(
        "ResNet-50, then a GPT-2-like model, then ResNet-50 again, under 6 GiB",
        resnet_and_gpt,
        "max_split_size_mb:64,garbage_collection_threshold:0.6",
        6 * GIB,
    ),
    "gpt_roundup_power2": Recording(
        "GPT-2-like, another batch and length at each step, bf16 autocast, AdamW",
        gpt_varying_lengths,
        "roundup_power2_divisions:8",
    ),
    "stress": Recording(
        "random torch.empty on two streams under a limit of 3 GiB, cache emptied now and then",
        lambda place: stress(place, 1),
        "",
        3 * GIB,
    ),
    "stress_expandable": Recording(
        "random torch.empty on two streams under a limit of 3 GiB, cache emptied now and then",
        lambda place: stress(place, 2),
        "expandable_segments:True",
        3 * GIB,
    ),
    "stress_max_split_gc": Recording(
        "random torch.empty on two streams under a limit of 3 GiB, cache emptied now and then",
        lambda place: stress(place, 3),
        "max_split_size_mb:64,garbage_collection_threshold:0.6",
        3 * GIB,
    ),
}


# --- one recording, in a child process ------------------------------------------------------------------------------


def record(name: str, path: Path) -> str:
    """Run a workload with the recorder on; returns a line for the report."""
    recording = RECORDINGS[name]
    torch.cuda.init()
    properties = torch.cuda.get_device_properties(0)
    allowed_bytes = None
    if recording.limit_bytes is not None:
        fraction = recording.limit_bytes / properties.total_memory
        torch.cuda.set_per_process_memory_fraction(fraction)
        allowed_bytes = int(fraction * properties.total_memory)
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=MAX_ENTRIES)
    if torch.cuda.memory_stats().get("allocation.all.allocated", 0):
        raise RuntimeError("something was allocated before the recording began")
    torch.manual_seed(0)

    recording.run(Place(torch.device("cuda"), tiny=False))

    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    header = HistoryHeader(
        torch=torch.__version__,
        card=properties.name,
        workload=recording.words,
        conf=recording.conf,
        total_bytes=properties.total_memory,
        allowed_bytes=allowed_bytes,
        final_stats={key: stats[key] for key in COMPARED_STATS if key in stats},
    )
    history = from_trace(trace, header)
    save_history(history, path)
    report = replay_history(history)
    verdict = "exact" if report.exact else f"DIFFERS\n{report.mismatch}\nstatistics: {report.stat_differences}"
    return (
        f"{len(history.events)} events, {path.stat().st_size / 1024:.0f} KiB, peak reserved "
        f"{report.peak_reserved_bytes / GIB:.2f} GiB, {stats['num_alloc_retries']} retries, {stats['num_ooms']} ooms, "
        f"{report.empty_caches} empty_cache; replay: {verdict}"
    )


def child_main(name: str, path: Path) -> int:
    try:
        print(record(name, path))
        return 0
    except Exception:
        traceback.print_exc(limit=8)
        return 1


# --- all of them ----------------------------------------------------------------------------------------------------


def start_child(name: str, out: Path) -> tuple[bool, str]:
    """Run one recording in a process of its own; returns whether it worked, and what it said."""
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_ALLOC_CONF")}
    if RECORDINGS[name].conf:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = RECORDINGS[name].conf
    command = [sys.executable, "-m", "lab.measuring.record_histories", str(out), "--child", name]
    started = time.monotonic()
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=CHILD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return False, f"stopped after {CHILD_SECONDS} s"
    output = done.stdout.strip()
    if done.returncode != 0:
        output = f"exit status {done.returncode}\n{output}\n{done.stderr.strip()[-3000:]}"
    return done.returncode == 0, f"{output} ({time.monotonic() - started:.0f} s)"


def dry_run(names: list[str]) -> int:
    for name in names:
        RECORDINGS[name].run(Place(torch.device("cpu"), tiny=True))
        print(f"{name}: ran in miniature on the CPU")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the directory the histories go to")
    parser.add_argument("--only", nargs="+", choices=list(RECORDINGS), help="these recordings only")
    parser.add_argument("--jobs", type=int, default=4, help="processes at a time")
    parser.add_argument("--dry-run", action="store_true", help="run the workloads in miniature, without a GPU")
    parser.add_argument("--child", choices=list(RECORDINGS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = arguments.only or list(RECORDINGS)
    if arguments.child:
        return child_main(arguments.child, arguments.out / f"{arguments.child}.json.gz")
    if arguments.dry_run:
        return dry_run(names)
    if not torch.cuda.is_available():
        print("no CUDA GPU here; --dry-run checks the workloads without one", file=sys.stderr)
        return 2
    arguments.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(lambda name: start_child(name, arguments.out), names))
    for name, (worked, output) in zip(names, results, strict=True):
        print(f"{name}: {'' if worked else 'FAILED: '}{output}")
    return 0 if all(worked and "replay: exact" in output for worked, output in results) else 1


if __name__ == "__main__":
    sys.exit(main())
