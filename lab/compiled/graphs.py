"""Training with CUDA graphs: torch.compile's own (mode="reduce-overhead"), and those a program captures itself."""

from __future__ import annotations

from typing import Any

import models
import torch
import torch.nn.functional as F
from loop import classified, gpt_loss, ids, images, labelled, run, train, workload
from torch import nn

MODE = "reduce-overhead"


@workload
def llama_reduce_overhead() -> None:
    model = models.llama(num_hidden_layers=4).cuda().bfloat16()
    train(model, labelled(torch.compile(model, mode=MODE), 6, 768, 32000), clip=True)


@workload
def bert_reduce_overhead() -> None:
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(BertConfig(num_hidden_layers=4)).cuda()
    train(model, labelled(torch.compile(model, mode=MODE), 16, 256, 30522), amp=torch.float16, scaler=True)


@workload
def resnet_reduce_overhead() -> None:
    import torchvision

    model = torchvision.models.resnet18().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, classified(torch.compile(model, mode=MODE), 64, channels_last=True), amp=torch.bfloat16,
          optimizer=optimizer)  # fmt: skip


@workload
def gpt_reduce_overhead_accumulate() -> None:
    model = models.GPT(layers=4, dropout=0.1).cuda()
    train(model, gpt_loss(torch.compile(model, mode=MODE), 6, 512), amp=torch.bfloat16, accumulate=2, clip=True)


@workload
def gpt_reduce_overhead_layerwise() -> None:
    model = models.GPT(layers=4).cuda()
    for block in model.blocks:
        block.compile(mode=MODE)
    train(model, gpt_loss(model, 8, 512), amp=torch.bfloat16)


@workload
def gpt_reduce_overhead_break() -> None:
    model = models.GPT(layers=4, prints=True).cuda()
    train(model, gpt_loss(torch.compile(model, mode=MODE), 6, 768), amp=torch.bfloat16)


@workload
def dit_reduce_overhead() -> None:
    model = models.DiT(layers=4).cuda().bfloat16()
    compiled = torch.compile(model, mode=MODE)

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(24, 4, 32, 32, device="cuda", dtype=torch.bfloat16)
        out = compiled(x, torch.randint(0, 1000, (24,), device="cuda"))
        return F.mse_loss(out, torch.randn_like(out))

    train(model, loss_of)


@workload
def gpt_reduce_overhead_two_lengths() -> None:
    """Two shapes of a model that is compiled for each: two graphs share one pool."""
    model = models.GPT(layers=3).cuda()
    compiled = torch.compile(model, mode=MODE, dynamic=False)
    train(model, lambda step: gpt_loss(compiled, 6, (512, 256)[step % 2])(step), amp=torch.bfloat16, steps=8)


def _graphed(model: nn.Module, loss_of: Any, inputs: list[torch.Tensor], **options: Any) -> None:
    """The whole step in one graph, as PyTorch's notes on CUDA graphs show it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True, **options)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            loss_of(*inputs).backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = loss_of(*inputs)
        loss.backward()
        optimizer.step()

    def one_step(step: int) -> None:
        for tensor in inputs:
            tensor.copy_(torch.randint_like(tensor, 0, 1000) if not tensor.is_floating_point() else tensor)
        graph.replay()

    run(one_step)


@workload
def gpt_whole_step_graph() -> None:
    model = models.GPT(layers=4).cuda()

    def loss_of(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
            return model(inputs, targets)  # type: ignore[no-any-return]

    _graphed(model, loss_of, [ids(8, 512), ids(8, 512)], fused=True)


@workload
def resnet_whole_step_graph() -> None:
    import torchvision

    model = torchvision.models.resnet18().cuda()
    _graphed(model, lambda x, y: F.cross_entropy(model(x), y), [images(48), ids(1, 48, 1000)[0]])


@workload
def gpt_graphed_callables() -> None:
    model = models.GPT(layers=4).cuda().bfloat16()
    shape: Any = {"size": (8, 512, 768), "device": "cuda", "dtype": torch.bfloat16, "requires_grad": True}
    examples = tuple((torch.randn(**shape),) for _ in model.blocks)
    graphed = torch.cuda.make_graphed_callables(tuple(model.blocks), examples)

    def loss_of(step: int) -> torch.Tensor:
        inputs, targets = ids(8, 512), ids(8, 512)
        x = model.wte(inputs) + model.wpe(torch.arange(512, device="cuda"))
        for block in graphed:
            x = block(x)
        return F.cross_entropy(model.head(model.ln_f(x)).flatten(0, 1), targets.flatten())

    train(model, loss_of)


@workload
def mlp_graphed_model() -> None:
    """A whole model as one graphed callable."""
    model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(2048, 2048), nn.GELU()))).cuda()
    example = torch.randn(2048, 2048, device="cuda")
    graphed = torch.cuda.make_graphed_callables(model, (example,))
    train(model, lambda step: graphed(torch.randn(2048, 2048, device="cuda")).square().mean())


@workload
def gpt_max_autotune_graphs() -> None:
    model = models.GPT(layers=2).cuda()
    train(model, gpt_loss(torch.compile(model, mode="max-autotune"), 8, 512), amp=torch.bfloat16)
