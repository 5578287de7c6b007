"""Ranks that were recorded before anybody predicted them; ZeRO's need the deepspeed package. See jobs.py."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

jobs: Any = importlib.import_module("lab.ranks.jobs" if __package__ else "jobs")


def sync_batch_norm() -> Iterator[None]:
    from torchvision.models import resnet50

    model = nn.SyncBatchNorm.convert_sync_batchnorm(resnet50()).to(jobs.DEVICE)
    wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=10)
    return jobs.train(jobs.image_step(wrapped, 32), torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9))


def scaled_bert() -> Iterator[None]:
    """fp16 with a gradient scaler; a head that a part of the steps does not use."""
    import transformers

    config = transformers.BertConfig(num_hidden_layers=8)
    model: Any = transformers.BertForSequenceClassification(config).to(jobs.DEVICE)
    wrapped = nn.parallel.DistributedDataParallel(model, static_graph=True, gradient_as_bucket_view=True)
    optimizer = jobs.adamw(wrapped)
    scaler = torch.amp.GradScaler(jobs.DEVICE)

    def steps() -> Iterator[None]:
        for _ in range(jobs.STEPS):
            ids = torch.randint(0, config.vocab_size, (16, 256)).to(jobs.DEVICE)
            with torch.autocast(jobs.DEVICE, dtype=torch.float16):
                loss = wrapped(input_ids=ids, labels=torch.zeros(16, dtype=torch.long, device=jobs.DEVICE)).loss
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            yield

    return steps()


def zero_bubble(*, microbatches: int = 8, batch: int = 8) -> Iterator[None]:
    """Two stages on each rank; gradients of inputs and of weights are worked out apart."""
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleavedZeroBubble

    rank, world = dist.get_rank(), dist.get_world_size()
    sizes, small = jobs.LLAMA, batch // microbatches
    stages = 2 * world
    each = jobs.N_LLAMA // stages
    inner = torch.empty(small, sizes["length"], sizes["width"], dtype=torch.bfloat16, device="meta")
    ids = torch.empty(small, sizes["length"], dtype=torch.long, device="meta")
    logits = torch.empty(small, sizes["length"], sizes["vocab"], dtype=torch.bfloat16, device="meta")
    parts, models = [], []
    for number in (rank, rank + world):
        with torch.device(jobs.DEVICE):
            model = jobs.Llama(
                range(number * each, (number + 1) * each), first=number == 0, last=number == stages - 1, **sizes
            ).to(torch.bfloat16)
        models.append(model)
        parts.append(
            PipelineStage(
                model,
                number,
                stages,
                torch.device(jobs.DEVICE),
                input_args=(ids if number == 0 else inner,),
                output_args=(logits if number == stages - 1 else inner,),
            )
        )
    run = ScheduleInterleavedZeroBubble(parts, microbatches, loss_fn=jobs.loss_of)

    def step() -> None:
        inputs, targets = jobs.tokens(batch)
        run.step(*([inputs] if rank == 0 else []), **({"target": targets} if rank == world - 1 else {}))

    return jobs.train(step, torch.optim.AdamW([p for model in models for p in model.parameters()], lr=1e-4))


def selective_checkpoints() -> Iterator[None]:
    """FSDP2 where matrix products are kept and everything else is computed again."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        kept = op in (torch.ops.aten.mm.default, torch.ops.aten._scaled_dot_product_flash_attention.default)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    model = jobs.llama()
    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    for name, layer in list(model.layers.items()):
        model.layers[name] = checkpoint_wrapper(layer, context_fn=contexts)
    jobs.shard_llama(model)
    return jobs.train(jobs.language_step(model, 4), jobs.adamw(model), model)


def encoder_decoder() -> Iterator[None]:
    """FSDP2 of a T5, hybrid over two groups of four, gradients accumulated."""
    import transformers
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    config = transformers.T5Config(d_model=768, d_kv=64, d_ff=3072, num_layers=6, num_heads=12)
    config.decoder_start_token_id = 0
    model: Any = transformers.T5ForConditionalGeneration(config).to(jobs.DEVICE)
    mesh = init_device_mesh(jobs.DEVICE, (2, 4), mesh_dim_names=("replicate", "shard"))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in (*model.encoder.block, *model.decoder.block):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)

    def step() -> None:
        for i in range(2):
            model.set_requires_all_reduce(i == 1)
            ids = torch.randint(1, config.vocab_size, (8, 512)).to(jobs.DEVICE)
            model(input_ids=ids, labels=ids[:, :128].contiguous()).loss.backward()

    return jobs.train(step, jobs.adamw(model, fused=True))


def speech() -> Iterator[None]:
    """FSDP2 of a Whisper with gradient checkpoints: convolutions over time, two towers."""
    import transformers
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    config = transformers.WhisperConfig(
        d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
        encoder_ffn_dim=2048, decoder_ffn_dim=2048,
    )  # fmt: skip
    model: Any = transformers.WhisperForConditionalGeneration(config).to(jobs.DEVICE)
    model.gradient_checkpointing_enable()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in (*model.model.encoder.layers, *model.model.decoder.layers):
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)

    def step() -> None:
        sound = torch.randn(8, config.num_mel_bins, 3000).to(jobs.DEVICE)
        labels = torch.randint(1, 50000, (8, 64)).to(jobs.DEVICE)
        model(input_features=sound, labels=labels).loss.backward()

    return jobs.train(step, jobs.adamw(model))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20000, 512)
        self.lstm = nn.LSTM(512, 512, num_layers=3, dropout=0.2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(1024, 20000)

    def forward(self, ids: Tensor) -> Tensor:
        out, _ = self.lstm(self.embed(ids))
        return self.head(out)


def recurrent() -> Iterator[None]:
    """DDP of an LSTM, with a hook that compresses to fp16."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    wrapped = nn.parallel.DistributedDataParallel(Tagger().to(jobs.DEVICE), gradient_as_bucket_view=True)
    wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return jobs.train(jobs.language_step(wrapped, 32, length=128, vocab=20000), jobs.adamw(wrapped), wrapped)


def fsdp1_accumulate() -> Iterator[None]:
    """FSDP1 with the parameters' own names, two passes of three without communication, gradients clipped."""
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    model = FullyShardedDataParallel(
        jobs.llama(),
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
        auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={jobs.Block}),
        mixed_precision=MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16),
        device_id=torch.cuda.current_device() if jobs.DEVICE == "cuda" else None,
        use_orig_params=True,
    )
    optimizer = jobs.adamw(model)
    forward_backward = jobs.language_step(model, 1)

    def steps() -> Iterator[None]:
        for _ in range(jobs.STEPS):
            for _ in range(2):
                with model.no_sync():
                    forward_backward()
            forward_backward()
            model.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            yield

    return steps()


class Captioner(nn.Module):
    """A frozen image tower, a projection, a decoder of which only the projection and the upper half are trained."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models import vit_b_16

        tower = vit_b_16()
        tower.heads = nn.Identity()
        self.tower = tower.requires_grad_(False)
        self.project = nn.Linear(768, 8 * jobs.LLAMA["width"])
        self.decoder = jobs.Llama(range(jobs.N_LLAMA), **jobs.LLAMA)
        self.decoder.embed.requires_grad_(False)
        for number in range(jobs.N_LLAMA // 2):
            self.decoder.layers[str(number)].requires_grad_(False)

    def forward(self, images: Tensor, ids: Tensor) -> Tensor:
        with torch.no_grad():
            seen = self.tower(images)
        prefix = self.project(seen).view(len(images), 8, -1)
        x = torch.cat((prefix, self.decoder.embed(ids)), dim=1)
        for layer in self.decoder.layers.values():
            x = layer(x, self.decoder.cos[: x.shape[1]], self.decoder.sin[: x.shape[1]])
        return self.decoder.head(self.decoder.norm(x))[:, 8:]


def frozen_tower() -> Iterator[None]:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = Captioner().to(jobs.DEVICE)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model.tower, mp_policy=policy)
    for layer in model.decoder.layers.values():
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)

    def step() -> None:
        ids, targets = jobs.tokens(4, jobs.LLAMA["length"] // 2)
        images = torch.randn(4, 3, 224, 224).to(jobs.DEVICE)
        jobs.loss_of(model(images, ids), targets).backward()

    return jobs.train(step, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4))


def local_sgd() -> Iterator[None]:
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook

    wrapped = nn.parallel.DistributedDataParallel(jobs.gpt().to(jobs.DEVICE))
    state = post_localSGD_hook.PostLocalSGDState(
        process_group=None, subgroup=dist.new_group(range(4)), start_localSGD_iter=2
    )
    wrapped.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    return jobs.train(
        jobs.language_step(wrapped, 4, length=jobs.GPT["length"], vocab=jobs.GPT["vocab"]), jobs.adamw(wrapped)
    )


def tensor_parallel_encoder() -> Iterator[None]:
    """Tensor parallel of torchvision's ViT MLPs alone, everything sharded over the other dimension; GELU kept whole."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torchvision.models import vit_b_16

    mesh = init_device_mesh(jobs.DEVICE, (4, 2), mesh_dim_names=("dp", "tp"))
    model = vit_b_16().to(jobs.DEVICE)
    for layer in model.encoder.layers:
        parallelize_module(layer.mlp, mesh["tp"], {"0": ColwiseParallel(), "3": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return jobs.train(jobs.image_step(model, 48), jobs.adamw(model, foreach=False))


def zero(stage: int, *, batch: int = 2, accumulate: int = 1, **options: Any) -> Iterator[None]:
    """DeepSpeed's own ZeRO over its engine, bf16, torch's AdamW."""
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": batch,
        "gradient_accumulation_steps": accumulate,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage, **options},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
    }
    deepspeed.init_distributed()
    model = jobs.Llama(range(jobs.N_LLAMA), **jobs.LLAMA)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

    def steps() -> Iterator[None]:
        for _ in range(jobs.STEPS):
            for _ in range(accumulate):
                ids, targets = jobs.tokens(batch)
                engine.backward(jobs.loss_of(engine(ids), targets))
                engine.step()
            yield

    return steps()


def zero_hugging_face(stage: int, **options: Any) -> Iterator[None]:
    """fp16 with DeepSpeed's loss scale, a transformers model with gradient checkpoints."""
    import deepspeed
    import transformers

    config = {
        "train_micro_batch_size_per_gpu": 4,
        "fp16": {"enabled": True, "initial_scale_power": 8},
        "zero_optimization": {"stage": stage, **options},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}},
    }
    deepspeed.init_distributed()
    model: Any = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=8))
    model.gradient_checkpointing_enable()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

    def steps() -> Iterator[None]:
        for _ in range(jobs.STEPS):
            ids = torch.randint(0, 50257, (4, 1024)).to(jobs.DEVICE)
            engine.backward(engine(input_ids=ids, labels=ids).loss)
            engine.step()
            yield

    return steps()


def peer(second: bool) -> Iterator[None]:
    """Half of a model that lies on two cards of one process, as its card sees it."""

    class Arrives(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, somewhere: Tensor) -> Tensor:
            return torch.empty(2, jobs.LLAMA["length"], jobs.LLAMA["width"], device=jobs.DEVICE)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> None:
            return None

    class Leaves(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.shape = x.shape
            return torch.zeros(1)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return torch.empty(ctx.shape, device=jobs.DEVICE)

    half = jobs.N_LLAMA // 2
    with torch.device(jobs.DEVICE):
        layers = range(half, jobs.N_LLAMA) if second else range(half)
        model = jobs.Llama(layers, first=not second, last=second, **jobs.LLAMA)
    optimizer = jobs.adamw(model)

    def step() -> None:
        ids, targets = jobs.tokens(2)
        if second:
            del ids
            jobs.loss_of(model(Arrives.apply(torch.ones(1).requires_grad_())), targets).backward()
        else:
            del targets
            Leaves.apply(model(ids)).backward()

    return jobs.train(step, optimizer)


Job = tuple[int, int, Callable[[], Iterator[None]]]
_f = functools.partial
JOBS: dict[str, Job] = {
    "ddp-resnet-syncbn": (8, 0, sync_batch_norm),
    "ddp-bert-scaler": (4, 1, scaled_bert),
    "pp2-zero-bubble": (2, 0, zero_bubble),
    "fsdp2-selective": (8, 0, selective_checkpoints),
    "hsdp-t5": (8, 6, encoder_decoder),
    "fsdp2-whisper": (8, 0, speech),
    "ddp-lstm-fp16-hook": (8, 2, recurrent),
    "fsdp1-accumulate": (8, 0, fsdp1_accumulate),
    "fsdp2-frozen-tower": (8, 0, frozen_tower),
    "ddp-local-sgd": (8, 1, local_sgd),
    "fsdp-tp-vit": (8, 3, tensor_parallel_encoder),
    "zero1": (8, 0, _f(zero, 1)),
    "zero2": (8, 0, _f(zero, 2)),
    "zero2-accumulate": (8, 0, _f(zero, 2, accumulate=2, reduce_bucket_size=50_000_000, overlap_comm=False)),
    "zero3": (8, 0, _f(zero, 3)),
    "zero3-small": (4, 0, _f(zero, 3, stage3_prefetch_bucket_size=0, stage3_param_persistence_threshold=0)),
    "zero2-offload": (8, 0, _f(zero, 2, offload_optimizer={"device": "cpu"})),
    "zero1-hf-gpt2": (4, 0, _f(zero_hugging_face, 1)),
    "zero3-hf-gpt2": (8, 0, _f(zero_hugging_face, 3, stage3_max_live_parameters=0)),
    "zero3-offload": (8, 0, _f(zero, 3, offload_param={"device": "cpu"}, offload_optimizer={"device": "cpu"})),
    "peer-first": (1, 0, _f(peer, False)),
    "peer-second": (1, 0, _f(peer, True)),
}
