"""Programs that use the usual libraries: transformers, peft, accelerate, and PyTorch's own data parallelism."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vramcast
from tests.card.reading import by_kind, first_event, growth, last_event
from vramcast.card.device.context import VirtualGpu

pytestmark = pytest.mark.filterwarnings("ignore")


def tiny_gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_embd=64, n_head=2, vocab_size=100, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def weight_bytes(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


def test_lora_trains_only_its_adapters() -> None:
    peft = pytest.importorskip("peft")
    with vramcast.virtual_gpu("rtx-4090") as gpu:
        base = tiny_gpt2()
        frozen = weight_bytes(base)
        config = peft.LoraConfig(r=4, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True)
        model = peft.get_peft_model(base, config).cuda()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        for _ in range(2):
            ids = torch.randint(0, 100, (2, 16), device="cuda")
            model(ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        trace = gpu.trace()
    adapters = 2 * 4 * (64 + 3 * 64) * 4  # two layers, rank 4, from 64 to 3 * 64, float32
    held = by_kind(trace, first_event(trace, "optimizer", 1) - 1)
    assert held["weights"] == frozen + adapters
    assert held["gradients"] == adapters
    assert held["optimizer state"] == 2 * adapters


def test_from_pretrained_reads_no_weights(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tiny_gpt2().save_pretrained(tmp_path)
    earlier = tmp_path / "run"
    tiny_gpt2().save_pretrained(earlier)
    size = os.path.getsize(earlier / "model.safetensors")
    major, minor = (int(part) for part in transformers.__version__.split(".")[:2])
    dtype = "dtype" if (major, minor) >= (4, 56) else "torch_dtype"
    with vramcast.virtual_gpu("rtx-4090") as gpu:
        for options, item in (({}, 4), ({dtype: torch.bfloat16}, 2), ({"device_map": "cuda"}, 4)):
            held, model = growth(
                lambda options=options: transformers.GPT2LMHeadModel.from_pretrained(tmp_path, **options).cuda()
            )
            parameters = sum(p.numel() for p in model.parameters())
            assert model.lm_head.weight is model.transformer.wte.weight
            assert parameters * item <= held < parameters * item + 512 * 40, "rounding and a few buffers"
            model(torch.ones(1, 4, dtype=torch.long, device="cuda")).logits.sum().backward()
            model.save_pretrained(earlier)
            del model
        assert {note.topic for note in gpu.trace().notes} <= {"checkpoint", "unknown value"}
    assert os.path.getsize(earlier / "model.safetensors") == size, "the earlier checkpoint is untouched"


def test_the_trainer_runs(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    with vramcast.virtual_gpu("rtx-4090") as gpu:
        ids = torch.randint(0, 100, (16,))
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            max_steps=3,
            save_steps=2,
            logging_steps=1,
            report_to=[],
            bf16=True,
            optim="adamw_torch_fused",
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(
            model=tiny_gpt2(), args=arguments, train_dataset=[{"input_ids": ids, "labels": ids}] * 32
        )
        trainer.train()
        model_bytes = weight_bytes(trainer.model)
        trace = gpu.trace()
    assert trace.steps == 3
    held = by_kind(trace, last_event(trace, "backward", 1))
    assert held["weights"] == held["gradients"] == model_bytes
    parameters = len(list(trainer.model.parameters()))
    assert held["optimizer state"] == 2 * model_bytes + 4 * parameters, "fused: the step counts are on the card too"
    from safetensors.torch import load_file

    for name, load in (("model.safetensors", load_file), ("optimizer.pt", torch.load)):
        with pytest.raises(Exception, match=r"holds no weights|written_by_a_prediction"):
            load(tmp_path / "checkpoint-2" / name)


def test_accelerate_prepares_and_trains(gpu: VirtualGpu) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    assert accelerator.device.type == "cuda"
    model = nn.Linear(64, 64)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 64)), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
    for (batch,) in loader:
        assert batch.is_cuda
        with accelerator.accumulate(model):
            loss = model(batch).float().sum()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    assert gpu.trace().steps == 4, "eight batches, two to a step"
    assert accelerator.gather(loss.detach()).is_cuda


@pytest.mark.parametrize("as_view", [False, True])
def test_data_parallelism_on_one_card(gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch, as_view: bool) -> None:
    if not torch.distributed.is_available():
        pytest.skip("this torch has no distributed package")
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    torch.distributed.init_process_group("nccl")
    try:
        assert torch.distributed.get_world_size() == 1
        inner = nn.Linear(256, 256, bias=False).cuda()
        model = nn.parallel.DistributedDataParallel(inner, device_ids=[0], gradient_as_bucket_view=as_view)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        size = weight_bytes(model)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.empty(4, 256, device="cuda")).sum().backward()
            optimizer.step()
        trace = gpu.trace()
        held = sum(by_kind(trace, trace.n_events - 1).values()) - by_kind(trace, trace.n_events - 1)["workspaces"]
        # Weights, gradients, and the buckets the gradients are sent in, unless the gradients lie there themselves.
        assert size * (2 if as_view else 3) <= held < size * (2 if as_view else 3) + 8192
        numbers = torch.ones(3, device="cuda")
        torch.distributed.all_reduce(numbers)
        torch.distributed.barrier()
    finally:
        torch.distributed.destroy_process_group()


def test_data_parallel_takes_a_batch_from_the_host(gpu: VirtualGpu) -> None:
    """On a stream of its own, as torch copies it, so from another pool of the allocator."""
    model = nn.DataParallel(nn.Linear(256, 256, bias=False).cuda())
    before = torch.cuda.memory_allocated()
    out = model(torch.ones(4096, 256))
    assert out.is_cuda and torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.cuda.memory_allocated() - before >= 2 * 4096 * 256 * 4
    trace = gpu.trace()
    batch = [place for place, size in enumerate(trace.requested_bytes) if size == 4096 * 256 * 4]
    assert [trace.stream[place] > 0 for place in batch] == [True, False]  # the copy, the result
