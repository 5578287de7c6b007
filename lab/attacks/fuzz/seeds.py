"""Real inputs of every reader, as bytes."""

from __future__ import annotations

import functools
import gzip
import json
import shlex
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from lab import DATA, ROOT

TESTS, EXAMPLES = ROOT / "tests", ROOT / "examples"
_LONGEST = 24_000
"""How much of a log or script is used: a part of it says as much, in less time."""


@dataclass(frozen=True, slots=True)
class Seed:
    target: str
    files: dict[str, bytes] = field(default_factory=dict)
    """By name; the first is the one that is mutated and named to the reader."""
    words: tuple[str, ...] = ()
    """A command line; FILE in it is the first file."""

    @property
    def main(self) -> str:
        return next(iter(self.files), "")


@functools.cache
def seeds() -> dict[str, list[Seed]]:
    """Seeds by target."""
    every_seed = [*_jobs(), *_folders(), *_scripts(), *_results(), *_logs(), *_others(), *_command_lines(), *_tiny()]
    by_target: dict[str, list[Seed]] = {}
    for seed in every_seed:
        by_target.setdefault(seed.target, []).append(seed)
    return by_target


def _file(path: Path, name: str | None = None) -> dict[str, bytes]:
    return {name or path.name: path.read_bytes()}


def _jobs() -> list[Seed]:
    configs = [path for path in sorted((TESTS / "jobs" / "configs").iterdir()) if path.is_file()]
    made = [Seed("job", _file(path)) for path in configs]
    made += [Seed("job", _file(path)) for path in sorted(EXAMPLES.glob("*/*.yaml"))]
    made += [Seed("job", _file(path)) for path in sorted(EXAMPLES.glob("*/*.json"))]
    corpus = sorted((DATA / "jobs").glob("*.yaml"))[::4]
    made += [Seed("job", _file(path, f"{path.stem}.vramcast.yaml")) for path in corpus]
    made += [Seed("job", {"train.sh": script.encode()}) for script in _SHELL]
    return made


_SHELL = (
    """#!/bin/bash
#SBATCH --gres=gpu:4
set -euo pipefail
source ~/.bashrc
MODEL=${MODEL:-llama-tiny}; declare -i BATCH=8
ARGS=(--bf16 --gradient_checkpointing True "--optim" adamw_torch)
((STEPS=BATCH*2)); for S in 1 2; do echo $S; done
if [[ "$MODEL" == llama* && -z "${FAST:-}" ]]; then LEN=128; else LEN=256; fi
case "$MODEL" in llama*) ARGS+=(--tf32 True);; *) exit 1;; esac
train() { torchrun --nproc_per_node="$1" run_clm.py --model_name_or_path "$MODEL" "${@:2}"; }
cat > ds.json <<EOF
{"train_batch_size": "auto"}
EOF
train 4 --per_device_train_batch_size $BATCH --gradient_accumulation_steps $((STEPS / 2)) --block_size ${LEN} \\
    "${ARGS[@]}" 2>&1 | tee log.txt
""",
    """export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
DIR="$(cd "$(dirname "$0")" && pwd)"
CMD="accelerate launch --num_processes 2 --mixed_precision bf16 train.py --per_device_train_batch_size 2"
eval $CMD --model_name_or_path llama-tiny --output_dir "$DIR/$(date +%s)" \\
    --use_peft --lora_r 8 --load_in_4bit --max_length 64
""",
)


def _folders() -> list[Seed]:
    folders = [*sorted((TESTS / "jobs" / "folders").iterdir()), *sorted((DATA / "jobs" / "folders").iterdir())[::3]]
    made = []
    for folder in folders:
        files = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.json"))}
        made += [Seed("folder", {name: files[name], **files}) for name in files]
    header = json.dumps({"w": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}, "__metadata__": {}}).encode()
    config = (TESTS / "jobs" / "configs" / "llama-tiny" / "config.json").read_bytes()
    weights = len(header).to_bytes(8, "little") + header + bytes(64)
    made.append(Seed("folder", {"model.safetensors": weights, "config.json": config}))
    quantized = json.loads(config) | {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    made.append(Seed("folder", {"config.json": json.dumps(quantized, indent=1).encode()}))
    return made


def _scripts() -> list[Seed]:
    return [Seed("script", {"train.py": path.read_bytes()[:_LONGEST]}) for path in sorted(EXAMPLES.rglob("*.py"))]


@functools.cache
def _traces() -> tuple[bytes, ...]:
    from tests.samples import random_trace, transformer
    from vramcast.trace import StepTrace

    def packed(trace: StepTrace) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            trace.save(Path(folder) / "x.trace")
            return (Path(folder) / "x.trace").read_bytes()

    small = packed(transformer(layers=1, steps=2))
    return packed(transformer(layers=2, steps=2)), packed(random_trace(1, events=60)), _with_calls(small)


def _with_calls(data: bytes) -> bytes:
    """With ops as the virtual card writes them."""
    document = json.loads(gzip.decompress(data))
    events = len(document["event_kind"])
    rows_of_a_step = (
        ("iteration", ""), ("aten.mm", "f32(64,64) f32(64,64)"), ("backward", ""), ("aten.mm", "f32(64,64) f32(64,8)"),
        ("backward end", ""), ("optimizer", "3 AdamW"), ("aten._foreach_add_", "[f32(64,64)] [f32(64,64)]"),
        ("optimizer end", ""), ("iteration end", ""),
    )  # fmt: skip
    rows = list(range(len(rows_of_a_step))) * 2
    document["calls"] = {
        "ops": [op for op, _ in rows_of_a_step], "arguments": [arguments for _, arguments in rows_of_a_step],
        "settings": {"tf32": False}, "call": rows, "module": [0] * len(rows), "phase": [0] * len(rows),
        "flags": [1] * len(rows), "event": [min(events, 2 * i) for i in range(len(rows))],
    }  # fmt: skip
    document["host"] = {"peak_bytes": 10, "pinned_bytes": 4, "paged_bytes": 0, "parts": {"other": 10}}
    return gzip.compress(json.dumps(document).encode(), mtime=0)


def _results() -> list[Seed]:
    from vramcast.memory import predict
    from vramcast.report.documents import prediction_document
    from vramcast.trace import StepTrace

    traces = _traces()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.trace"
        path.write_bytes(traces[0])
        document = json.dumps(prediction_document(predict(StepTrace.load(path)))).encode()
    made = [Seed("trace", {"run.trace": data}) for data in traces]
    made.append(Seed("trace", {"run.json": document}))
    peaks = {"peak_allocated_bytes": 100, "peak_reserved_bytes": 200}
    step = {**peaks, "phase_peaks": {"forward": peaks}, "phase_seconds": {"forward": 0.1}, "data_seconds": 0.01}
    run = {
        **peaks, "setup": peaks, "steps": [step, step], "warmup_steps": 1, "step_seconds": 0.2,
        "driver": {"setup_bytes": 5, "end_bytes": 9}, "environment": {"gpu": "H200"}, "extra": {"module_peaks": {"a": 3}},
    }  # fmt: skip
    measured = json.dumps({"format": "vramcast-measurement", "version": 1, "run": run}).encode()
    return [*made, Seed("trace", {"measured.json": measured})]


def _logs() -> list[Seed]:
    made = []
    for path in sorted((TESTS / "features" / "diagnose" / "logs").iterdir()):
        data = path.read_bytes()
        if path.suffix in (".log", ".csv"):
            data = b"\n".join(data[:_LONGEST].split(b"\n")[:-1]) + b"\n"
        if len(data) < 200_000:
            made.append(Seed("log", {path.name: data}))
    lines = [json.dumps({"step": i, "loss": 2.0, "step_time": 0.5 + i / 100, "data_time": 0.1}) for i in range(30)]
    made.append(Seed("log", {"log.jsonl": "\n".join(lines).encode()}))
    lines = [f"2024-05-01 10:00:{i:02d} iter {i}/100 loss=1.25 dt=0.3s mfu 32% data: 12ms" for i in range(30)]
    made.append(Seed("log", {"train.log": "\n".join(lines).encode()}))
    return made


def _others() -> list[Seed]:
    from tests.features.watch.samples import samples
    from vramcast.features.watch.log import LogFile

    made = []
    for name in ("watch.csv", "watch.jsonl"):
        with tempfile.TemporaryDirectory() as folder:
            log = LogFile(Path(folder) / name)
            for sample in samples([1, 3, 9, 14, 14, 2]):
                log.add(sample, 15 * 2**30)
            log.close()
            made.append(Seed("watch", _file(Path(folder) / name)))
    calibration = json.loads((ROOT / "src/vramcast/timing/calibrations/h200.json").read_text())
    calibration["kinds"] = dict(list(calibration["kinds"].items())[:6])
    made.append(Seed("calibration", {"h200.json": json.dumps(calibration, indent=1).encode()}))
    texts = (
        "24GiB", "rtx-4090", "A100 80GB", "batch", "frames // 4 + 1", "ceil(width / 8) * max(2, height)", "2**3**2",
        "expandable_segments:True,max_split_size_mb:128", "garbage_collection_threshold:0.8",
        "roundup_power2_divisions:4", "components.model.mode=frozen", "sizes.batch=4", r".*\.(q_proj|v_proj)",
        "layers.*.attn", "optimizer={name: sgd}", "^(?!.*visual).*(?:q_proj|k_proj)$",
    )  # fmt: skip
    made += [Seed("text", {"text": text.encode()}) for text in texts]
    asked = {
        "path": "job.yaml", "parts": [], "arguments": [], "batch": 4, "sequence": 64, "precision": "bf16",
        "checkpointing": "all", "changes": {"accumulation": 2, "components.model.mode": "frozen"},
    }  # fmt: skip
    job = (EXAMPLES / "llm-lora" / "vramcast.yaml").read_bytes()
    made.append(Seed("mcp", {"ask.json": json.dumps(asked).encode(), "job.yaml": job}))
    return made


def _command_lines() -> list[Seed]:
    trace, log = _traces()[0], (TESTS / "features" / "diagnose" / "logs" / "trainer_plain.log").read_bytes()[:4000]
    job = (EXAMPLES / "llm-lora" / "vramcast.yaml").read_bytes()
    lines = {
        "run.trace": (trace, (
            "show FILE --gpu a100-80gb", "show --limit 24GiB --by module FILE", "show --json --at-peak FILE",
            "show --allocator-conf expandable_segments:True FILE --gpu 16GiB", "compare FILE FILE --json",
        )),
        "train.log": (log, (
            "diagnose FILE", "diagnose FILE --json --batch 4 --gpus 8 --accumulation 2 --seq 128 --throughput one",
        )),
        "vramcast.yaml": (job, (
            "predict FILE --gpu rtx-4090 --batch 4 --seq 128 --precision bf16 --optimizer adamw --steps 3 --json",
            "predict FILE --set sizes.batch=4 --set components.model.mode=frozen --with FILE --limit 20GiB",
            "predict FILE#inference --fraction 0.9 --checkpointing all --inference --height 64 --width 64 --frames 9",
            "check FILE --memory 24GiB --device 0 --margin 0.1", "advise FILE --gpu h100 --keep batch,precision",
            "whatif FILE --gpu h100 --keep batch", "plan FILE --gpu rtx-4090", "explain FILE --gpu rtx-4090",
            "table FILE --gpu rtx-4090", "compare FILE FILE#inference --scenario 'lora: components.model.mode=lora'",
            "predict --model llama-tiny -- torchrun --nproc_per_node 2 train.py --per_device_train_batch_size 4 --bf16",
            "init FILE --output x.yaml", "measure FILE --steps 6", "run --gpu rtx-4090 FILE --batch-size 8",
            "watch --job FILE --interval 1 --threshold 0.9", "mcp --root .", "calibrate --out x.json",
        )),
        "": (b"", (
            "gpus", "gpus rtx-4090 --json", "check --hidden-dim 4096 --num-layers 32 --gpu-memory 24 --batch 4 --seq 128",
            "check --hidden-dim 4096 --num-layers 32 --gpu rtx-4090 --dtype bf16 --threshold 0.7 --json", "--version",
        )),
    }  # fmt: skip
    return [
        Seed("command", {name: data} if name else {}, tuple(shlex.split(line)))
        for name, (data, texts) in lines.items()
        for line in texts
    ]


def _tiny() -> list[Seed]:
    job = (
        b"components:\n  model: {factory: 'tests.jobs.tiny:mixer', arguments: {width: 32}}\nsizes: {batch: 2}\n"
        b"inputs:\n  x: {shape: [batch, 32]}\n  labels: {shape: [batch], dtype: int64, below: 10}\n"
        b"loss: {kind: cross-entropy, target: labels}\noptimizer: adamw\nprecision: bf16\n"
    )
    config = (TESTS / "jobs" / "configs" / "llama-tiny" / "config.json").read_bytes()
    return [Seed("predict", {"job.vramcast.yaml": job}), Seed("predict", {"config.json": config})]
