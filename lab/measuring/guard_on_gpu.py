"""Try the guard on a real GPU: the integrations, what watching costs, and the report of a real out-of-memory error.

    python -m lab.measuring.guard_on_gpu --out DIR [--only CASE ...] [--quick]

Each case runs in a process of its own and writes DIR/CASE.json; DIR/summary.json says which bars are met. Needs torch
with a GPU, transformers, accelerate and lightning; a case whose library is missing says so. `--virtual` runs the cases
that need no timing on a virtual card, to try this program itself.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from lab.measuring.guard_out_of_memory import out_of_memory

sys.path[:0] = [str(Path(__file__).parents[2] / "src"), str(Path(__file__).parents[2])]

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SEQUENCE = 128
VOCABULARY = 5000
STEPS = 8


def tiny_config(**values: Any) -> Any:
    from transformers import GPT2Config

    sizes = {
        "n_layer": 4,
        "n_embd": 256,
        "n_head": 4,
        "vocab_size": VOCABULARY,
        "n_positions": SEQUENCE,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return GPT2Config(**{**sizes, **values})


def dataset(count: int = 256) -> list[dict[str, Any]]:
    import torch

    torch.manual_seed(1)
    return [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, VOCABULARY, (count, SEQUENCE))]


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    import torch

    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


def beside(guard: Any) -> dict[str, Any]:
    """Predicted and watched peaks of a run that has ended."""
    import torch

    watch, prediction = guard.watch, guard.prediction
    result = {
        "verdict": guard.verdict,
        "fits": guard.fits,
        "steps_watched": watch.steps,
        "measured_allocated_bytes": torch.cuda.max_memory_allocated(),
        "measured_reserved_bytes": torch.cuda.max_memory_reserved(),
        "watched_allocated_bytes": watch.peak_allocated_bytes,
        "watched_reserved_bytes": watch.peak_reserved_bytes,
        "watched_device_bytes": watch.peak_device_bytes,
    }
    if prediction is not None:
        result["predicted_allocated_bytes"] = prediction.peak_allocated_bytes
        result["predicted_reserved_bytes"] = prediction.peak_reserved_bytes
        result["predicted_device_bytes"] = prediction.device_bytes
        result["allocated_error"] = prediction.peak_allocated_bytes / max(1, result["measured_allocated_bytes"]) - 1
        result["reserved_error"] = prediction.peak_reserved_bytes / max(1, result["measured_reserved_bytes"]) - 1
    return result


# -- the integrations -------------------------------------------------------------------------------------------


def case_trainer(args: argparse.Namespace) -> dict[str, Any]:
    from transformers import GPT2LMHeadModel, Trainer, TrainingArguments

    import vramcast

    def trainer(*callbacks: Any) -> Any:
        settings = TrainingArguments(
            output_dir=str(args.out / "trainer"),
            per_device_train_batch_size=16,
            max_steps=STEPS,
            bf16=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            logging_strategy="no",
        )
        return Trainer(
            model=GPT2LMHeadModel(tiny_config()), args=settings, train_dataset=dataset(), callbacks=list(callbacks)
        )

    real = trainer()
    started = time.perf_counter()
    guard = vramcast.guard(real, report_dir=args.out)
    seconds = time.perf_counter() - started
    real.train()
    guard.close()
    result = beside(guard) | {"seconds_to_predict": seconds}
    del real
    callback = vramcast.guard.VramcastCallback(report_dir=str(args.out))
    trainer(callback).train()
    result["callback"] = {"verdict": callback.guard.verdict, "steps_watched": callback.guard.watch.steps}
    result["ok"] = guard.fits and callback.guard.fits and guard.watch.steps == STEPS == callback.guard.watch.steps
    return result


def case_lightning(args: argparse.Namespace) -> dict[str, Any]:
    import lightning
    import torch
    from torch.utils.data import DataLoader
    from transformers import GPT2LMHeadModel

    import vramcast

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = GPT2LMHeadModel(tiny_config())

        def training_step(self, batch: Any, index: int) -> Any:
            return self.net(**batch).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    callback = vramcast.guard.LightningVramcastCallback(report_dir=str(args.out))
    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=1,
        max_steps=STEPS,
        precision="bf16-mixed",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback],
    )
    trainer.fit(Lit(), DataLoader(dataset(), batch_size=16, collate_fn=collate))
    result = beside(callback.guard)
    result["ok"] = callback.guard.fits and callback.guard.watch.steps == STEPS
    return result


def case_accelerate(args: argparse.Namespace) -> dict[str, Any]:
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader
    from transformers import GPT2LMHeadModel

    import vramcast

    accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=2)
    model = GPT2LMHeadModel(tiny_config())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(dataset(), batch_size=16, collate_fn=collate)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    def training_step(model: Any, optimizer: Any, batch: Any) -> Any:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        return loss

    batch = next(iter(loader))
    with vramcast.guard(training_step, model, optimizer, batch, steps=6, report_dir=args.out) as guard:
        for index, batch in enumerate(loader):
            training_step(model, optimizer, batch)
            if index + 1 == 2 * STEPS:
                break
    result = beside(guard)
    result["ok"] = guard.fits and accelerator.scaler.get_scale() > 0
    return result


def plain_step(model: Any, optimizer: Any, batch: Any) -> Any:
    import torch

    optimizer.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    return loss


def case_plain(args: argparse.Namespace) -> dict[str, Any]:
    """The model is on the card already; training must go on to the bit as it would have without a guard."""
    import torch
    from transformers import GPT2LMHeadModel

    import vramcast

    def run(guarded: bool) -> tuple[list[float], Any, dict[str, Any]]:
        torch.manual_seed(0)
        model = GPT2LMHeadModel(tiny_config()).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        batch = {name: value.cuda() for name, value in collate(dataset(16)).items()}
        torch.manual_seed(2)
        before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        guard = vramcast.guard(plain_step, model, optimizer, batch, report_dir=args.out) if guarded else None
        after = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        losses = [plain_step(model, optimizer, batch).detach() for _ in range(STEPS)]
        if guard is not None:
            guard.close()
        return [float(loss) for loss in losses], guard, {"memory_before": before, "memory_after": after}

    with_guard, guard, memory = run(True)
    result = beside(guard) | memory
    without, _, _ = run(False)
    result |= {"losses": with_guard, "losses_without": without, "same_losses": with_guard == without}
    untouched = memory["memory_before"] == memory["memory_after"]
    result["ok"] = guard.fits and with_guard == without and untouched and guard.watch.steps == STEPS
    return result


def case_job(args: argparse.Namespace) -> dict[str, Any]:
    """A job, predicted in a process of its own while this one holds the model."""
    import torch
    from transformers import GPT2LMHeadModel

    import vramcast

    folder = args.out / "gpt2-config"
    tiny_config(architectures=["GPT2LMHeadModel"]).save_pretrained(folder)
    model = GPT2LMHeadModel(tiny_config()).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = {name: value.cuda() for name, value in collate(dataset(16)).items()}
    job = {
        "name": "gpt2",
        "components": {"model": {"transformers": str(folder)}},
        "sizes": {"batch": 16, "sequence": SEQUENCE},
        "precision": "bf16",
        "outputs_live_until": "forward",
        "batch_lives_until": "next-step",
    }
    started = time.perf_counter()
    with vramcast.guard(job, report_dir=args.out) as guard:
        seconds = time.perf_counter() - started
        for _ in range(STEPS):
            plain_step(model, optimizer, batch)
    return beside(guard) | {"seconds_to_predict": seconds, "ok": guard.fits and guard.watch.steps == STEPS}


# -- what watching costs ----------------------------------------------------------------------------------------


def case_overhead(args: argparse.Namespace) -> dict[str, Any]:
    import torch
    from transformers import GPT2LMHeadModel

    from vramcast.features.guard.watch import Watch

    result: dict[str, Any] = {}
    cases = {"small batch (host-bound)": (1, 64, 20, 60), "larger batch": (8, 1024, 8, 24)}
    for name, (batch, sequence, steps, rounds) in cases.items():
        rounds = 4 if args.quick else rounds
        torch.manual_seed(0)
        model = GPT2LMHeadModel(
            tiny_config(n_layer=12, n_embd=768, n_head=12, vocab_size=50257, n_positions=1024)
        ).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        ids = torch.randint(0, 50257, (batch, sequence)).cuda()
        inputs = {"input_ids": ids, "labels": ids}
        watch = Watch(warn_above=1.0, report_dir=args.out)

        def block(steps: int = steps, model: Any = model, optimizer: Any = optimizer, inputs: Any = inputs) -> float:
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(steps):
                plain_step(model, optimizer, inputs)
            torch.cuda.synchronize()
            return (time.perf_counter() - started) / steps

        for _ in range(3):
            block()
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for index in range(2 * rounds):
            guarded = (index + index // 2) % 2 == 0  # A B B A: neither is always the first
            if guarded:
                watch.start()
            seconds[guarded].append(block())
            watch.stop()
        watch.start()
        step_seconds = _time(watch.step, 2000)
        look_seconds = _time(watch.look, 200)
        watch.stop()
        step_mean = statistics.mean(seconds[False])
        added = step_seconds + look_seconds * min(1.0, step_mean)  # a look a second
        result[name] = {
            "batch": batch,
            "sequence": sequence,
            "steps": steps * rounds,
            "step_seconds_without": step_mean,
            "step_seconds_with": statistics.mean(seconds[True]),
            "ratio_of_means": statistics.mean(seconds[True]) / step_mean,
            "ratio_of_medians": statistics.median(seconds[True]) / statistics.median(seconds[False]),
            "ratio_of_fastest_halves": _fast_half(seconds[True]) / _fast_half(seconds[False]),
            "noise": statistics.stdev(seconds[False]) / step_mean / rounds**0.5,
            "watch_step_seconds": step_seconds,
            "watch_look_seconds": look_seconds,
            "added_share": added / step_mean,
        }
        del model, optimizer
        torch.cuda.empty_cache()
    result["ok"] = all(case["ratio_of_medians"] <= 1.005 and case["added_share"] <= 0.005 for case in result.values())
    return result


def _fast_half(values: list[float]) -> float:
    return statistics.mean(sorted(values)[: max(1, len(values) // 2)])


def _time(call: Callable[[], object], count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - started) / count


# -- a real out-of-memory error ---------------------------------------------------------------------------------


def case_oom_backward(args: argparse.Namespace) -> dict[str, Any]:
    return out_of_memory(args.out, batch=16, layers=12, phase="backward", virtual=args.virtual)


def case_oom_forward(args: argparse.Namespace) -> dict[str, Any]:
    return out_of_memory(args.out, batch=16, layers=12, phase="forward", virtual=args.virtual)


def case_oom_optimizer(args: argparse.Namespace) -> dict[str, Any]:
    return out_of_memory(args.out, batch=1, layers=48, phase="optimizer", virtual=args.virtual)


CASES = {name.removeprefix("case_"): call for name, call in list(globals().items()) if name.startswith("case_")}


def run_case(args: argparse.Namespace) -> int:
    import vramcast

    started = time.perf_counter()
    try:
        with vramcast.virtual_gpu("h200") if args.virtual else nullcontext():
            result = CASES[args.case](args)
    except ImportError as error:
        result = {"ok": None, "skipped": str(error)}
    except Exception as error:
        result = {"ok": False, "error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    result["seconds"] = time.perf_counter() - started
    (args.out / f"{args.case}.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=CASES)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="few rounds of timing")
    parser.add_argument("--virtual", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.case:
        return run_case(args)
    summary = {}
    for name in args.only or CASES:
        extra = [flag for flag in ("--quick", "--virtual") if getattr(args, flag[2:])]
        command = [sys.executable, "-m", "lab.measuring.guard_on_gpu", "--out", str(args.out), "--case", name, *extra]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
        path = args.out / f"{name}.json"
        result = (
            json.loads(path.read_text(encoding="utf-8"))
            if path.exists()
            else {"ok": False, "error": done.stderr[-2000:]}
        )
        summary[name] = {key: result.get(key) for key in ("ok", "error", "skipped", "seconds") if key in result}
        (args.out / f"{name}.log").write_text((done.stdout + done.stderr)[-8000:], encoding="utf-8")
        print(name, summary[name], flush=True)
    (args.out / "summary.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
