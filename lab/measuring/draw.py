"""Draw workloads at random, for an error on models and settings that nobody chose.

    python -m lab.measuring.draw --seed 4 --count 60 --out lab/data/drawn-4.yaml

Names come from timm's and torchvision's own lists, shapes and settings from ranges; what does not train is drawn
again. Each entry carries the reserved memory predicted when it was drawn (`gib` schedules its measurement).
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import multiprocessing
import random
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

GIB = 1 << 30
SMALLEST_GIB, LARGEST_GIB = 1.5, 30.0
PRECISIONS = ("fp32", "bf16", "bf16", "fp16")
IMAGE_OPTIMIZERS = ("sgd-momentum", "adamw", "adamw", "adam", "rmsprop", "adamw-fused")
TEXT_OPTIMIZERS = ("adamw", "adamw-fused", "adam", "adafactor", "sgd-momentum")
Drawn = dict[str, Any]


def draw_timm(rng: random.Random) -> Drawn:
    import timm

    name = rng.choice(timm.list_models())
    published = timm.models.get_pretrained_cfg(name)
    size = published.input_size[-1] if published else 224
    args = {
        "name": name, "size": size, "batch": rng.randint(4, 160), "precision": rng.choice(PRECISIONS),
        "layout": rng.choice(("contiguous", "contiguous", "channels_last")), "optimizer": rng.choice(IMAGE_OPTIMIZERS),
        "style": rng.choice(("function", "loop")),
    }  # fmt: skip
    if args["layout"] == "channels_last":
        args["style"] = "function"
    return {"factory": "lab.workloads.vision:timm_model", "args": args, "needs": ["timm"], "family": "vision"}


def draw_torchvision(rng: random.Random) -> Drawn:
    import torchvision

    name = rng.choice(torchvision.models.list_models(module=torchvision.models))
    args = {
        "name": name, "size": rng.choice((224, 224, 192, 256, 288)), "batch": rng.randint(8, 200),
        "precision": rng.choice(PRECISIONS), "layout": rng.choice(("contiguous", "channels_last")),
        "optimizer": rng.choice(IMAGE_OPTIMIZERS),
    }  # fmt: skip
    return {
        "factory": "lab.workloads.vision:torchvision_model",
        "args": args,
        "needs": ["torchvision"],
        "family": "vision",
    }


def draw_segmentation(rng: random.Random) -> Drawn:
    args = {"batch": rng.randint(2, 12), "size": 32 * rng.randint(7, 16), "precision": rng.choice(PRECISIONS)}
    return {
        "factory": "lab.workloads.detection_segmentation:unet2d",
        "args": args,
        "needs": [],
        "family": "segmentation",
    }


def draw_language(rng: random.Random) -> Drawn:
    factory = rng.choice(("gpt2", "llama", "bert", "t5", "deberta_v2"))
    heads = rng.choice((8, 12, 16))
    args: dict[str, Any] = {
        "batch": rng.randint(1, 24), "precision": rng.choice(PRECISIONS), "optimizer": rng.choice(TEXT_OPTIMIZERS),
        "style": rng.choice(("function", "loop")),
    }  # fmt: skip
    if factory == "t5":
        args |= {"source": rng.randint(64, 900), "target": rng.randint(32, 300)}
    else:
        args["length"] = rng.randint(100, 512 if factory in ("bert", "deberta_v2") else 1800)
    if factory == "gpt2":
        args |= {"layers": rng.randint(4, 24), "heads": heads, "width": heads * 64, "length": min(1024, args["length"])}
    elif factory == "llama":
        args |= {"layers": rng.randint(4, 20), "heads": heads, "kv_heads": rng.choice((heads, 4)), "width": heads * 64,
                 "inner": 64 * rng.randint(20, 60), "checkpointing": rng.choice(("none", "non-reentrant"))}  # fmt: skip
    elif factory == "bert":
        args["layers"] = rng.randint(4, 24)
    return {
        "factory": f"lab.workloads.language:{factory}",
        "args": args,
        "needs": ["transformers"],
        "family": "language",
    }


def draw_torchvision_other(rng: random.Random) -> Drawn:
    """Video, segmentation and detection networks of torchvision."""
    import torchvision

    kind = rng.choice(("video", "segmentation", "detection"))
    names = torchvision.models.list_models(module=getattr(torchvision.models, kind))
    args: dict[str, Any] = {"name": rng.choice(names), "precision": rng.choice(PRECISIONS)}
    if kind == "video":
        args |= {
            "batch": rng.randint(2, 16),
            "frames": rng.choice((8, 16)),
            "size": 112 if "r" in args["name"][:3] else 224,
        }
        return {
            "factory": "lab.workloads.video:torchvision_video",
            "args": args,
            "needs": ["torchvision"],
            "family": kind,
        }
    args |= {"batch": rng.randint(2, 10), "size": 32 * rng.randint(8, 18)}
    factory = f"lab.workloads.detection_segmentation:torchvision_{kind}"
    return {"factory": factory, "args": args, "needs": ["torchvision"], "family": kind}


def draw_diffusion(rng: random.Random) -> Drawn:
    kind = rng.choice(("ddpm_unet", "vae", "dit_xl", "sd15_unet"))
    args: dict[str, Any] = {"batch": rng.randint(1, 16), "precision": rng.choice(PRECISIONS)}
    if kind == "ddpm_unet":
        width = rng.choice((32, 64, 96))
        args |= {"size": 32 * rng.randint(1, 5), "channels": [width, width, 2 * width, 2 * width, 4 * width, 4 * width]}
    elif kind == "vae":
        args["size"] = 8 * rng.randint(16, 40)
    elif kind == "dit_xl":
        args["layers"] = rng.randint(4, 28)
    factory = f"lab.workloads.diffusion:{kind}"
    return {"factory": factory, "args": args, "needs": ["diffusers"], "family": "diffusion"}


def draw_sequence(rng: random.Random) -> Drawn:
    kind = rng.choice(
        ("recurrent:rnn_lm", "recurrent:deepspeech", "speech:wav2vec2", "speech:whisper", "speech:conformer")
    )
    args: dict[str, Any] = {"batch": rng.randint(2, 48), "precision": rng.choice(PRECISIONS)}
    if kind.endswith("rnn_lm"):
        args |= {
            "kind": rng.choice(("lstm", "gru")),
            "length": rng.randint(30, 300),
            "width": 8 * rng.randint(16, 200),
            "layers": rng.randint(1, 4),
            "dropout": rng.choice((0.0, 0.2)),
            "two_way": rng.random() < 0.3,
        }
    elif kind.endswith("deepspeech"):
        args |= {"frames": rng.randint(300, 1200), "width": 16 * rng.randint(16, 64), "layers": rng.randint(2, 6)}
    elif kind.endswith("wav2vec2"):
        args |= {
            "seconds": round(rng.uniform(2, 14), 1),
            "layers": rng.randint(4, 14),
            "freeze_features": rng.random() < 0.5,
        }
    elif kind.endswith("whisper"):
        args |= {"target": rng.randint(20, 300), "layers": rng.randint(2, 12)}
    else:
        args |= {"frames": rng.randint(200, 1200), "width": 32 * rng.randint(4, 12), "layers": rng.randint(4, 16)}
    return {"factory": f"lab.workloads.{kind}", "args": args, "needs": ["transformers"], "family": "sequences"}


KINDS = {
    "first": (draw_timm, draw_timm, draw_timm, draw_torchvision, draw_language, draw_segmentation),
    "wider": (draw_timm, draw_torchvision, draw_torchvision_other, draw_language, draw_diffusion, draw_sequence),
}


def predicted_gib(entry: Drawn) -> float | None:
    """Reserved memory of three steps on a virtual H200; None where it does not train there."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        try:
            return pool.apply_async(_predict, (entry,)).get(timeout=90)
        except multiprocessing.TimeoutError:
            return None


def _predict(entry: Drawn) -> float | None:
    from vramcast.base.factories import load_factory
    from vramcast.card.device.context import virtual_gpu

    try:
        with contextlib.redirect_stdout(sys.stderr), virtual_gpu("h200") as gpu:
            step = load_factory(entry["factory"])(**entry["args"])
            for _ in range(3):
                step()
        return gpu.prediction().peak_reserved_bytes / GIB
    except Exception as failure:
        print(f"  left out: {entry['args'].get('name', entry['factory'])}: {str(failure)[:100]}", file=sys.stderr)
        return None


def draw(seed: int, count: int, kinds: Sequence[Callable[[random.Random], Drawn]]) -> list[Drawn]:
    rng = random.Random(seed)
    drawn: list[Drawn] = []
    while len(drawn) < count:
        entry = kinds[len(drawn) % len(kinds)](rng)
        gib = predicted_gib(entry)
        if gib is None:
            continue
        if not SMALLEST_GIB <= gib <= LARGEST_GIB and entry["args"]["batch"] > 1:
            # A batch that brings it into the middle of the range, once.
            entry["args"]["batch"] = max(1, min(512, round(entry["args"]["batch"] * rng.uniform(4, 14) / gib)))
            gib = predicted_gib(entry)
            if gib is None or not SMALLEST_GIB / 2 <= gib <= LARGEST_GIB:
                continue
        label = entry["args"].get("name") or entry["factory"].rpartition(":")[2]
        tags = [entry.pop("family"), "drawn"]
        drawn.append({"name": f"d{seed}-{len(drawn):02d}-{label}", **entry, "gib": round(gib + 0.5), "tags": tags})
        print(f"{drawn[-1]['name']}: {gib:.3f} GiB", file=sys.stderr, flush=True)
    return drawn


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--kinds", choices=KINDS, default="wider")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)  # forked children cannot use this process's threads
    workloads = draw(options.seed, options.count, KINDS[options.kinds])
    note = f"# Drawn by lab/measuring/draw.py, seed {options.seed}.\n"
    options.out.write_text(note + yaml.safe_dump({"workloads": workloads}, sort_keys=False, width=120))
    return 0


if __name__ == "__main__":
    sys.exit(main())
