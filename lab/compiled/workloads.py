"""Compiled training, one short loop for each way people write it. The same code runs on a real and a virtual card.

python workloads.py NAME            (one workload, 6 steps, prints what memory each step took)
vramcast run --gpu h200 workloads.py NAME
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
import models
from loop import RECORD, WORKLOADS, classified, gpt_loss, ids, images, labelled, train, workload


@workload
def gpt2_amp() -> None:
    model = models.GPT().cuda()
    train(model, gpt_loss(torch.compile(model), 12, 1024), amp=torch.bfloat16, clip=True)


@workload
def gpt_dropout_accumulate() -> None:
    model = models.GPT(layers=6, dropout=0.1).cuda()
    train(model, gpt_loss(torch.compile(model), 8, 512), amp=torch.bfloat16, accumulate=2, clip=True)


@workload
def gpt_manual_attention() -> None:
    model = models.GPT(layers=4, manual_attention=True, dropout=0.1).cuda()
    train(model, gpt_loss(torch.compile(model), 8, 512), amp=torch.bfloat16)


@workload
def gpt_float32() -> None:
    torch.set_float32_matmul_precision("high")
    model = models.GPT(layers=4, vocab=32000).cuda()
    train(model, gpt_loss(torch.compile(model), 8, 512, 32000), optimizer=torch.optim.AdamW(model.parameters()))


@workload
def gpt_layerwise() -> None:
    model = models.GPT(layers=6).cuda()
    for block in model.blocks:
        block.compile()
    train(model, gpt_loss(model, 12, 512), amp=torch.bfloat16)


@workload
def gpt_layerwise_checkpointed() -> None:
    from torch.utils.checkpoint import checkpoint

    model = models.GPT(layers=6).cuda().bfloat16()
    for number, block in enumerate(model.blocks):
        model.blocks[number] = torch.compile(block)

    def loss_of(step: int) -> torch.Tensor:
        inputs, targets = ids(12, 512), ids(12, 512)
        x = model.wte(inputs) + model.wpe(torch.arange(inputs.size(1), device="cuda"))
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return F.cross_entropy(model.head(model.ln_f(x)).flatten(0, 1), targets.flatten())

    train(model, loss_of)


@workload
def gpt_dynamic() -> None:
    model = models.GPT(layers=4).cuda()
    compiled = torch.compile(model)
    lengths = [512, 384, 768, 640, 256, 448]
    train(model, lambda step: compiled(ids(8, lengths[step]), ids(8, lengths[step])), amp=torch.bfloat16)


@workload
def gpt_reduce_overhead() -> None:
    model = models.GPT(layers=6).cuda()
    train(model, gpt_loss(torch.compile(model, mode="reduce-overhead"), 8, 512), amp=torch.bfloat16)


@workload
def gpt_compiled_optimizer() -> None:
    model = models.GPT(layers=4).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    train(model, gpt_loss(torch.compile(model), 8, 512), amp=torch.bfloat16, optimizer=optimizer, compiled_step=True)


@workload
def llama_bf16() -> None:
    model = models.llama().cuda().bfloat16()
    train(model, labelled(torch.compile(model), 8, 1024, 32000))


@workload
def llama_checkpointed_amp() -> None:
    model = models.llama().cuda()
    model.gradient_checkpointing_enable()
    model.train()
    train(model, labelled(torch.compile(model), 8, 1024, 32000), amp=torch.bfloat16)


@workload
def gpt2_hf_amp() -> None:
    from transformers import GPT2Config

    model = models.causal(GPT2Config(n_layer=6)).cuda()
    train(model, labelled(torch.compile(model), 8, 1024, 50257), amp=torch.bfloat16, clip=True)


@workload
def bert_fp16() -> None:
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(BertConfig(num_hidden_layers=6)).cuda()
    train(model, labelled(torch.compile(model), 32, 256, 30522), amp=torch.float16, scaler=True, clip=True)


@workload
def t5_bf16() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=512, num_layers=4, num_decoder_layers=4, decoder_start_token_id=0, use_cache=False)
    model = T5ForConditionalGeneration(config).cuda().bfloat16()
    train(model, labelled(torch.compile(model), 16, 256, 32000))


@workload
def vit_amp() -> None:
    import torchvision

    model = torchvision.models.vit_b_16().cuda()
    train(model, classified(torch.compile(model), 48), amp=torch.bfloat16)


@workload
def resnet_channels_last_amp() -> None:
    import torchvision

    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, classified(torch.compile(model), 64, channels_last=True), amp=torch.bfloat16, optimizer=optimizer)


@workload
def resnet18_float32() -> None:
    import torchvision

    model = torchvision.models.resnet18().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, classified(torch.compile(model), 64), optimizer=optimizer)


@workload
def convnext_amp() -> None:
    import torchvision

    model = torchvision.models.convnext_tiny().cuda()
    train(model, classified(torch.compile(model), 48), amp=torch.bfloat16)


@workload
def unet_amp() -> None:
    model = models.UNet().cuda()
    compiled = torch.compile(model)

    def loss_of(step: int) -> torch.Tensor:
        return F.mse_loss(compiled(images(16, 128)), images(16, 128))

    train(model, loss_of, amp=torch.bfloat16)


@workload
def dit_bf16() -> None:
    model = models.DiT().cuda().bfloat16()
    compiled = torch.compile(model)

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(32, 4, 32, 32, device="cuda", dtype=torch.bfloat16)
        out = compiled(x, torch.randint(0, 1000, (32,), device="cuda"))
        return F.mse_loss(out, torch.randn_like(out))

    train(model, loss_of)


@workload
def gpt_checkpointed_amp() -> None:
    model = models.GPT(layers=6, checkpointed=True).cuda()
    train(model, gpt_loss(torch.compile(model), 12, 1024), amp=torch.bfloat16)


@workload
def gpt_graph_break() -> None:
    model = models.GPT(layers=4, prints=True).cuda()
    train(model, gpt_loss(torch.compile(model), 8, 512), amp=torch.bfloat16)


@workload
def gpt_fp16_scaler() -> None:
    model = models.GPT(layers=6).cuda()
    train(model, gpt_loss(torch.compile(model), 16, 512), amp=torch.float16, scaler=True, clip=True)


@workload
def gpt_memory_budget() -> None:
    import torch._functorch.config

    torch._functorch.config.activation_memory_budget = 0.5
    model = models.GPT(layers=6).cuda()
    train(model, gpt_loss(torch.compile(model), 12, 512), amp=torch.bfloat16)


@workload
def gpt_dynamic_true() -> None:
    model = models.GPT(layers=4).cuda()
    compiled = torch.compile(model, dynamic=True)
    lengths = [512, 384, 768, 640, 256, 448]
    train(model, lambda step: compiled(ids(8, lengths[step]), ids(8, lengths[step])), amp=torch.bfloat16)


@workload
def gpt_compiled_loss() -> None:
    model = models.GPT(layers=4).cuda()

    @torch.compile
    def loss_of_logits(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (
            F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
            + 1e-4 * logits.float().logsumexp(-1).square().mean()
        )

    def loss_of(step: int) -> torch.Tensor:
        x = model.wte(ids(8, 512)) + model.wpe(torch.arange(512, device="cuda"))
        for block in model.blocks:
            x = block(x)
        return loss_of_logits(model.head(model.ln_f(x)), ids(8, 512))

    train(model, loss_of, amp=torch.bfloat16)


@workload
def gpt_evaluated() -> None:
    model = models.GPT(layers=4).cuda()
    compiled = torch.compile(model)

    def loss_of(step: int) -> torch.Tensor:
        if step == 2:
            model.eval()
            with torch.no_grad():
                compiled(ids(16, 512), ids(16, 512))
            model.train()
        return compiled(ids(8, 512), ids(8, 512))  # type: ignore[no-any-return]

    train(model, loss_of, amp=torch.bfloat16)


@workload
def vit_reduce_overhead() -> None:
    import torchvision

    model = torchvision.models.vit_b_16().cuda()
    train(model, classified(torch.compile(model, mode="reduce-overhead"), 32), amp=torch.bfloat16)


@workload
def gpt_max_autotune() -> None:
    model = models.GPT(layers=4).cuda()
    compiled = torch.compile(model, mode="max-autotune-no-cudagraphs")
    train(model, gpt_loss(compiled, 8, 512), amp=torch.bfloat16)


@workload
def qwen_bf16() -> None:
    from transformers import Qwen3Config

    config = Qwen3Config(
        hidden_size=1024, intermediate_size=3072, num_hidden_layers=6, num_attention_heads=16, num_key_value_heads=8,
        head_dim=64, vocab_size=64000,
    )  # fmt: skip
    model = models.causal(config).cuda().bfloat16()
    train(model, labelled(torch.compile(model), 4, 1024, 64000), clip=True)


@workload
def whisper_amp() -> None:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=512, encoder_layers=4, decoder_layers=4, encoder_attention_heads=8, decoder_attention_heads=8,
        encoder_ffn_dim=2048, decoder_ffn_dim=2048, use_cache=False,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).cuda()
    compiled = torch.compile(model)

    def loss_of(step: int) -> torch.Tensor:
        features = torch.randn(8, 80, 3000, device="cuda")
        return compiled(input_features=features, labels=ids(8, 128, 50000)).loss  # type: ignore[no-any-return]

    train(model, loss_of, amp=torch.bfloat16)


@workload
def efficientnet_amp() -> None:
    import torchvision

    model = torchvision.models.efficientnet_b0().cuda().to(memory_format=torch.channels_last)
    train(model, classified(torch.compile(model), 64, channels_last=True), amp=torch.float16, scaler=True)


@workload
def swin_bf16() -> None:
    import torchvision

    model = torchvision.models.swin_t().cuda().bfloat16()
    compiled = torch.compile(model)

    def loss_of(step: int) -> torch.Tensor:
        return F.cross_entropy(compiled(images(32).bfloat16()), torch.randint(0, 1000, (32,)).cuda())

    train(model, loss_of)


@workload
def trainer_bf16() -> None:
    """transformers' Trainer, which compiles the model itself."""
    import tempfile

    from transformers import Trainer, TrainerCallback, TrainingArguments

    class AfterStep(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            RECORD.step()

    model = models.llama(num_hidden_layers=4)
    rows = [{"input_ids": torch.arange(512), "labels": torch.arange(512)} for _ in range(64)]
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, max_steps=6, bf16=True, torch_compile=True,
        report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[AfterStep()]).train()


import blind  # noqa: E402, F401
import blind_images  # noqa: E402, F401
import drawn  # noqa: E402, F401
import graphs  # noqa: E402, F401
import other_kernels  # noqa: E402, F401

if __name__ == "__main__":
    torch.manual_seed(0)
    WORKLOADS[sys.argv[1]]()
    print(json.dumps({"name": sys.argv[1], "steps": RECORD.steps}))
