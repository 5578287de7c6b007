"""Distributed training jobs, each a plain script: `RANK=0 WORLD_SIZE=8 python jobs.py fsdp2-llama`.

They are written as a user would write them for `torchrun`; `measure.py` runs one rank on a real GPU over torch's fake
process group, `vramcast run` runs the same rank on the virtual card.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

DEVICE = os.environ.get("JOB_DEVICE", "cuda")
TINY = bool(os.environ.get("JOB_TINY"))
STEPS = 6

# --- models -----------------------------------------------------------------------------------------------------


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.head = width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_heads * self.head, bias=False)
        self.v = nn.Linear(width, kv_heads * self.head, bias=False)
        self.o = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (p(x).view(batch, length, -1, self.head).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(out.transpose(1, 2).reshape(batch, length, -1))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat((-second, first), dim=-1) * sin.to(x.dtype)


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = Norm(width), Norm(width)
        self.attention = Attention(width, heads, kv_heads)
        self.ffn = FeedForward(width, hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.ffn(self.ffn_norm(x))


class Llama(nn.Module):
    """A Llama whose ends may be missing, as a stage of a pipeline has it."""

    def __init__(self, layers: range, *, first: bool = True, last: bool = True, **sizes: int) -> None:
        super().__init__()
        width, heads, length = sizes["width"], sizes["heads"], sizes["length"]
        self.embed = nn.Embedding(sizes["vocab"], width) if first else None
        blocks = {str(i): Block(width, heads, sizes["kv_heads"], sizes["hidden"]) for i in layers}
        self.layers = nn.ModuleDict(blocks)
        self.norm = Norm(width) if last else None
        self.head = nn.Linear(width, sizes["vocab"], bias=False) if last else None
        head = width // heads
        angles = torch.outer(torch.arange(length).float(), 1.0 / 500000.0 ** (torch.arange(0, head, 2).float() / head))
        self.register_buffer("cos", torch.cat((angles, angles), dim=-1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat((angles, angles), dim=-1).sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.embed is not None:
            x = self.embed(x)
        for layer in self.layers.values():
            x = layer(x, self.cos, self.sin)
        return x if self.head is None or self.norm is None else self.head(self.norm(x))


class GptBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.ln_1(x)).chunk(3, dim=-1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh")))


class Gpt(nn.Module):
    def __init__(self, width: int, heads: int, layers: int, vocab: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.GroupNorm(32, inputs), nn.GroupNorm(32, outputs)
        self.conv_1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv_2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv_1(F.silu(self.norm_1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv_2(F.silu(self.norm_2(y)))


class Spatial(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.GroupNorm(32, width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, width, high, wide = x.shape
        y = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = (t.view(batch, high * wide, -1, 64).transpose(1, 2) for t in self.qkv(y).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, high * wide, width)
        return x + self.out(y).transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    """A diffusion U-Net over latents."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        time = 4 * widths[0]
        self.time = nn.Sequential(nn.Linear(widths[0], time), nn.SiLU(), nn.Linear(time, time))
        self.enter = nn.Conv2d(4, widths[0], 3, padding=1)
        pairs = list(zip((widths[0], *widths), widths, strict=False))
        self.down = nn.ModuleList(Residual(a, b, time) for a, b in pairs)
        self.shrink = nn.ModuleList(nn.Conv2d(b, b, 3, stride=2, padding=1) for _, b in pairs[:-1])
        self.middle = nn.ModuleList([Residual(widths[-1], widths[-1], time), Spatial(widths[-1])])
        self.up = nn.ModuleList(Residual(2 * b, a, time) for a, b in reversed(pairs))
        self.leave = nn.Conv2d(widths[0], 4, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        t = self.time(time)
        x = self.enter(x)
        kept = []
        for i, block in enumerate(self.down):
            x = block(x, t)
            kept.append(x)
            if i < len(self.shrink):
                x = self.shrink[i](x)
        x = self.middle[1](self.middle[0](x, t))
        for i, block in enumerate(self.up):
            x = block(torch.cat((x, kept.pop()), dim=1), t)
            if i < len(self.shrink):
                x = F.interpolate(x, scale_factor=2.0)
        return self.leave(x)


# --- sizes ------------------------------------------------------------------------------------------------------

LLAMA = {"width": 2048, "heads": 16, "kv_heads": 4, "hidden": 5632, "vocab": 32000, "length": 2048}
N_LLAMA = 8
GPT = {"width": 768, "heads": 12, "layers": 12, "vocab": 50257, "length": 1024}
WIDTHS: tuple[int, ...] = (192, 384, 576, 960)
if TINY:
    LLAMA = {"width": 256, "heads": 8, "kv_heads": 4, "hidden": 512, "vocab": 1000, "length": 64}
    GPT = {"width": 64, "heads": 4, "layers": 2, "vocab": 1000, "length": 64}
    WIDTHS = (64, 128)


def llama(**sizes: int) -> Llama:
    with torch.device(DEVICE):
        return Llama(range(N_LLAMA), **{**LLAMA, **sizes})


def gpt() -> Gpt:
    return Gpt(**GPT)


def tokens(batch: int, length: int | None = None, vocab: int | None = None) -> tuple[Tensor, Tensor]:
    length, vocab = length or LLAMA["length"], vocab or LLAMA["vocab"]
    ids = torch.randint(0, vocab, (batch, length + 1)).to(DEVICE)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def language_step(model: nn.Module, batch: int, **sizes: int) -> Callable[[], None]:
    def step() -> None:
        ids, targets = tokens(batch, **sizes)
        loss_of(model(ids), targets).backward()

    return step


def train(
    step: Callable[[], None], optimizer: Any, clip: nn.Module | None = None, steps: int = STEPS
) -> Iterator[None]:
    for _ in range(steps):
        step()
        if clip is not None:
            nn.utils.clip_grad_norm_(clip.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield


def adamw(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, **options)


# --- FSDP2 ------------------------------------------------------------------------------------------------------


def shard_llama(model: Llama, mesh: DeviceMesh | None = None, **options: Any) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if options.pop("mixed", True):
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)


def checkpoint_layers(model: Llama) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    for name, layer in list(model.layers.items()):
        model.layers[name] = checkpoint_wrapper(layer)


def fsdp2(
    *, batch: int = 2, mesh: tuple[int, ...] | None = None, checkpoint: bool = False, clip: bool = False,
    on: str | None = None, accumulate: int = 1, **options: Any,
) -> Iterator[None]:  # fmt: skip
    devices = (
        None if mesh is None else init_device_mesh(DEVICE, mesh, mesh_dim_names=("replicate", "shard")[-len(mesh) :])
    )
    if on == "meta":
        with torch.device("meta"):
            model = Llama(range(N_LLAMA), **LLAMA)
    elif on == "cpu":
        model = Llama(range(N_LLAMA), **LLAMA)
    else:
        model = llama()
    if checkpoint:
        checkpoint_layers(model)
    shard_llama(model, devices, **options)
    if on == "meta":
        model.to_empty(device=DEVICE)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.02)
    optimizer = adamw(model)
    forward_backward = language_step(model, batch)

    def step() -> None:
        for i in range(accumulate):
            model.set_requires_gradient_sync(i == accumulate - 1)
            forward_backward()

    return train(step, optimizer, model if clip else None)


def fsdp2_offload() -> Iterator[None]:
    from torch.distributed.fsdp import CPUOffloadPolicy

    return fsdp2(offload_policy=CPUOffloadPolicy(), on="cpu")


def fsdp2_vit(batch: int = 64) -> Iterator[None]:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torchvision.models import vit_b_16

    model = vit_b_16().to(DEVICE)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for layer in model.encoder.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return train(image_step(model, batch), adamw(model, fused=True))


def image_step(model: nn.Module, batch: int) -> Callable[[], None]:
    def step() -> None:
        images = torch.randn(batch, 3, 224, 224).to(DEVICE)
        F.cross_entropy(model(images), torch.randint(0, 1000, (batch,)).to(DEVICE)).backward()

    return step


def diffusion_step(model: nn.Module, batch: int, size: int = 64) -> Callable[[], None]:
    def step() -> None:
        latents = torch.randn(batch, 4, size, size).to(DEVICE)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            prediction = model(latents, torch.randn(batch, WIDTHS[0]).to(DEVICE))
            F.mse_loss(prediction.float(), torch.randn_like(latents)).backward()

    return step


def fsdp2_unet() -> Iterator[None]:
    from torch.distributed.fsdp import fully_shard

    model = UNet(WIDTHS).to(DEVICE)
    for block in (*model.down, *model.middle, *model.up):
        fully_shard(block)
    fully_shard(model)
    return train(diffusion_step(model, 16), adamw(model))


# --- FSDP1 ------------------------------------------------------------------------------------------------------


def fsdp1(
    strategy: str, *, batch: int = 2, offload: bool = False, checkpoint: bool = False, **options: Any
) -> Iterator[None]:
    from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    model = llama(**{name: options.pop(name) for name in list(options) if name in LLAMA})
    mesh = init_device_mesh(DEVICE, (2, 4)) if "HYBRID" in strategy else None
    wrapped = FullyShardedDataParallel(
        model,
        sharding_strategy=ShardingStrategy[strategy],
        auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
        mixed_precision=MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16),
        device_id=torch.cuda.current_device() if DEVICE == "cuda" else None,
        cpu_offload=CPUOffload(True) if offload else None,
        device_mesh=mesh,
        use_orig_params=True,
        **options,
    )
    if checkpoint:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

        apply_activation_checkpointing(wrapped, check_fn=lambda module: isinstance(module, Block))
    return train(language_step(wrapped, batch), adamw(wrapped))


# --- DDP --------------------------------------------------------------------------------------------------------


def ddp(*, hook: str | None = None, zero: bool = False, batch: int = 8, **options: Any) -> Iterator[None]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = gpt().to(DEVICE)
    wrapped = nn.parallel.DistributedDataParallel(model, device_ids=[0] if DEVICE == "cuda" else None, **options)
    if hook is not None:
        wrapped.register_comm_hook(None, getattr(default_hooks, hook))
    parameters = wrapped.parameters()
    if zero:
        optimizer: Any = ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.AdamW, lr=1e-4)
    else:
        optimizer = torch.optim.AdamW(parameters, lr=1e-4)

    def step() -> None:
        ids, targets = tokens(batch, GPT["length"], GPT["vocab"])
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = loss_of(wrapped(ids), targets)
        loss.backward()

    return train(step, optimizer)


def ddp_vit(batch: int = 64) -> Iterator[None]:
    from torchvision.models import vit_b_16

    model = nn.parallel.DistributedDataParallel(vit_b_16().to(DEVICE), gradient_as_bucket_view=True)
    return train(image_step(model, batch), torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))


def ddp_unet() -> Iterator[None]:
    model = nn.parallel.DistributedDataParallel(UNet(WIDTHS).to(DEVICE))
    return train(diffusion_step(model, 16), adamw(model))


# --- tensor parallel --------------------------------------------------------------------------------------------


def tensor_parallel(model: Llama, mesh: DeviceMesh, sequence: bool, loss: bool = False) -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    rows: Any = Shard(1) if sequence else Replicate()
    plan: dict[str, Any] = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=rows),
        "head": ColwiseParallel(
            input_layouts=rows, output_layouts=Shard(-1) if loss else Replicate(), use_local_output=not loss
        ),
    }
    if sequence:
        plan["norm"] = SequenceParallel()
    parallelize_module(model, mesh, plan)
    for layer in model.layers.values():
        plan = {
            "attention.q": ColwiseParallel(),
            "attention.k": ColwiseParallel(),
            "attention.v": ColwiseParallel(),
            "attention.o": RowwiseParallel(output_layouts=rows),
            "ffn.gate": ColwiseParallel(),
            "ffn.up": ColwiseParallel(),
            "ffn.down": RowwiseParallel(output_layouts=rows),
        }
        if sequence:
            layouts: Any = (Shard(1), None, None)
            plan["attention_norm"] = plan["ffn_norm"] = SequenceParallel()
            plan["attention"] = PrepareModuleInput(
                input_layouts=layouts, desired_input_layouts=(Replicate(), None, None)
            )
            plan["ffn"] = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        parallelize_module(layer, mesh, plan)


def tp(*, sequence: bool = False, data: int | None = None, batch: int = 2) -> Iterator[None]:
    world = dist.get_world_size()
    model = llama()
    if data is None:
        tensor_parallel(model, init_device_mesh(DEVICE, (world,)), sequence)
        model.to(torch.bfloat16)
    else:
        mesh = init_device_mesh(DEVICE, (data, world // data), mesh_dim_names=("dp", "tp"))
        tensor_parallel(model, mesh["tp"], sequence)
        shard_llama(model, mesh["dp"])
    # Without sequence parallelism norms stay plain tensors, which foreach would not mix with DTensors.
    return train(language_step(model, batch), adamw(model, foreach=sequence))


# --- pipeline ---------------------------------------------------------------------------------------------------


def pipeline(*, schedule: str = "1F1B", microbatches: int = 8, batch: int = 8) -> Iterator[None]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    rank, world = dist.get_rank(), dist.get_world_size()
    each = N_LLAMA // world
    with torch.device(DEVICE):
        model = Llama(range(rank * each, (rank + 1) * each), first=rank == 0, last=rank == world - 1, **LLAMA).to(
            torch.bfloat16
        )
    small = batch // microbatches
    inner = torch.empty(small, LLAMA["length"], LLAMA["width"], dtype=torch.bfloat16, device="meta")
    ids = torch.empty(small, LLAMA["length"], dtype=torch.long, device="meta")
    logits = torch.empty(small, LLAMA["length"], LLAMA["vocab"], dtype=torch.bfloat16, device="meta")
    stage = PipelineStage(
        model,
        rank,
        world,
        torch.device(DEVICE),
        input_args=(ids if rank == 0 else inner,),
        output_args=(logits if rank == world - 1 else inner,),
    )
    kind = {"1F1B": Schedule1F1B, "GPipe": ScheduleGPipe}[schedule]
    run = kind(stage, microbatches, loss_fn=loss_of)

    def step() -> None:
        inputs, targets = tokens(batch)
        if rank == 0:
            run.step(inputs)
        elif rank == world - 1:
            run.step(target=targets)
        else:
            run.step()

    return train(step, adamw(model))


def interleaved(*, microbatches: int = 8, batch: int = 8) -> Iterator[None]:
    """Two stages on each rank."""
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

    rank, world = dist.get_rank(), dist.get_world_size()
    each, small = N_LLAMA // (2 * world), batch // microbatches
    stages = []
    for number in (rank, rank + world):
        first, last = number == 0, number == 2 * world - 1
        with torch.device(DEVICE):
            model = Llama(range(number * each, (number + 1) * each), first=first, last=last, **LLAMA).to(torch.bfloat16)
        inner = torch.empty(small, LLAMA["length"], LLAMA["width"], dtype=torch.bfloat16, device="meta")
        ids = torch.empty(small, LLAMA["length"], dtype=torch.long, device="meta")
        logits = torch.empty(small, LLAMA["length"], LLAMA["vocab"], dtype=torch.bfloat16, device="meta")
        stages.append(
            PipelineStage(
                model,
                number,
                2 * world,
                torch.device(DEVICE),
                input_args=(ids if first else inner,),
                output_args=(logits if last else inner,),
            )
        )
    run = ScheduleInterleaved1F1B(stages, microbatches, loss_fn=loss_of)
    parameters = [p for stage in stages for p in stage.submod.parameters()]

    def step() -> None:
        inputs, targets = tokens(batch)
        run.step(*([inputs] if rank == 0 else []), **({"target": targets} if rank == world - 1 else {}))

    return train(step, torch.optim.AdamW(parameters, lr=1e-4))


# --- more -------------------------------------------------------------------------------------------------------


class LowRank(nn.Module):
    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, rank, bias=False, device=base.weight.device)
        self.b = nn.Linear(rank, base.out_features, bias=False, device=base.weight.device)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.b(self.a(x))


def lora() -> Iterator[None]:
    model = llama().requires_grad_(False)
    for layer in model.layers.values():
        for name in ("q", "k", "v", "o"):
            setattr(layer.attention, name, LowRank(getattr(layer.attention, name), 16))
    checkpoint_layers(model)
    shard_llama(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    return train(language_step(model, 2), optimizer)


def prefetch() -> Iterator[None]:
    model = llama()
    shard_llama(model)
    layers: list[Any] = list(model.layers.values())
    for here, then in zip(layers, layers[2:], strict=False):
        here.set_modules_to_forward_prefetch([then])
    return train(language_step(model, 2), adamw(model, fused=True), model)


def hugging_face(kind: str, *, strategy: str = "fsdp2") -> Iterator[None]:
    import transformers

    if kind == "llama":
        config: Any = transformers.LlamaConfig(
            hidden_size=1536, intermediate_size=4096, num_hidden_layers=8, num_attention_heads=12,
            num_key_value_heads=4, vocab_size=32000,
        )  # fmt: skip
        model: Any = transformers.LlamaForCausalLM(config)
    else:
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=8))
    model = model.to(DEVICE)
    vocab = model.config.vocab_size
    if strategy == "fsdp2":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        model.gradient_checkpointing_enable()
        for layer in model.model.layers if kind == "llama" else model.transformer.h:
            fully_shard(layer, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        wrapped = model
    else:
        wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)

    def step() -> None:
        ids = torch.randint(0, vocab, (4, 1024)).to(DEVICE)
        wrapped(input_ids=ids, labels=ids).loss.backward()

    return train(step, adamw(wrapped))


def accumulate_ddp() -> Iterator[None]:
    wrapped = nn.parallel.DistributedDataParallel(gpt().to(DEVICE), bucket_cap_mb=100)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        for i in range(3):
            ids, targets = tokens(4, GPT["length"], GPT["vocab"])
            if i < 2:
                with wrapped.no_sync():
                    loss_of(wrapped(ids), targets).backward()
            else:
                loss_of(wrapped(ids), targets).backward()

    return train(step, optimizer, wrapped)


class Experts(nn.Module):
    """A layer of experts, one group of them on each rank; tokens go to them and come back."""

    def __init__(self, width: int, hidden: int, here: int) -> None:
        super().__init__()
        self.norm, self.router = Norm(width), nn.Linear(width, here * dist.get_world_size(), bias=False)
        self.up = nn.Parameter(torch.randn(here, width, hidden) * 0.02)
        self.down = nn.Parameter(torch.randn(here, hidden, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        from torch.distributed._functional_collectives import all_to_all_single_autograd

        world = dist.get_world_size()
        rows = self.norm(x).flatten(0, 1)
        gate, chosen = self.router(rows).softmax(-1).max(-1)
        order = chosen.argsort()
        sent = rows[order]
        each = [len(rows) // world] * world
        there = all_to_all_single_autograd(sent, each, each, dist.group.WORLD)
        mine = there.view(len(self.up), -1, there.shape[-1])
        done = (torch.bmm(F.silu(torch.bmm(mine, self.up)), self.down)).view_as(there)
        back = all_to_all_single_autograd(done, each, each, dist.group.WORLD)
        out = torch.zeros_like(rows).index_copy(0, order, back)
        return x + (out * gate[:, None]).view_as(x)


def experts() -> Iterator[None]:
    with torch.device(DEVICE):
        model = nn.Sequential(
            nn.Embedding(32000, 1024), *(Experts(1024, 2816, 2) for _ in range(6)), nn.Linear(1024, 32000, bias=False)
        )
    model.to(torch.bfloat16)
    return train(language_step(model, 4, length=1024, vocab=32000), adamw(model))


def context_parallel_llama() -> Iterator[None]:
    from torch.distributed.tensor.experimental import context_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel

    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    model = llama().to(torch.bfloat16)

    def step() -> None:
        ids, targets = tokens(2)
        with (
            context_parallel(
                mesh, buffers=[ids, targets, model.cos, model.sin], buffer_seq_dims=[1, 1, 0, 0],
                no_restore_buffers={ids, targets},
            ),
            sdpa_kernel(SDPBackend.FLASH_ATTENTION),
        ):  # fmt: skip
            loss_of(model(ids), targets).backward()

    return train(step, adamw(model))


def loss_parallel_llama() -> Iterator[None]:
    from torch.distributed.tensor.parallel import loss_parallel

    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    model = llama()
    tensor_parallel(model, mesh, sequence=True, loss=True)
    model.to(torch.bfloat16)

    def step() -> None:
        ids, targets = tokens(2)
        with loss_parallel():
            F.cross_entropy(model(ids).flatten(0, 1), targets.flatten()).backward()

    return train(step, adamw(model))


def three_dimensions(*, microbatches: int = 4, batch: int = 8) -> Iterator[None]:
    """FSDP x tensor parallel x pipeline."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    mesh = init_device_mesh(DEVICE, (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    stage, stages = mesh["pp"].get_local_rank(), mesh["pp"].size()
    each, small = N_LLAMA // stages, batch // microbatches
    with torch.device(DEVICE):
        model = Llama(range(stage * each, (stage + 1) * each), first=stage == 0, last=stage == stages - 1, **LLAMA)
    tensor_parallel(model, mesh["tp"], sequence=False)
    shard_llama(model, mesh["dp"], reshard_after_forward=False)
    inner = torch.empty(small, LLAMA["length"], LLAMA["width"], dtype=torch.bfloat16, device="meta")
    ids = torch.empty(small, LLAMA["length"], dtype=torch.long, device="meta")
    logits = torch.empty(small, LLAMA["length"], LLAMA["vocab"], dtype=torch.bfloat16, device="meta")
    first, last = stage == 0, stage == stages - 1
    run = Schedule1F1B(
        PipelineStage(
            model,
            stage,
            stages,
            torch.device(DEVICE),
            input_args=(ids if first else inner,),
            output_args=(logits if last else inner,),
            group=mesh["pp"].get_group(),
        ),
        microbatches,
        loss_fn=loss_of,
    )

    def step() -> None:
        inputs, targets = tokens(batch)
        run.step(*([inputs] if first else []), **({"target": targets} if last else {}))

    return train(step, adamw(model, foreach=False))


def power_sgd() -> Iterator[None]:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    wrapped = nn.parallel.DistributedDataParallel(gpt().to(DEVICE))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
    wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    def step() -> None:
        ids, targets = tokens(4, GPT["length"], GPT["vocab"])
        loss_of(wrapped(ids), targets).backward()

    return train(step, torch.optim.SGD(wrapped.parameters(), lr=0.01, momentum=0.9))


def large_fsdp1() -> Iterator[None]:
    """So much work for the card that the host runs ahead."""
    return fsdp1("FULL_SHARD", batch=4, width=4096, heads=32, kv_heads=8, hidden=11008)


def compiled_fsdp2(*, batch: int = 2) -> Iterator[None]:
    """Each layer compiled by itself, then sharded, as torchtitan does."""
    model = llama()
    for layer in model.layers.values():
        layer.compile(fullgraph=True)
    shard_llama(model)
    return train(language_step(model, batch), adamw(model))


def hybrid_tensor_parallel(*, batch: int = 2) -> Iterator[None]:
    """HSDP x tensor parallel."""
    mesh = init_device_mesh(DEVICE, (2, 2, 2), mesh_dim_names=("replicate", "shard", "tp"))
    model = llama()
    tensor_parallel(model, mesh["tp"], sequence=True)
    checkpoint_layers(model)
    shard_llama(model, mesh["replicate", "shard"])
    return train(language_step(model, batch), adamw(model), model)


def context_parallel_fsdp2(*, batch: int = 2) -> Iterator[None]:
    """Context parallel over 4; parameters are sharded over all ranks."""
    from torch.distributed.tensor.experimental import context_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel

    mesh = init_device_mesh(DEVICE, (2, 4), mesh_dim_names=("dp", "cp"))
    model = llama()
    shard_llama(model, mesh["dp", "cp"]._flatten("dp_cp"))

    def step() -> None:
        ids, targets = tokens(batch)
        with (
            context_parallel(
                mesh["cp"], buffers=[ids, targets, model.cos, model.sin], buffer_seq_dims=[1, 1, 0, 0],
                no_restore_buffers={ids, targets},
            ),
            sdpa_kernel(SDPBackend.FLASH_ATTENTION),
        ):  # fmt: skip
            loss_of(model(ids), targets).backward()

    return train(step, adamw(model))


def experts_and_fsdp2() -> Iterator[None]:
    """Experts spread over all ranks, everything else sharded."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    with torch.device(DEVICE):
        model = nn.Sequential(
            nn.Embedding(32000, 1024), *(Experts(1024, 2816, 2) for _ in range(6)), nn.Linear(1024, 32000, bias=False)
        )
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    mine = {p for layer in model if isinstance(layer, Experts) for p in (layer.up, layer.down)}
    for parameter in mine:
        parameter.data = parameter.data.to(torch.bfloat16)
    fully_shard(model, mp_policy=policy, ignored_params=mine)
    return train(language_step(model, 4, length=1024, vocab=32000), adamw(model, foreach=False))


def fsdp1_lora() -> Iterator[None]:
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    model = llama().requires_grad_(False)
    for layer in model.layers.values():
        for name in ("q", "k", "v", "o"):
            setattr(layer.attention, name, LowRank(getattr(layer.attention, name), 16))
    wrapped = FullyShardedDataParallel(
        model,
        auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
        mixed_precision=MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16),
        device_id=torch.cuda.current_device() if DEVICE == "cuda" else None,
        use_orig_params=True,
    )
    return train(language_step(wrapped, 2), torch.optim.AdamW([p for p in wrapped.parameters() if p.requires_grad]))


def zero_with_views() -> Iterator[None]:
    """ZeroRedundancyOptimizer over flat buckets, with DDP's buckets as gradients."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    wrapped = nn.parallel.DistributedDataParallel(gpt().to(DEVICE), gradient_as_bucket_view=True)
    optimizer: Any = ZeroRedundancyOptimizer(
        wrapped.parameters(), optimizer_class=torch.optim.AdamW, parameters_as_bucket_view=True, lr=1e-4
    )

    def step() -> None:
        ids, targets = tokens(8, GPT["length"], GPT["vocab"])
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = loss_of(wrapped(ids), targets)
        loss.backward()

    return train(step, optimizer)


Job = tuple[int, int, Callable[[], Iterator[None]]]
"""The world, the rank, and what it runs."""

_f = functools.partial
JOBS: dict[str, Job] = {
    "fsdp2-llama": (8, 0, fsdp2),
    "fsdp2-llama-rank3": (8, 3, fsdp2),
    "fsdp2-llama-ckpt": (8, 0, _f(fsdp2, checkpoint=True, batch=4)),
    "fsdp2-llama-noreshard": (8, 0, _f(fsdp2, reshard_after_forward=False)),
    "fsdp2-llama-reshard4": (8, 0, _f(fsdp2, reshard_after_forward=4)),
    "fsdp2-llama-meta-clip": (8, 7, _f(fsdp2, on="meta", clip=True)),
    "fsdp2-llama-accumulate": (8, 0, _f(fsdp2, accumulate=3)),
    "fsdp2-llama-fp32": (8, 0, _f(fsdp2, mixed=False, batch=1)),
    "fsdp2-llama-world5": (5, 4, _f(fsdp2, on="cpu")),
    "fsdp2-llama-1024": (1024, 0, _f(fsdp2)),
    "hsdp-2x4": (8, 0, _f(fsdp2, mesh=(2, 4))),
    "hsdp-4x2-ckpt": (8, 5, _f(fsdp2, mesh=(4, 2), checkpoint=True)),
    "fsdp2-offload": (8, 0, fsdp2_offload),
    "fsdp2-vit": (8, 0, fsdp2_vit),
    "fsdp2-unet": (8, 0, fsdp2_unet),
    "ddp-gpt2": (8, 0, ddp),
    "ddp-gpt2-view": (8, 0, _f(ddp, gradient_as_bucket_view=True)),
    "ddp-gpt2-static": (8, 0, _f(ddp, static_graph=True)),
    "ddp-gpt2-unused": (8, 0, _f(ddp, find_unused_parameters=True, bucket_cap_mb=50)),
    "ddp-gpt2-bf16-hook": (8, 0, _f(ddp, hook="bf16_compress_hook")),
    "ddp-gpt2-zero": (8, 1, _f(ddp, hook="allreduce_hook", zero=True)),
    "ddp-vit": (8, 0, ddp_vit),
    "ddp-unet": (8, 0, ddp_unet),
    "tp4": (4, 0, tp),
    "tp4-sp": (4, 0, _f(tp, sequence=True)),
    "fsdp-tp-2x4": (8, 0, _f(tp, sequence=True, data=2)),
    "fsdp-tp-4x2": (8, 0, _f(tp, data=4)),
    "pp4-first": (4, 0, pipeline),
    "pp4-middle": (4, 1, pipeline),
    "pp4-last": (4, 3, pipeline),
    "pp2-gpipe": (2, 0, _f(pipeline, schedule="GPipe", microbatches=4)),
    "fsdp1-full": (8, 0, _f(fsdp1, "FULL_SHARD")),
    "fsdp1-grad-op": (8, 0, _f(fsdp1, "SHARD_GRAD_OP")),
    "fsdp1-hybrid": (8, 0, _f(fsdp1, "HYBRID_SHARD")),
    "fsdp1-full-ckpt": (8, 0, _f(fsdp1, "FULL_SHARD", checkpoint=True)),
    "fsdp1-offload": (8, 0, _f(fsdp1, "FULL_SHARD", offload=True)),
    "pp2-interleaved": (2, 1, interleaved),
    "fsdp2-lora": (8, 0, lora),
    "fsdp2-prefetch": (16, 3, prefetch),
    "fsdp2-hf-llama": (4, 1, _f(hugging_face, "llama")),
    "fsdp2-hf-gpt2": (8, 0, _f(hugging_face, "gpt2")),
    "ddp-hf-gpt2": (2, 1, _f(hugging_face, "gpt2", strategy="ddp")),
    "ddp-accumulate": (8, 0, accumulate_ddp),
    "ep4": (4, 0, experts),
    "cp4": (4, 0, context_parallel_llama),
    "tp4-loss": (4, 2, loss_parallel_llama),
    "3d-first": (8, 1, three_dimensions),
    "3d-last": (8, 6, three_dimensions),
    "ddp-powersgd": (8, 0, power_sgd),
    "fsdp1-large": (8, 0, large_fsdp1),
    "fsdp1-no-shard": (8, 0, _f(fsdp1, "NO_SHARD")),
    "fsdp1-prefetch": (8, 0, _f(fsdp1, "FULL_SHARD", forward_prefetch=True)),
    "fsdp1-hybrid-zero2": (8, 0, _f(fsdp1, "_HYBRID_SHARD_ZERO2")),
    "fsdp1-no-limit": (8, 0, _f(fsdp1, "FULL_SHARD", limit_all_gathers=False)),
    "fsdp2-compile": (8, 0, compiled_fsdp2),
    "hsdp-tp-2x2x2": (8, 3, hybrid_tensor_parallel),
    "cp-fsdp-2x4": (8, 0, context_parallel_fsdp2),
    "ep8-fsdp": (8, 2, experts_and_fsdp2),
    "fsdp1-lora": (8, 0, fsdp1_lora),
    "ddp-zero-views": (8, 3, zero_with_views),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=JOBS)
    job = parser.parse_args().job
    torch.manual_seed(0)
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    for _ in JOBS[job][2]():
        pass


if __name__ == "__main__":
    main()
