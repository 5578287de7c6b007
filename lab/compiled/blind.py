"""Compiled training that was predicted once before anybody measured it: other models and other ways than elsewhere."""

from __future__ import annotations

import functools
from typing import Any

import blind_models as small
import models
import torch
import torch.nn.functional as F
from loop import gpt_loss, ids, images, labelled, run, train, workload
from torch import nn
from torch.utils.checkpoint import checkpoint

LENGTHS = (320, 448, 224, 384, 512, 256)
"""Of the steps, where they vary."""


# -- text --------------------------------------------------------------------------------------------------------------


@workload
def deberta_amp() -> None:
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    config = DebertaV2Config(
        hidden_size=512, num_hidden_layers=3, num_attention_heads=8, intermediate_size=2048, vocab_size=64000,
        relative_attention=True, position_buckets=128, pos_att_type=["p2c", "c2p"], share_att_key=True,
        norm_rel_ebd="layer_norm", num_labels=3,
    )  # fmt: skip
    model = DebertaV2ForSequenceClassification(config).cuda()
    compiled = torch.compile(model)

    def loss_of(step: int) -> torch.Tensor:
        inputs = ids(16, 256, 64000)
        return compiled(input_ids=inputs, attention_mask=torch.ones_like(inputs), labels=inputs[:, 0] % 3).loss

    train(model, loss_of, amp=torch.bfloat16, clip=True)


@workload
def mistral_accumulate_bf16() -> None:
    from transformers import MistralConfig

    config = MistralConfig(
        hidden_size=768, intermediate_size=2560, num_hidden_layers=4, num_attention_heads=12, num_key_value_heads=4,
        vocab_size=32000, sliding_window=256,
    )  # fmt: skip
    model = models.causal(config).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    train(model, labelled(torch.compile(model), 6, 768, 32000), accumulate=3, optimizer=optimizer, clip=True)


@workload
def mixture_of_experts_bf16() -> None:
    from transformers import Qwen2MoeConfig

    config = Qwen2MoeConfig(
        hidden_size=512, intermediate_size=1024, moe_intermediate_size=512, shared_expert_intermediate_size=1024,
        num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=8, num_experts=8, num_experts_per_tok=2,
        vocab_size=32000,
    )  # fmt: skip
    model = models.causal(config).cuda().bfloat16()
    train(model, labelled(torch.compile(model), 8, 512, 32000))


@workload
def phi_layerwise_reentrant_amp() -> None:
    from transformers import PhiConfig

    config = PhiConfig(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=4, num_attention_heads=12, vocab_size=51200,
        resid_pdrop=0.1,
    )  # fmt: skip
    model = models.causal(config).cuda()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    model.train()
    for layer in model.model.layers:
        layer.compile()
    train(model, labelled(model, 8, 640, 51200), amp=torch.float16, scaler=True)


@workload
def olmo_reduce_overhead() -> None:
    from transformers import Olmo2Config

    config = Olmo2Config(
        hidden_size=768, intermediate_size=2048, num_hidden_layers=3, num_attention_heads=12, vocab_size=40000,
    )  # fmt: skip
    model = models.causal(config).cuda()
    train(model, labelled(torch.compile(model, mode="reduce-overhead"), 6, 512, 40000), amp=torch.bfloat16, clip=True)


@workload
def bart_dynamic_lengths() -> None:
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(
        d_model=512, encoder_layers=2, decoder_layers=2, encoder_attention_heads=8, decoder_attention_heads=8,
        encoder_ffn_dim=2048, decoder_ffn_dim=2048, use_cache=False,
    )  # fmt: skip
    model = BartForConditionalGeneration(config).cuda()
    compiled = torch.compile(model)

    def loss_of(step: int) -> torch.Tensor:
        return compiled(input_ids=ids(12, LENGTHS[step], 50265), labels=ids(12, LENGTHS[-1 - step] // 2, 50265)).loss

    train(model, loss_of, amp=torch.bfloat16)


@workload
def state_space_bf16() -> None:
    body = nn.Sequential(*(small.StateSpaceBlock(512) for _ in range(3)), nn.RMSNorm(512))
    model = nn.Sequential(nn.Embedding(32000, 512), body, nn.Linear(512, 32000, bias=False)).cuda()
    compiled = torch.compile(model, fullgraph=True)
    train(model, _next_token(compiled, 8, 512, 32000), amp=torch.bfloat16)


@workload
def rwkv_layerwise_checkpointed() -> None:
    """Checkpoints around compiled layers, some of them: every second one is kept whole."""
    model = (
        nn.Sequential(nn.Embedding(32000, 768), *(small.TimeMix(768) for _ in range(4)), nn.Linear(768, 32000))
        .cuda()
        .bfloat16()
    )
    embed, *blocks, head = model
    for block in blocks:
        block.compile(dynamic=False)

    def called(tokens: torch.Tensor) -> torch.Tensor:
        x = embed(tokens)
        for number, block in enumerate(blocks):
            x = block(x) if number % 2 else checkpoint(block, x, use_reentrant=False)
        return head(x)

    train(model, _next_token(called, 12, 512, 32000))


@workload
def lstm_between_compiled() -> None:
    """cuDNN's LSTM is not compiled: a graph break within one compiled model, with dropout on both sides."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(30000, 384)
            self.mix = nn.Conv1d(384, 384, 5, padding=2)
            self.lstm = nn.LSTM(384, 512, num_layers=2, batch_first=True, bidirectional=True, dropout=0.2)
            self.head = nn.Sequential(nn.LayerNorm(1024), nn.Dropout(0.1), nn.Linear(1024, 5000))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.embed(tokens)
            x = x + F.gelu(self.mix(x.transpose(1, 2))).transpose(1, 2)
            return self.head(self.lstm(x)[0])

    model = Tagger().cuda()
    train(model, _next_token(torch.compile(model), 32, 256, 5000), clip=True)


def _next_token(model: Any, batch: int, length: int, vocab: int) -> Any:
    def loss_of(step: int) -> torch.Tensor:
        tokens = ids(batch, length, vocab)
        return F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())

    return loss_of


@workload
def flex_biased_documents() -> None:
    """FlexAttention with a learned bias, grouped heads and another mask of documents in each step."""
    from torch.nn.attention.flex_attention import create_block_mask

    blocks = nn.ModuleList(small.BiasedBlock(512, 8, 128) for _ in range(3))
    model = nn.ModuleDict({"embed": nn.Embedding(32000, 512), "blocks": blocks, "head": nn.Linear(512, 32000)}).cuda()

    @torch.compile
    def loss_of_tokens(tokens: torch.Tensor, mask: Any) -> torch.Tensor:
        x = model["embed"](tokens)
        for block in blocks:
            x = block(x, mask)
        return F.cross_entropy(model["head"](x).flatten(0, 1), tokens.flatten())

    def loss_of(step: int) -> torch.Tensor:
        document = torch.arange(1024, device="cuda") // (128 + 32 * step)

        def within(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            return (q >= k) & (document[q] == document[k])

        return loss_of_tokens(ids(6, 1024, 32000), create_block_mask(within, None, None, 1024, 1024, device="cuda"))

    train(model, loss_of, amp=torch.bfloat16)


@workload
def gpt_selective_checkpoint() -> None:
    """Products are kept and the rest computed again: selective checkpointing within one compiled model."""
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        kept = op in (torch.ops.aten.mm.default, torch.ops.aten._scaled_dot_product_flash_attention.default)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    model = models.GPT(layers=4, vocab=32000).cuda()

    @torch.compile
    def logits_of(tokens: torch.Tensor) -> torch.Tensor:
        x = model.wte(tokens) + model.wpe(torch.arange(tokens.size(1), device="cuda"))
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=False, context_fn=contexts)
        return model.head(model.ln_f(x))

    train(model, _next_token(logits_of, 10, 512, 32000), amp=torch.bfloat16)


@workload
def gpt_muon() -> None:
    """Two optimizers: Muon with its compiled orthogonalisation, and Adam whose step is compiled."""
    model = models.GPT(layers=3, vocab=32000).cuda()
    matrices = [weight for block in model.blocks for weight in block.parameters() if weight.ndim == 2]
    others = [weight for weight in model.parameters() if not any(weight is matrix for matrix in matrices)]
    buffers = [torch.zeros_like(matrix) for matrix in matrices]
    adam = torch.optim.NAdam(others, lr=1e-4)
    update = torch.compile(adam.step)
    compiled = torch.compile(model)

    @torch.compile
    def orthogonal(gradient: torch.Tensor) -> torch.Tensor:
        x = gradient.bfloat16()
        if x.size(0) > x.size(1):
            x = x.T
        x = x / (x.norm() + 1e-7)
        for _ in range(5):
            product = x @ x.T
            x = 3.4445 * x + (-4.775 * product + 2.0315 * product @ product) @ x
        return (x.T if gradient.size(0) > gradient.size(1) else x).to(gradient.dtype)

    def one_step(step: int) -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = gpt_loss(compiled, 8, 512, 32000)(step)
        loss.backward()
        for matrix, buffer in zip(matrices, buffers, strict=True):
            assert matrix.grad is not None
            buffer.lerp_(matrix.grad, 0.05)
            matrix.data.add_(orthogonal(matrix.grad.lerp_(buffer, 0.95)), alpha=-0.02)
        update()
        model.zero_grad(set_to_none=True)

    run(one_step)


# -- sound, points, graphs and functions -------------------------------------------------------------------------------


@workload
def wav2vec2_amp() -> None:
    from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

    config = Wav2Vec2Config(
        hidden_size=384, num_hidden_layers=3, num_attention_heads=6, intermediate_size=1536, mask_time_prob=0.0,
        layerdrop=0.0, num_labels=12, conv_dim=(256,) * 7,
    )  # fmt: skip
    model = Wav2Vec2ForSequenceClassification(config).cuda()
    model.train()
    compiled = torch.compile(model)

    def loss_of(step: int) -> torch.Tensor:
        return compiled(input_values=torch.randn(12, 48000, device="cuda"), labels=ids(1, 12, 12)[0]).loss

    train(model, loss_of, amp=torch.bfloat16)


@workload
def pointnet_dynamic_true() -> None:
    model = small.PointNet().cuda()
    compiled = torch.compile(model, dynamic=True)

    def loss_of(step: int) -> torch.Tensor:
        points = torch.randn(32, 3, 4 * LENGTHS[step], device="cuda")
        return F.cross_entropy(compiled(points), ids(1, 32, 40)[0], label_smoothing=0.1)

    train(model, loss_of, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3))


@workload
def graph_net_custom_op() -> None:
    """A graph of another size in each step; one of its sums is an op of the program's own."""
    model = small.GraphNet().cuda()
    compiled = torch.compile(model)

    def loss_of(step: int) -> torch.Tensor:
        nodes = 100 * LENGTHS[step]
        edges = torch.randint(0, nodes, (2, 8 * nodes)).cuda()
        return F.cross_entropy(compiled(torch.randn(nodes, 64, device="cuda"), edges), ids(1, nodes, 32)[0])

    train(model, loss_of)


@workload
def own_function_amp() -> None:
    """An autograd.Function of the program's own within the graph, and weights changed in place before it."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.RMSNorm(1024), nn.Linear(1024, 4096), nn.Linear(4096, 1024)
            self.register_buffer("seen", torch.zeros(1024))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.mul_(0.99).add_(x.detach().float().mean((0, 1)), alpha=0.01)
            return x + self.down(small.SquaredGelu.apply(self.up(self.norm(x) - self.seen)))

    model = nn.Sequential(*(Layer() for _ in range(4)), nn.Linear(1024, 1024)).cuda()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-3)
    x = torch.randn(12, 512, 1024, device="cuda")
    compiled = torch.compile(model)
    train(model, lambda step: compiled(x).float().square().mean(), amp=torch.bfloat16, optimizer=optimizer)


@workload
def per_sample_gradients() -> None:
    """torch.func inside torch.compile: a gradient for each sample, cut to a length, and the mean of them."""
    from torch.func import functional_call, grad, vmap

    model = nn.Sequential(nn.Conv2d(3, 32, 3, 2), nn.GroupNorm(8, 32), nn.ReLU(), nn.Conv2d(32, 64, 3, 2), nn.ReLU(),
                          nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 100)).cuda()  # fmt: skip
    weights = {name: weight.detach().requires_grad_(False) for name, weight in model.named_parameters()}

    def loss_of_one(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(functional_call(model, weights, (x[None],)), y[None])

    @torch.compile
    def update(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        each = vmap(grad(loss_of_one), in_dims=(None, 0, 0))(weights, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        shares = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        return {name: w - 0.1 * torch.einsum("b...,b->...", each[name], shares) / len(x) for name, w in weights.items()}

    def one_step(step: int) -> None:
        nonlocal weights
        weights = update(weights, images(256, 64), ids(1, 256, 100)[0])

    run(one_step)
