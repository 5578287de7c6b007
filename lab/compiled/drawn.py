"""More ways to train compiled models: other sizes, precisions and places to call torch.compile."""

from __future__ import annotations

import copy
from typing import Any

import models
import torch
import torch.nn.functional as F
from loop import classified, gpt_loss, ids, images, labelled, train, workload
from torch import nn

LENGTHS = (256, 384, 192, 320, 448, 288)


@workload
def gpt2_bf16() -> None:
    model = models.GPT(layers=8).cuda().bfloat16()
    train(
        model, gpt_loss(torch.compile(model, fullgraph=True), 10, 768), optimizer=torch.optim.AdamW(model.parameters())
    )


@workload
def gpt2_hf_layerwise_checkpointed() -> None:
    from transformers import GPT2Config

    model = models.causal(GPT2Config(n_layer=6, n_embd=1024, n_head=16)).cuda()
    model.gradient_checkpointing_enable()
    model.train()
    for block in model.transformer.h:
        block.compile()
    train(model, labelled(model, 6, 1024, 50257), amp=torch.bfloat16, clip=True)


@workload
def llama_layerwise_amp() -> None:
    model = models.llama(num_hidden_layers=5).cuda()
    for layer in model.model.layers:
        layer.compile()
    train(model, labelled(model, 6, 768, 32000), amp=torch.bfloat16, accumulate=2, clip=True)


@workload
def llama_lora_bf16() -> None:
    model = models.llama(num_hidden_layers=5, hidden_size=1536, intermediate_size=4096, num_attention_heads=24,
                         num_key_value_heads=8).bfloat16().requires_grad_(False)  # fmt: skip
    for layer in model.model.layers:
        for name in ("q_proj", "v_proj"):
            setattr(layer.self_attn, name, models.LowRank(getattr(layer.self_attn, name)).bfloat16())
    model.cuda()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    train(model, labelled(torch.compile(model), 6, 1024, 32000), optimizer=torch.optim.AdamW(trained, lr=1e-3))


@workload
def llama_compiled_optimizer() -> None:
    model = models.llama(num_hidden_layers=3).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-4, device="cuda"))
    train(model, labelled(torch.compile(model), 4, 1024, 32000), optimizer=optimizer, compiled_step=True)


@workload
def qwen_dynamic_amp() -> None:
    from transformers import Qwen3Config

    config = Qwen3Config(
        hidden_size=768, intermediate_size=2304, num_hidden_layers=4, num_attention_heads=12, num_key_value_heads=4,
        head_dim=64, vocab_size=48000,
    )  # fmt: skip
    model = models.causal(config).cuda()
    compiled = torch.compile(model)
    train(model, lambda step: labelled(compiled, 8, LENGTHS[step], 48000)(step), amp=torch.bfloat16)


@workload
def gemma_bf16() -> None:
    from transformers import Gemma2Config

    config = Gemma2Config(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
        head_dim=96, vocab_size=64000, sliding_window=512,
    )  # fmt: skip
    model = models.causal(config).cuda().bfloat16()
    train(model, labelled(torch.compile(model), 4, 768, 64000), clip=True)


@workload
def bert_bf16_dynamic() -> None:
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig(num_hidden_layers=5, num_labels=4)).cuda().bfloat16()
    compiled = torch.compile(model, dynamic=True)

    def loss_of(step: int) -> torch.Tensor:
        inputs = ids(24, LENGTHS[step], 30522)
        return compiled(input_ids=inputs, attention_mask=torch.ones_like(inputs), labels=inputs[:, 0] % 4).loss  # type: ignore[no-any-return]

    train(model, loss_of)


@workload
def t5_amp_accumulate() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=768, d_ff=2048, num_layers=3, num_decoder_layers=3, num_heads=12,
                      decoder_start_token_id=0, use_cache=False)  # fmt: skip
    model = T5ForConditionalGeneration(config).cuda()
    train(model, labelled(torch.compile(model), 12, 320, 32000), amp=torch.bfloat16, accumulate=2)


@workload
def whisper_bf16() -> None:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=384, encoder_layers=3, decoder_layers=3, encoder_attention_heads=6, decoder_attention_heads=6,
        encoder_ffn_dim=1536, decoder_ffn_dim=1536, use_cache=False,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).cuda().bfloat16()
    compiled = torch.compile(model)

    def loss_of(step: int) -> torch.Tensor:
        features = torch.randn(12, 80, 3000, device="cuda", dtype=torch.bfloat16)
        return compiled(input_features=features, labels=ids(12, 96, 50000)).loss  # type: ignore[no-any-return]

    train(model, loss_of)


@workload
def vit_hf_bf16_checkpointed() -> None:
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(num_hidden_layers=8, num_labels=1000)).cuda().bfloat16()
    model.gradient_checkpointing_enable()
    model.train()
    compiled = torch.compile(model)

    def loss_of(step: int) -> torch.Tensor:
        return F.cross_entropy(compiled(images(64).bfloat16()).logits, ids(1, 64, 1000)[0])

    train(model, loss_of)


@workload
def vit_layerwise_amp() -> None:
    import torchvision

    model = torchvision.models.vit_b_32().cuda()
    for block in model.encoder.layers:
        block.compile()
    train(model, classified(model, 128), amp=torch.bfloat16, clip=True)


@workload
def resnet_channels_last_fp16() -> None:
    import torchvision

    model = torchvision.models.resnet34().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    train(model, classified(torch.compile(model), 96, channels_last=True), amp=torch.float16, scaler=True,
          optimizer=optimizer)  # fmt: skip


@workload
def resnext_channels_last_amp() -> None:
    import torchvision

    model = torchvision.models.resnext50_32x4d().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, classified(torch.compile(model), 40, channels_last=True), amp=torch.bfloat16, optimizer=optimizer)


@workload
def convnext_channels_last_bf16() -> None:
    import torchvision

    model = torchvision.models.convnext_tiny().cuda().bfloat16().to(memory_format=torch.channels_last)
    compiled = torch.compile(model)

    def loss_of(step: int) -> torch.Tensor:
        inputs = images(40).bfloat16().to(memory_format=torch.channels_last)
        return F.cross_entropy(compiled(inputs), ids(1, 40, 1000)[0])

    train(model, loss_of)


def _diffused(model: Any, batch: int, size: int, channels: int, dtype: torch.dtype = torch.float32) -> Any:
    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(batch, channels, size, size, device="cuda", dtype=dtype)
        noise, t = torch.randn_like(x), torch.randint(0, 1000, (batch,), device="cuda")
        level = torch.cos(t.float() * (1.57 / 1000))[:, None, None, None].to(dtype)
        return F.mse_loss(model(level * x + (1 - level**2).sqrt() * noise, t).float(), noise.float())

    return loss_of


@workload
def diffusion_unet_amp() -> None:
    model = models.DiffusionUNet().cuda()
    average = copy.deepcopy(model).requires_grad_(False)
    train(model, _diffused(torch.compile(model), 32, 64, 3), amp=torch.bfloat16, clip=True)
    del average


@workload
def diffusion_unet_channels_last_float32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    model = models.DiffusionUNet((96, 192, 384)).cuda().to(memory_format=torch.channels_last)
    train(model, _diffused(torch.compile(model), 12, 64, 3))


@workload
def dit_checkpointed_amp() -> None:
    from torch.utils.checkpoint import checkpoint

    model = models.DiT(layers=6).cuda()
    for number, block in enumerate(model.blocks):
        model.blocks[number] = _Checkpointed(block, checkpoint)
    compiled = torch.compile(model)

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(48, 4, 32, 32, device="cuda")
        out = compiled(x, torch.randint(0, 1000, (48,), device="cuda"))
        return F.mse_loss(out.float(), torch.randn_like(out, dtype=torch.float32))

    train(model, loss_of, amp=torch.bfloat16)


class _Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module, checkpoint: Any) -> None:
        super().__init__()
        self.inner, self._checkpoint = inner, checkpoint

    def forward(self, *args: torch.Tensor) -> Any:
        return self._checkpoint(self.inner, *args, use_reentrant=False)


@workload
def gpt_flex_attention() -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    model = models.FlexGPT().cuda().bfloat16()
    compiled = torch.compile(model)
    mask = create_block_mask(lambda b, h, q, k: (q >= k) & (q - k < 256), None, None, 1024, 1024, device="cuda")
    train(model, lambda step: compiled(ids(8, 1024), ids(8, 1024), mask))


@workload
def swin_amp() -> None:
    import torchvision

    model = torchvision.models.swin_t().cuda()
    for stage in model.features:
        stage.compile()
    train(model, classified(model, 32), amp=torch.bfloat16)


@workload
def autoencoder_bf16() -> None:
    """Convolutions of pure bfloat16 down to a latent and up again, trained by a compiled step."""
    width = 96
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), models.ConvBlock(width, width), nn.AvgPool2d(2),
        models.ConvBlock(width, 2 * width), nn.AvgPool2d(2), models.ConvBlock(2 * width, 2 * width),
        nn.Upsample(scale_factor=2), models.ConvBlock(2 * width, width), nn.Upsample(scale_factor=2),
        nn.Conv2d(width, 3, 3, padding=1),
    ).cuda().bfloat16()  # fmt: skip

    @torch.compile
    def loss_of_images(x: torch.Tensor) -> torch.Tensor:
        out = model(x)
        return F.l1_loss(out, x) + 0.1 * (out[..., 1:] - out[..., :-1]).abs().mean()

    train(model, lambda step: loss_of_images(images(12, 128).bfloat16()), clip=True)


def _alone_in_its_group() -> None:
    """A process group of one: DDP keeps its buckets, and the collectives run."""
    import tempfile

    from torch import distributed

    folder = tempfile.mkdtemp()
    distributed.init_process_group("nccl", init_method=f"file://{folder}/group", rank=0, world_size=1)


@workload
def gpt_ddp_compiled() -> None:
    """torch.compile around DDP, which cuts the graph at the buckets."""
    from torch.nn.parallel import DistributedDataParallel

    _alone_in_its_group()
    model = DistributedDataParallel(models.GPT(layers=4).cuda(), device_ids=[0])
    train(model, gpt_loss(torch.compile(model), 8, 512), amp=torch.bfloat16)


@workload
def llama_ddp_around_compiled() -> None:
    from torch.nn.parallel import DistributedDataParallel

    _alone_in_its_group()
    compiled = torch.compile(models.llama(num_hidden_layers=3).cuda())
    model = DistributedDataParallel(compiled, device_ids=[0], gradient_as_bucket_view=True)
    train(model, labelled(model, 4, 768, 32000), amp=torch.bfloat16, clip=True)
