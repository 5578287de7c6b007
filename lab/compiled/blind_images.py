"""Compiled training that was predicted before anybody measured it: images, and CUDA graphs (blind.py: the rest)."""

from __future__ import annotations

import copy

import blind_models as small
import models
import torch
import torch.nn.functional as F
from loop import classified, gpt_loss, ids, images, run, train, workload
from torch import nn

# -- images ------------------------------------------------------------------------------------------------------------


@workload
def dinov2_fp16() -> None:
    from transformers import Dinov2Config, Dinov2ForImageClassification

    config = Dinov2Config(hidden_size=384, num_hidden_layers=5, num_attention_heads=6, drop_path_rate=0.1,
                          image_size=224, patch_size=14, num_labels=1000, use_swiglu_ffn=True)  # fmt: skip
    model = Dinov2ForImageClassification(config).cuda()
    model.train()
    compiled = torch.compile(model)

    def loss_of(step: int) -> torch.Tensor:
        return compiled(pixel_values=images(48), labels=ids(1, 48, 1000)[0]).loss

    train(model, loss_of, amp=torch.float16, scaler=True)


@workload
def swin_v2_stages_amp() -> None:
    import torchvision

    model = torchvision.models.swin_transformer.SwinTransformer(
        [4, 4], 96, [2, 2, 2], [3, 6, 12], [8, 8], stochastic_depth_prob=0.1,
        block=torchvision.models.swin_transformer.SwinTransformerBlockV2,
        downsample_layer=torchvision.models.swin_transformer.PatchMergingV2,
    ).cuda()  # fmt: skip
    for stage in model.features:
        stage.compile(fullgraph=True, dynamic=False)
    train(model, classified(model, 32, size=256), amp=torch.bfloat16)


@workload
def mobilenet_averaged_fp16() -> None:
    """An average of the weights beside it, compiled by the function that moves it."""
    import torchvision

    model = torchvision.models.mobilenet_v3_small().cuda().to(memory_format=torch.channels_last)
    average = copy.deepcopy(model).requires_grad_(False)
    compiled = torch.compile(model)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)

    @torch.compile
    def move(into: list[torch.Tensor], source: list[torch.Tensor]) -> None:
        torch._foreach_lerp_(into, source, 0.01)

    def loss_of(step: int) -> torch.Tensor:
        with torch.no_grad():
            move(list(average.parameters()), list(model.parameters()))
        return classified(compiled, 96, channels_last=True)(step)

    train(model, loss_of, amp=torch.float16, scaler=True, optimizer=optimizer)


@workload
def regnet_evaluated_bf16() -> None:
    """Evaluation of larger batches in inference mode between the steps of a pure bfloat16 model."""
    import torchvision

    model = torchvision.models.RegNet(
        torchvision.models.regnet.BlockParams([1, 2, 3], [64, 128, 320], [16, 16, 64], [1.0, 1.0, 1.0], [2, 2, 2], 0.25)
    ).cuda().bfloat16()  # fmt: skip
    compiled = torch.compile(model)

    def loss_of(step: int) -> torch.Tensor:
        if step % 2:
            model.eval()
            with torch.inference_mode():
                compiled(images(96).bfloat16()).argmax(-1)
            model.train()
        return F.cross_entropy(compiled(images(64).bfloat16()), ids(1, 64, 1000)[0])

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    train(model, loss_of, optimizer=optimizer)


@workload
def densenet_checkpointed() -> None:
    """torchvision's own way to save memory: each layer of a block is checkpointed."""
    import torchvision

    model = torchvision.models.DenseNet(24, (3, 4, 3), 48, memory_efficient=True).cuda()
    compiled = torch.compile(model, dynamic=False)
    train(model, classified(compiled, 40), amp=torch.bfloat16, accumulate=2)


@workload
def vae_fullgraph_float32() -> None:
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    model = small.VAE().cuda()
    compiled = torch.compile(model, fullgraph=True, options={"fallback_random": True})
    train(model, lambda step: compiled(images(16, 128).abs()), optimizer=torch.optim.Adam(model.parameters(), lr=1e-3))


@workload
def latent_unet_blocks_bf16() -> None:
    model = small.LatentUNet().cuda().bfloat16()
    for block in model.blocks:
        block.compile(mode="default")
    outside = torch.compile(model)

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(12, 4, 64, 64, device="cuda", dtype=torch.bfloat16)
        context = torch.randn(12, 77, 512, device="cuda", dtype=torch.bfloat16)
        return F.mse_loss(outside(x, context).float(), torch.randn_like(x).float())

    train(model, loss_of, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4))


@workload
def mixer_compiled_autograd() -> None:
    import torch._dynamo.config

    torch._dynamo.config.compiled_autograd = True
    model = small.Mixer(layers=4).cuda()
    compiled = torch.compile(model)

    @torch.compile
    def one_pass(x: torch.Tensor, labels: torch.Tensor) -> None:
        F.cross_entropy(compiled(x), labels).backward()

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def one_step(step: int) -> None:
        one_pass(images(64), ids(1, 64, 1000)[0])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    run(one_step)


@workload
def vit_budget_quarter() -> None:
    import torch._functorch.config
    import torchvision

    torch._functorch.config.activation_memory_budget = 0.25
    model = torchvision.models.VisionTransformer(224, 16, 5, 8, 512, 2048, dropout=0.1).cuda()
    train(model, classified(torch.compile(model), 64), amp=torch.bfloat16)


@workload
def adversaries_two_compiled() -> None:
    """Generator and discriminator, each compiled, with a gradient penalty left out and losses of both."""
    width = 64
    generator = nn.Sequential(
        nn.ConvTranspose2d(128, 4 * width, 4), nn.BatchNorm2d(4 * width), nn.ReLU(True),
        nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU(True),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.BatchNorm2d(width), nn.ReLU(True),
        nn.ConvTranspose2d(width, width, 4, 2, 1), nn.BatchNorm2d(width), nn.ReLU(True),
        nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh(),
    ).cuda()  # fmt: skip
    judge = nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2, True),
        nn.utils.parametrizations.spectral_norm(nn.Conv2d(width, 2 * width, 4, 2, 1)), nn.LeakyReLU(0.2, True),
        nn.Conv2d(2 * width, 4 * width, 4, 2, 1), nn.LeakyReLU(0.2, True), nn.Conv2d(4 * width, 1, 8),
    ).cuda()  # fmt: skip
    makes, judges = torch.compile(generator), torch.compile(judge)
    ours = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    theirs = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))

    def one_step(step: int) -> None:
        made = makes(torch.randn(64, 128, 1, 1, device="cuda"))
        theirs.zero_grad()
        (F.softplus(-judges(images(64, 64))).mean() + F.softplus(judges(made.detach())).mean()).backward()
        theirs.step()
        ours.zero_grad()
        F.softplus(-judges(made)).mean().backward()
        ours.step()

    run(one_step)


@workload
def distilled_student_amp() -> None:
    """A compiled teacher in inference mode and a compiled student; a compiled loss of both."""
    import torchvision

    teacher = torchvision.models.resnet34().cuda().eval().to(memory_format=torch.channels_last)
    student = torchvision.models.resnet18().cuda().to(memory_format=torch.channels_last)
    knows, learns = torch.compile(teacher), torch.compile(student)

    @torch.compile
    def loss_of_both(ours: torch.Tensor, known: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        soft = F.kl_div(F.log_softmax(ours / 4, -1), F.softmax(known / 4, -1), reduction="batchmean")
        return 16 * soft + F.cross_entropy(ours, labels)

    def loss_of(step: int) -> torch.Tensor:
        inputs = images(64).to(memory_format=torch.channels_last)
        with torch.no_grad():
            known = knows(inputs)
        return loss_of_both(learns(inputs), known, ids(1, 64, 1000)[0])

    train(student, loss_of, amp=torch.bfloat16, optimizer=torch.optim.SGD(student.parameters(), 0.1, 0.9))


# -- CUDA graphs, and a backend that fuses nothing ---------------------------------------------------------------------


@workload
def compiled_whole_step_graph() -> None:
    """A compiled model within a graph that the program captures itself."""
    model = models.GPT(layers=3, vocab=32000).cuda().bfloat16()
    compiled = torch.compile(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, capturable=True)
    tokens = ids(8, 512, 32000)

    def one_pass() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = compiled(tokens, tokens)
        loss.backward()
        optimizer.step()
        return loss.detach()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            one_pass()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one_pass()
    run(lambda step: graph.replay())


@workload
def mlp_reduce_overhead_evaluated() -> None:
    """Training and evaluation share the graphs' pool; the loss is compiled by itself, and with graphs too."""
    model = nn.Sequential(
        nn.Linear(1024, 4096), nn.BatchNorm1d(4096), nn.SiLU(), nn.Dropout(0.2),
        nn.Linear(4096, 4096), nn.SiLU(), nn.Linear(4096, 1000),
    ).cuda()  # fmt: skip
    compiled = torch.compile(model, mode="reduce-overhead")
    rows = lambda count: torch.randn(count, 1024, device="cuda")  # noqa: E731
    loss = torch.compile(nn.CrossEntropyLoss(label_smoothing=0.1), mode="reduce-overhead")

    def loss_of(step: int) -> torch.Tensor:
        model.eval()
        with torch.no_grad():
            float(compiled(rows(4096)).argmax(-1).sum())
        model.train()
        return loss(compiled(rows(2048)), ids(1, 2048, 1000)[0])

    train(model, loss_of)


@workload
def aot_eager_backend() -> None:
    """Partitioned by AOTAutograd and run op by op."""
    model = models.GPT(layers=4, vocab=32000).cuda()
    compiled = torch.compile(model, backend="aot_eager_decomp_partition")
    train(model, gpt_loss(compiled, 8, 512, 32000), amp=torch.bfloat16)
