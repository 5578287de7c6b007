"""What the keys of logs mean: the same few quantities under many names, in many units."""

from __future__ import annotations

import math
import re
from functools import lru_cache

from vramcast.features.diagnose.logs import sample as q

TIME_UNITS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "msec": 1e-3, "millis": 1e-3, "milliseconds": 1e-3,
    "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0, "min": 60.0, "mins": 60.0, "minutes": 60.0,
    "h": 3600.0, "hr": 3600.0, "hours": 3600.0,
}  # fmt: skip
MEMORY_UNITS = {
    "b": 1, "bytes": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30,
    "k": 2**10, "m": 2**20, "g": 2**30,
}  # fmt: skip

RATE_UNITS = {
    **dict.fromkeys(("samples", "sample", "imgs", "img", "images", "image", "examples", "ex", "seqs", "sequences",
                     "clips", "videos", "records"), q.SAMPLES_PER_SECOND),
    **dict.fromkeys(("tokens", "token", "tok", "toks"), q.TOKENS_PER_SECOND),
    **dict.fromkeys(("it", "its", "iter", "iters", "iterations", "step", "steps", "batch", "batches"),
                    q.STEPS_PER_SECOND),
}  # fmt: skip
"""What is counted in "N .../s"."""

STEP_KEYS = frozenset(
    {"step", "iter", "iteration", "global_step", "it", "_step", "train_step", "current_step", "update"}
)

_NAMES = {
    **dict.fromkeys(
        ("step_time", "time_step", "batch_time", "iter_time", "iteration_time", "time_per_step", "time_per_iter",
         "time_per_iteration", "time_per_batch", "sec_per_step", "seconds_per_step", "sec_per_iter", "sec_per_it",
         "s_it", "secs_per_batch", "elapsed_time_per_iteration", "step_duration", "avg_step_time", "avg_batch_time",
         "train_batch_time", "end_to_end", "dt", "step_seconds", "iteration_seconds", "time_iter", "time_batch"),
        q.STEP_SECONDS),
    **dict.fromkeys(("time",), q.TIME),
    **dict.fromkeys(
        ("samples_per_sec", "samples_per_second", "samples_s", "imgs_per_sec", "img_per_sec", "images_per_sec",
         "images_per_second", "examples_per_sec", "examples_per_second", "sample_per_sec", "device_samples_per_sec",
         "throughput", "samples_sec", "imgs_s", "img_s", "images_s", "sps"), q.SAMPLES_PER_SECOND),
    **dict.fromkeys(
        ("tokens_per_sec", "tokens_per_second", "tokens_s", "tok_s", "tps", "throughput_tps", "tokens_sec",
         "tokens_per_sec_per_gpu", "device_tokens_per_sec"), q.TOKENS_PER_SECOND),
    **dict.fromkeys(
        ("steps_per_sec", "steps_per_second", "it_s", "its_per_sec", "iters_per_sec", "batches_per_sec", "it_sec",
         "device_batches_per_sec", "iterations_per_second", "steps_s", "iter_s"), q.STEPS_PER_SECOND),
    **dict.fromkeys(
        ("memory", "mem", "max_mem", "gpu_mem", "gpu_memory", "peak_memory", "max_memory", "memory_max_reserved",
         "max_reserved", "peak_mem", "cuda_mem", "vram", "max_memory_reserved", "reserved"), q.MEMORY_BYTES),
    **dict.fromkeys(("mfu",), q.MFU),
    **dict.fromkeys(("eval_runtime", "eval_time", "val_time", "validation_time"), q.EVALUATION_SECONDS),
    **dict.fromkeys(("runtime",), q.RUN_SECONDS),
    **dict.fromkeys(
        ("batch_size", "per_device_train_batch_size", "micro_batch_size", "local_batch_size", "batch_size_per_gpu",
         "instantaneous_batch_size_per_device", "per_gpu_batch_size", "mini_batch_size"), q.BATCH),
    **dict.fromkeys(
        ("global_batch_size", "total_train_batch_size", "effective_batch_size", "total_batch_size"), q.GLOBAL_BATCH),
    **dict.fromkeys(
        ("gradient_accumulation_steps", "accumulation_steps", "grad_accum", "accumulate_grad_batches",
         "gradient_accumulation"), q.ACCUMULATION),
    **dict.fromkeys(("world_size", "num_gpus", "n_gpus", "num_devices", "ngpus"), q.WORLD_SIZE),
    **dict.fromkeys(("seq_len", "sequence_length", "max_seq_len", "max_seq_length", "block_size"), q.SEQUENCE),
    **dict.fromkeys(("total_steps", "max_steps", "total_optimization_steps", "num_training_steps"), q.TOTAL_STEPS),
}  # fmt: skip

_PREFIXES = ("train/", "train_", "training/", "perf/", "performance/", "time_metrics/", "timing/", "speed/", "timers/",
             "throughput/", "metrics/", "avg_", "mean_", "last_")  # fmt: skip
# A rate of the whole run, as Hugging Face's Trainer prints it once at the end.
_RUN = {
    "train_runtime": q.RUN_SECONDS,
    "train_samples_per_second": q.RUN_SAMPLES_PER_SECOND,
    "train_steps_per_second": q.RUN_STEPS_PER_SECOND,
}

_PHASE_WORDS = (
    (q.RECOMPUTATION, r"recomput|re-?forward"),
    (q.SYNC, r"all[-_ ]?reduce|reduce[-_ ]?scatter|grad\w*[-_ ]?(?:sync|reduc)|nccl|\bcomm|ddp|sync_?grad"),
    (q.BACKWARD, "backward|\\bbwd|back[-_ ]?prop|\u53cd\u5411|\u540e\u5411"),
    (q.OPTIMIZER, "optim|\\bopt\\b|opt_step|weight[-_ ]?update|grad[-_ ]?clip|adam|\u4f18\u5316\u5668"),
    (q.TRANSFER, r"\bh2d|to[-_ ]?(?:device|gpu|cuda)|transfer|host[-_ ]?to"),
    (q.DATA, "data|load|fetch|batch[-_ ]gen|prefetch|next[-_ ]batch|\u6570\u636e"),
    (q.LOSS, r"\bloss|criterion"),
    (q.FORWARD, "forward|\\bfwd|\u524d\u5411"),
)
# The escapes are Chinese: backward (two words), optimizer, data, forward.
_PHASES = tuple((phase, re.compile(pattern)) for phase, pattern in _PHASE_WORDS)
_TIME_WORD = re.compile(
    r"(?:^|[_/])(?:time|secs?|seconds|ms|msec|duration|elapsed|latency)(?:$|[_/])|time$|^time|timer"
)
_IN_BRACKETS = re.compile(r"\(([^)]*)\)\s*$")
_UNIT_SUFFIX = re.compile(r"_(ms|msec|us|ns|s|secs?|seconds|mins?|gib|gb|mib|mb)$")
_NOT_A_WORD = re.compile(r"[^\w/%]+")
_EVALUATION = re.compile(r"(?:^|[/_])(?:eval|val|valid|validation|test|dev)(?:uation)?(?:[/_]|$)")


def phase_named(name: str) -> str | None:
    """The phase of a step that a name speaks of."""
    lowered = name.lower()
    return next((phase for phase, pattern in _PHASES if pattern.search(lowered)), None)


def is_evaluation(key: str) -> bool:
    return _EVALUATION.search(key.lower()) is not None


@lru_cache(maxsize=4096)
def _known(key: str) -> tuple[str, str] | None:
    """Quantity, and the unit that the key itself names."""
    lowered = key.strip().lower()
    if lowered in _RUN:
        return _RUN[lowered], ""
    unit = ""
    bracket = _IN_BRACKETS.search(lowered)
    if bracket is not None:
        unit = bracket[1].strip()
        lowered = lowered[: bracket.start()]
    lowered = _NOT_A_WORD.sub("_", lowered).strip("_")
    if lowered in ("eval_runtime", "eval_time", "val_time", "validation_time"):
        return q.EVALUATION_SECONDS, unit
    if is_evaluation(lowered):
        return None
    for prefix in _PREFIXES:
        if lowered.startswith(prefix) and lowered != prefix.rstrip("/_"):
            lowered = lowered[len(prefix) :]
    flat = lowered.replace("/", "_")
    if flat in _NAMES:
        return _NAMES[flat], unit
    bare = flat
    suffix = _UNIT_SUFFIX.search(flat)
    if suffix is not None:
        bare = flat[: suffix.start()]
        unit = unit or suffix[1]
        if bare in _NAMES:
            return _NAMES[bare], unit
    phase = phase_named(bare)
    timed = unit in TIME_UNITS or _TIME_WORD.search(key.strip().lower()) is not None
    if phase is None:
        return None
    # Without a word for time it is seconds only where the value brings a unit of time.
    return q.phase_key(phase), unit if timed else "?"


def read(key: str, value: float, unit: str = "") -> tuple[str, float] | None:
    """Quantity and value in SI units; None for what is of no interest."""
    known = _known(key)
    if known is None or not math.isfinite(value) or value < 0:
        return None
    quantity, own_unit = known
    unit = unit.strip().lower() or own_unit
    if quantity.startswith("phase:") or quantity in (q.STEP_SECONDS, q.TIME, q.EVALUATION_SECONDS, q.RUN_SECONDS):
        if unit == "%" or (unit and unit not in TIME_UNITS):
            return None
        return quantity, value * TIME_UNITS.get(unit, 1.0)
    if quantity == q.MEMORY_BYTES:
        # A memory figure without a unit could be anything.
        return (quantity, value * MEMORY_UNITS[unit]) if unit in MEMORY_UNITS else None
    if quantity == q.MFU:
        return quantity, value / 100 if unit == "%" or value > 1.5 else value
    if unit == "%" or value == 0:
        return None
    return quantity, value


def number(text: str) -> float | None:
    """1,234.5 and 1e-3; None for what is no finite number."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def whole(value: float | None) -> int | None:
    """A count of steps: a whole number that a run can reach."""
    if value is None or not 0 <= value < 10**15 or value != int(value):
        return None
    return int(value)
