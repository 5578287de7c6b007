"""Time vramcast beside PyTorch's MemTracker, on this machine, in this run; and the workloads with a bar of their own.

    python -m lab.comparing.benchmark           # `make bench`

Every figure is one run in a fresh child process after all imports: building the model, two training steps, the peak.
MemTracker follows fake CUDA tensors and needs a CUDA GPU for its backward pass; without one only vramcast is timed.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lab.comparing.predictions import Measured, import_heavy, recordings, run_virtually
from lab.measuring.children import Outcome, run_each
from lab.measuring.measure_corpus import Workload, load_corpus

GIB = 1 << 30
STEPS = 2
TIMEOUT_SECONDS = 300.0
CHOSEN = (
    "gpt2-fp32", "gpt2-bf16", "bert-fp32", "llama-1b-foreach", "llama-400m-fp32", "opt-1b-pure-bf16", "marian-fp32",
    "vit-large-bf16", "swin-tiny-fp32", "resnet50-fp32", "convnext-base-bf16", "unet2d-fp32", "sd15-unet-bf16",
    "dit-xl-bf16", "fno2d-256", "transformer-encoder-fp32",
)  # fmt: skip


@dataclass(frozen=True)
class Bar:
    """A workload with limits of its own."""

    title: str
    work: Callable[[], int]
    seconds: float | None
    rss_bytes: int | None


def by_vramcast(workload: Measured) -> int:
    return int(run_virtually(workload, STEPS).peak_allocated_bytes)


def by_mem_tracker(workload: Measured) -> int:
    """The peak that PyTorch's MemTracker reports, used as its documentation shows."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    from vramcast.base.factories import load_factory

    optimizers: list[torch.optim.Optimizer] = []
    made = torch.optim.Optimizer.__init__

    def remember(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        optimizers.append(self)

    factory = load_factory(workload.factory)
    torch.manual_seed(workload.seed)
    with FakeTensorMode(), torch.device("cuda"), fake_modules_convert():
        torch.optim.Optimizer.__init__ = remember  # type: ignore[method-assign]
        try:
            step = factory(**workload.args)
        finally:
            torch.optim.Optimizer.__init__ = made  # type: ignore[method-assign]
        tracker = MemTracker()
        tracker.track_external(*_root_modules(), *optimizers)
        with tracker:
            for index in range(STEPS):
                step()
                if index == 0:
                    tracker.reset_mod_stats()
        peak = tracker.get_tracker_snapshot("peak")
    return int(max(sum_of["Total"] for device, sum_of in peak.items() if device.type == "cuda"))


@contextmanager
def fake_modules_convert() -> Iterator[None]:
    """Lets `.cuda()`, `.to(...)` and the like convert modules of fake tensors, which PyTorch swaps and often refuses.

    A tensor that already is what was asked for stays; any other is replaced by a new parameter, shared where the
    old one was shared.
    """
    from torch import nn, no_grad

    applied = nn.Module._apply
    replaced: dict[nn.Parameter, nn.Parameter] = {}

    def convert(self: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
        for child in self.children() if recurse else ():
            child._apply(fn)
        for key, parameter in self._parameters.items():
            if parameter is None:
                continue
            if parameter not in replaced:
                with no_grad():
                    value = fn(parameter)
                replaced[parameter] = (
                    parameter if value is parameter else nn.Parameter(value, requires_grad=parameter.requires_grad)
                )
            self._parameters[key] = replaced[parameter]
        for key, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[key] = fn(buffer)
        return self

    def outermost(self: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
        nn.Module._apply = convert  # type: ignore[method-assign]
        try:
            return convert(self, fn, recurse)
        finally:
            nn.Module._apply = outermost  # type: ignore[method-assign]
            replaced.clear()

    nn.Module._apply = outermost  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module._apply = applied  # type: ignore[method-assign]


def _root_modules() -> list[Any]:
    """The models of the job: modules that no other module contains."""
    from torch import nn

    # The type, not isinstance: that would wake up lazy modules of libraries.
    alive: list[Any] = [item for item in gc.get_objects() if issubclass(type(item), nn.Module)]
    inner = {id(child) for module in alive for child in module.children()}
    return [module for module in alive if id(module) not in inner and any(True for _ in module.parameters())]


# -- the workloads with bars ----------------------------------------------------------------------------------------


def gpt2_autocast() -> int:
    return _of_corpus("gpt2-bf16")


def stable_diffusion_unet() -> int:
    return _of_corpus("sd15-unet-bf16")


def _of_corpus(name: str) -> int:
    (workload,) = [w for w in load_corpus() if w.name == name]
    return by_vramcast(as_measured(workload))


def llama_70b_checkpointed() -> int:
    """80 layers, 8192 wide, bf16, one sequence of 2048 tokens."""
    import torch
    import transformers

    from vramcast.card.device.context import virtual_gpu

    config = transformers.LlamaConfig(
        num_hidden_layers=80, hidden_size=8192, num_attention_heads=64, num_key_value_heads=8,
        intermediate_size=28672, vocab_size=128256, max_position_embeddings=8192, use_cache=False,
    )  # fmt: skip
    with virtual_gpu("b300", limit_bytes=2048 * GIB) as gpu:
        with torch.device("cuda"):
            model: Any = transformers.LlamaForCausalLM(config)
            model.to(torch.bfloat16)
        model.gradient_checkpointing_enable()
        _train(model, 2048)
    return int(gpu.prediction().peak_allocated_bytes)


def llama_7b_on_the_cpu_first() -> int:
    """32 layers, 4096 wide, fp32, built as a script would: on the CPU, then moved."""
    import transformers

    from vramcast.card.device.context import virtual_gpu

    config = transformers.LlamaConfig(
        num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, intermediate_size=11008, vocab_size=32000,
        use_cache=False,
    )  # fmt: skip
    with virtual_gpu("b300", limit_bytes=2048 * GIB) as gpu:
        model: Any = transformers.LlamaForCausalLM(config)
        model.cuda()
        _train(model, 512)
    return int(gpu.prediction().peak_allocated_bytes)


def _train(model: Any, length: int) -> None:
    import torch

    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for _ in range(STEPS):
        tokens = torch.randint(0, 32000, (1, length)).to("cuda")
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


ADVISED = ("--batch", "480", "--seq", "2048", "--precision", "fp32", "--gpu", "rtx-4090")
"""24 batches that divide it, with checkpointing, the allocator, half precision, optimizers and the loss in pieces."""


def advise_1b() -> int:
    """The whole command in an interpreter of its own, imports included: TinyLlama's shape from a folder."""
    import json
    import subprocess
    import tempfile
    from pathlib import Path

    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632,
        "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000,
        "max_position_embeddings": 2048,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        command = [sys.executable, "-m", "vramcast", "advise", folder, *ADVISED, "--json"]
        advice = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if advice["combinations"] < 500:
        raise RuntimeError(f"only {advice['combinations']} combinations")
    return int(advice["best"][0]["device_bytes"])


BARS = (
    Bar("GPT-2 124M, bf16 autocast, two steps", gpt2_autocast, 1.0, None),
    Bar("Stable Diffusion 1.5's U-Net, two steps", stable_diffusion_unet, 4.0, None),
    Bar("Llama 70 B, bf16, checkpointing, AdamW, two steps", llama_70b_checkpointed, 10.0, 2 * GIB),
    Bar("Llama 7 B built on the CPU, then moved", llama_7b_on_the_cpu_first, None, 3 * GIB),
    Bar("advise for a Llama of 1 B, over 500 combinations", advise_1b, 10.0, None),
)


# -- running and printing -------------------------------------------------------------------------------------------


def as_measured(workload: Workload, recorded: Measured | None = None) -> Measured:
    """The corpus's definition; beside it the measured peak, where these very arguments were measured."""
    same = recorded is not None and recorded.args == workload.args
    return Measured(
        name=workload.name, factory=workload.factory, args=workload.args, tags=tuple(workload.tags), seed=0, gpu="h200",
        allocator_conf="", allocated_bytes=recorded.allocated_bytes if recorded and same else 0,
        reserved_bytes=recorded.reserved_bytes if recorded and same else 0, device_bytes=None,
    )  # fmt: skip


def one(work: Callable[[Any], int], task: Any) -> Outcome:
    ((_, outcome),) = run_each(work, [task], jobs=1, timeout_seconds=TIMEOUT_SECONDS)
    return outcome


def has_gpu() -> bool:
    """Asked in a child: a parent that touched CUDA cannot fork."""
    return bool(one(_cuda_available, None).value)


def _cuda_available(_: None) -> int:
    import torch

    return int(torch.cuda.is_available())


def compare(names: tuple[str, ...], repeat: int) -> int:
    recorded = {w.name: w for recording in recordings() for w in recording.workloads}
    corpus = {w.name: w for w in load_corpus()}
    workloads = []
    for name in names:
        if name not in corpus or corpus[name].missing:
            print(f"{name}: left out, {'not in the corpus' if name not in corpus else corpus[name].missing}")
            continue
        workloads.append(as_measured(corpus[name], recorded.get(name)))
    import_heavy(workloads)
    __import__("torch.distributed._tools.mem_tracker")
    gpu = has_gpu()
    if not gpu:
        print("No CUDA GPU here: PyTorch's MemTracker cannot run, only vramcast is timed.")
    print(f"{'workload':<28}{'vramcast':>10}{'MemTracker':>12}{'ratio':>8}   error of allocated: vramcast, MemTracker")
    ratios = []
    failures = []
    for workload in workloads:
        ours = min((one(by_vramcast, workload) for _ in range(repeat)), key=lambda o: (bool(o.error), o.seconds))
        theirs = min((one(by_mem_tracker, workload) for _ in range(repeat if gpu else 0)),
                     key=lambda o: (bool(o.error), o.seconds), default=None)  # fmt: skip
        for who, outcome in (("vramcast", ours), ("MemTracker", theirs)):
            if outcome is not None and outcome.error:
                failures.append(f"{who}, {workload.name}: {outcome.error[:160]}")
        ratio = ""
        if theirs is not None and not theirs.error and not ours.error:
            ratios.append(theirs.seconds / ours.seconds)
            ratio = f"{ratios[-1]:.1f}x"
        errors = f"{_error(ours, workload)}, {_error(theirs, workload)}"
        print(f"{workload.name:<28}{_seconds(ours):>10}{_seconds(theirs):>12}{ratio:>8}   {errors}", flush=True)
    if ratios:
        print(f"median ratio over {len(ratios)} workloads that both answered: {statistics.median(ratios):.1f}x")
    for failure in failures:
        print(f"failed: {failure}")
    return int(any(f.startswith("vramcast") for f in failures))


def _seconds(outcome: Outcome | None) -> str:
    return "-" if outcome is None else "failed" if outcome.error else f"{outcome.seconds:.2f} s"


def _error(outcome: Outcome | None, workload: Measured) -> str:
    if outcome is None or outcome.error or not workload.allocated_bytes:
        return "-"
    return f"{100 * (outcome.value / workload.allocated_bytes - 1):+.2f} %"


def bars() -> int:
    import_heavy([])
    __import__("transformers").LlamaForCausalLM  # noqa: B018 (loads the module now, as an import would)
    print()
    missed = 0
    for bar in BARS:
        outcome = one(lambda work: work(), bar.work)
        if outcome.error:
            missed += 1
            print(f"{bar.title:<52} failed: {outcome.error[:200]}")
            continue
        late = bar.seconds is not None and outcome.seconds > bar.seconds
        large = bar.rss_bytes is not None and outcome.peak_rss_bytes > bar.rss_bytes
        missed += late or large
        limits = [f"{bar.seconds:g} s"] if bar.seconds is not None else []
        limits += [f"{bar.rss_bytes / GIB:g} GiB"] if bar.rss_bytes is not None else []
        print(
            f"{bar.title:<52} {outcome.seconds:6.2f} s, {outcome.peak_rss_bytes / GIB:.2f} GiB of RAM, peak "
            f"{outcome.value / GIB:,.1f} GiB  (bar: {', '.join(limits)}{'; MISSED' if late or large else ''})",
            flush=True,
        )
    return missed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CHOSEN), help="names of workloads, with commas")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each; the fastest counts")
    parser.add_argument("--bars-only", action="store_true")
    options = parser.parse_args(arguments)
    failed = 0 if options.bars_only else compare(tuple(filter(None, options.only.split(","))), options.repeat)
    return int(bool(bars()) or bool(failed))


if __name__ == "__main__":
    sys.exit(main())
