"""The largest batch under a memory limit: predicted without a GPU, then looked for on one.

    python -m lab.comparing.largest_batch --predict                  # anywhere: records/largest_batch/predicted.json
    python -m lab.comparing.largest_batch --measure --out FOLDER     # on the GPU: FOLDER/measured.jsonl
    python -m lab.comparing.largest_batch --report                   # compares the two

The limit is that of torch.cuda.set_per_process_memory_fraction: it counts what PyTorch's allocator reserves, and not
the CUDA context. A gigabyte is 10⁹ bytes here.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab import DATA
from lab.measuring.children import run_each
from lab.measuring.measure_corpus import Workload, forks_are_safe, load_corpus, preload

FOLDER = DATA / "records" / "largest_batch"
PREDICTED, MEASURED = FOLDER / "predicted.json", FOLDER / "measured.jsonl"
TIMES = DATA / "records" / "times" / "h200-torch2.11.0.jsonl.gz"
GPU = "h200"
LIMITS_GB = (8, 16, 24, 40, 80)
GB = 10**9
BUDGET_GB = 120
MOST = 4096
LONGEST_STEP_SECONDS = 2.0
LONG_STEP_SECONDS = 0.5
STEPS = 20
STEPS_OF_A_TRIAL = 3
"""Enough to see that a batch does not fit. What has run for three steps may still run out of memory in the fourth, so
the largest that was found runs all of them."""
NAMES = (
    "gpt2-fp32", "gpt2-bf16", "llama-1b-foreach", "llama-1b-pure-bf16", "llama-1b-ckpt-reentrant", "qwen2-05b",
    "bert-fp16-scaler", "roberta-large-bf16", "t5-v11-bf16", "bart-base-fp16", "whisper-small-bf16",
    "wav2vec2-base-fp32", "lstm-bidirectional-fp16", "transformer-encoder-fp16", "vit-large-bf16", "swin-tiny-fp32",
    "convnext-base-bf16", "resnet50-fp32", "resnet50-cl-fp16", "efficientnet-b3-cl-bf16", "vgg16-fp32",
    "segformer-b2-bf16", "unet2d-fp32", "r3d-18-fp32", "ddpm-unet-small-bf16", "sd15-unet-bf16", "sd-vae-bf16",
    "dit-xl-bf16", "dcgan-128", "fno2d-256",
    # Measured once only, after the predictor was done.
    "densenet121-fp32", "mobilenet-v3-cl-fp16", "regnet-y-8gf-cl-fp16", "deeplabv3-r50-fp32", "unet3d-fp16",
    "ddpm-unet-fp32", "r2plus1d-cl-fp16", "ho-edsr-fp32", "ho-hrnet-w32-cl-fp32", "ho-xception-fp32", "bert-fp32",
    "mvit-v1-b-bf16", "stylegan-r1", "ho-attention-unet-fp16", "ho-vq-autoencoder-fp32", "deepspeech2",
    "transformer-encoder-fp32", "ho-convnextv2-tiny-cl-bf16", "llama-lora", "ho-dinov2-base-fp16", "detr-like",
    "conformer-ctc",
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """One workload under one limit, and what was predicted of it."""

    name: str
    limit_gb: int
    largest: int
    advised: int
    traces: int
    step_seconds: float
    """Guessed from a recorded step of another batch; it only orders the measurements."""

    @property
    def limit_bytes(self) -> int:
        return self.limit_gb * GB


# -- predicting -----------------------------------------------------------------------------------------------------


def predict(names: Iterable[str], path: Path, jobs: int) -> int:
    """What is predicted takes the place of what the file has of the same workloads."""
    workloads = {workload.name: workload for workload in load_corpus()}
    chosen = [workloads[name] for name in names if not workloads[name].missing]
    preload(chosen)
    for module in (
        "torch._dynamo",
        "vramcast.prediction.tracing",
        "lab.comparing.steadier_batch",
        "vramcast.jobs.validation",
    ):
        __import__(module)
    pairs = load_pairs(path) if path.exists() else []
    path.parent.mkdir(parents=True, exist_ok=True)
    for workload, outcome in run_each(_predict_one, chosen, jobs=jobs, timeout_seconds=3600):
        print(f"{workload.name:<28}", outcome.error or _said(outcome.value), f"({outcome.seconds:.0f} s)", flush=True)
        if not outcome.error:
            pairs = [pair for pair in pairs if pair.name != workload.name] + outcome.value
            pairs.sort(key=lambda pair: (NAMES.index(pair.name), pair.limit_gb))
            document = {"gpu": GPU, "steps": STEPS, "pairs": [asdict(pair) for pair in pairs]}
            path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{len(pairs)} pairs of {len({pair.name for pair in pairs})} workloads in {path}")
    return 0


def _predict_one(workload: Workload) -> list[Pair]:
    from lab.comparing.steadier_batch import advised
    from vramcast.gpus import find_gpu
    from vramcast.jobs.validation import make_job
    from vramcast.prediction.scaling import Batches

    arguments = {key: value for key, value in workload.args.items() if key != "batch"}
    job = make_job(
        {"step": {"factory": workload.factory, "arguments": arguments}, "sizes": {"batch": workload.args["batch"]}},
        workload.name,
    )
    gpu = find_gpu(GPU)
    batches = Batches(job, settled_steps=STEPS)
    seconds = _sample_seconds().get(workload.name, 0.0)
    pairs = []
    for limit_gb in LIMITS_GB:
        largest = batches.largest(gpu, MOST, limit_gb * GB)
        if not 0 < largest.batch < MOST or seconds * largest.batch > LONGEST_STEP_SECONDS:
            continue
        batch = advised(batches, largest, gpu, limit_gb * GB)
        pairs.append(
            Pair(workload.name, limit_gb, largest.batch, batch, batches.n_traced, round(seconds * largest.batch, 3))
        )
    return pairs


def _sample_seconds() -> dict[str, float]:
    """Recorded seconds of a step for each of its samples."""
    with gzip.open(TIMES, "rt") as lines:
        records = [json.loads(line) for line in lines]
    return {
        record["name"]: record["step_seconds"] / record["args"]["batch"]
        for record in records
        if "batch" in record["args"]
    }


def _said(pairs: list[Pair]) -> str:
    return ", ".join(f"{pair.limit_gb} GB {pair.largest} ({pair.advised})" for pair in pairs) or "no pair"


def load_pairs(path: Path = PREDICTED) -> list[Pair]:
    return [Pair(**pair) for pair in json.loads(path.read_text())["pairs"]]


# -- on the GPU -----------------------------------------------------------------------------------------------------


def measure(pairs: list[Pair], out: Path, deadline_seconds: float, jobs: int, budget_gb: float) -> int:
    """One process a trial: what an earlier trial left in the cache, or broke, is not there for the next."""
    started = time.monotonic()
    corpus = {workload.name: workload for workload in load_corpus()}
    tasks = [pair for pair in in_order(pairs) if not corpus[pair.name].missing]
    preload([corpus[name] for name in {pair.name for pair in tasks}])
    if not forks_are_safe():
        raise SystemExit("the parent of the trials has touched CUDA")
    deadline = started + deadline_seconds
    threads = max(1, (os.cpu_count() or 4) // jobs)
    print(f"{len(tasks)} pairs, ready in {time.monotonic() - started:.0f} s", flush=True)

    def work(pair: Pair) -> dict[str, Any] | None:
        return _measure_pair(pair, corpus[pair.name], deadline, threads)

    out.mkdir(parents=True, exist_ok=True)
    done = 0
    with (out / MEASURED.name).open("a") as lines:
        for pair, outcome in run_each(
            work, tasks, jobs=jobs, timeout_seconds=deadline_seconds + 300, threads=threads,
            weight=lambda pair: pair.limit_gb, budget=budget_gb,
        ):  # fmt: skip
            if outcome.value is None and not outcome.error:
                continue
            done += 1
            record = outcome.value or {"name": pair.name, "limit_gb": pair.limit_gb, "error": outcome.error}
            record["seconds"] = round(outcome.seconds, 1)
            lines.write(json.dumps(record) + "\n")
            lines.flush()
            print(line_for(record), f"({outcome.seconds:.0f} s)", flush=True)
    print(f"{done} of {len(tasks)} pairs measured in {time.monotonic() - started:.0f} s")
    return 0


def in_order(pairs: Iterable[Pair]) -> list[Pair]:
    """Each workload once, at limits that take turns, then each again, so that the beginning is spread over both; steps
    that take long come last."""
    every = list(pairs)
    names = list(dict.fromkeys(pair.name for pair in every))
    here = {(pair.name, pair.limit_gb): pair for pair in every}
    count = len(LIMITS_GB)
    turns = ((name, LIMITS_GB[(i + turn) % count]) for turn in range(count) for i, name in enumerate(names))
    return sorted((here[key] for key in turns if key in here), key=lambda pair: pair.step_seconds > LONG_STEP_SECONDS)


def _measure_pair(pair: Pair, workload: Workload, deadline: float, threads: int) -> dict[str, Any] | None:
    if time.monotonic() > deadline:
        return None
    trials: list[dict[str, Any]] = []

    def run(batch: int, steps: int) -> bool | None:
        """Whether it ran; None: there is no time, or it failed for another reason."""
        if time.monotonic() > deadline:
            return None
        task = (workload, batch, pair.limit_bytes, steps)
        ((_, outcome),) = run_each(trial, [task], jobs=1, timeout_seconds=180, threads=threads)
        result = outcome.value or {"outcome": "error", "error": outcome.error}
        trials.append({"batch": batch, "steps": steps, "seconds": round(outcome.seconds, 1), **result})
        return {"ran": True, "out of memory": False}.get(result["outcome"])

    advised_ran = run(pair.advised, STEPS)
    if advised_ran is None:
        fits, refused = None, None
    else:
        fits, refused = true_largest(
            pair, advised_ran, lambda batch: run(batch, STEPS_OF_A_TRIAL) and run(batch, STEPS)
        )
    return {**asdict(pair), "advised_ran": advised_ran, "fits": fits, "refused": refused, "trials": trials}


def true_largest(pair: Pair, advised_ran: bool, runs: Callable[[int], bool | None]) -> tuple[int, int | None]:
    """The largest batch that ran and the smallest that did not, with as few trials as that takes.

    Batches of many hundreds are told apart to a quarter of a percent. (n, None): there was no time to see the end.
    """
    low, high = (pair.advised, None) if advised_ran else (0, pair.advised)
    stride = step = resolution(pair.largest)
    guess: int | None = pair.largest + step if advised_ran else pair.advised - step
    while high is None or high - low > step:
        if guess is None or not low < guess < (high if high is not None else guess + 1):
            assert high is not None
            guess = pair.largest if low < pair.largest < high else (low + high) // 2
        ran = runs(guess)
        if ran is None:
            break
        low, high = (guess, high) if ran else (low, guess)
        stride *= 2
        if high is None:
            guess = low + stride
        elif low == 0:
            guess = high - stride if high > stride else None
        else:
            guess = None
    return low, high


def resolution(largest: int) -> int:
    """How far apart are batches that are told apart."""
    return max(1, largest // 400)


def trial(task: tuple[Workload, int, int, int]) -> dict[str, Any]:
    """(workload, batch, limit in bytes, steps). Runs in a process of its own."""
    import torch

    from vramcast.base.factories import load_factory

    workload, batch, limit_bytes, steps = task
    total_bytes = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(limit_bytes / total_bytes)
    torch.manual_seed(0)
    result: dict[str, Any] = {"outcome": "ran"}
    made = 0
    try:
        step = load_factory(workload.factory)(**{**workload.args, "batch": batch})
        while made < steps:
            step()
            made += 1
        torch.cuda.synchronize()
    except Exception as error:
        result = {"outcome": "out of memory" if _is_out_of_memory(error) else "error", "steps_made": made,
                  "error": str(error)[:200]}  # fmt: skip
    stats = torch.cuda.memory_stats()
    result["reserved_bytes"] = stats["reserved_bytes.all.peak"]
    result["retries"] = stats["num_alloc_retries"]
    return result


def _is_out_of_memory(error: Exception) -> bool:
    import torch

    words = ("ALLOC_FAILED", "out of memory", "unable to find an engine", "Unable to find a valid cuDNN algorithm")
    return isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in words)


# -- both together --------------------------------------------------------------------------------------------------


def line_for(record: dict[str, Any]) -> str:
    head = f"{record['name']:<26} {record['limit_gb']:>3} GB"
    if record.get("advised_ran") is None:
        error = record.get("error") or next((t["error"] for t in record.get("trials", ()) if "error" in t), "no time")
        return f"{head}  ERROR {error[:100]}"
    after = "?" if record["refused"] is None else str(record["refused"])
    ran = "ran" if record["advised_ran"] else "OUT OF MEMORY"
    return (
        f"{head}  advised {record['advised']:>5} {ran}, predicted {record['largest']:>5}, true {record['fits']:>5} "
        f"(refused {after:>5}), {len(record['trials'])} trials"
    )


def rows(path: Path = MEASURED) -> Iterator[dict[str, Any]]:
    """What was measured and finished: nothing is left to try between what ran and what did not."""
    for line in path.read_text().splitlines():
        record = json.loads(line)
        if record.get("advised_ran") is None or record["refused"] is None:
            continue
        if record["refused"] - record["fits"] <= resolution(record["largest"]):
            yield record


def report(path: Path) -> str:
    """A table in Markdown, and the bar in words."""
    results = sorted(rows(path), key=lambda row: (row["name"], row["limit_gb"]))
    lines = ["| workload | limit, GB | advised | ran 20 steps | largest predicted | largest found | advised / found |",
             "|---|---:|---:|---|---:|---:|---:|"]  # fmt: skip
    for row in results:
        lines.append(
            f"| {row['name']} | {row['limit_gb']} | {row['advised']:,} | {'yes' if row['advised_ran'] else '**no**'} | "
            f"{row['largest']:,} | {row['fits']:,} | {_share(row):.1%} |"
        )
    ran = [row for row in results if row["advised_ran"]]
    near = [row for row in ran if _share(row) >= 0.97]
    exact = [row for row in results if row["largest"] == row["fits"]]
    lines += [
        "",
        f"{len(results)} pairs of {len({row['name'] for row in results})} workloads: the advised batch ran 20 steps in "
        f"{len(ran)}; it is at least 97 % of the largest that ran in {len(near)}; the largest predicted is the largest "
        f"found in {len(exact)}.",
    ]
    return "\n".join(lines)


def _share(row: dict[str, Any]) -> float:
    return float(row["advised"] / max(1, row["fits"]))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--predict", action="store_true")
    what.add_argument("--measure", action="store_true")
    what.add_argument("--report", action="store_true")
    parser.add_argument("--only", default="", help="names of workloads, with commas")
    parser.add_argument("--limits", default="", help="for --measure: GB, with commas")
    parser.add_argument("--predicted", type=Path, default=PREDICTED)
    parser.add_argument("--measured", type=Path, default=MEASURED, help="for --report")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for what --measure finds")
    parser.add_argument("--jobs", type=int, default=None, help="processes at a time; 2 to predict, 8 to measure")
    parser.add_argument("--deadline-seconds", type=float, default=480, help="start no trial after this")
    parser.add_argument("--budget-gb", type=float, default=BUDGET_GB, help="sum of the limits at a time")
    options = parser.parse_args(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    only = tuple(filter(None, options.only.split(",")))
    if options.predict:
        return predict(only or NAMES, options.predicted, options.jobs or 2)
    if options.measure:
        limits = tuple(map(int, filter(None, options.limits.split(",")))) or LIMITS_GB
        pairs = [pair for pair in load_pairs(options.predicted) if not only or pair.name in only]
        pairs = [pair for pair in pairs if pair.limit_gb in limits]
        return measure(pairs, options.out, options.deadline_seconds, options.jobs or 8, options.budget_gb)
    print(report(options.measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
