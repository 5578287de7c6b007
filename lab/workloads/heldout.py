"""Held-out workloads: habits of training loops that the other families do not show."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from lab.workloads.common import Batch, Step, autocast_for, make_optimizer, train


def googlenet(
    *, name: str = "inception_v3", batch: int = 48, size: int = 299, precision: str = "fp32",
    optimizer: str = "rmsprop", style: str = "function",
) -> Step:  # fmt: skip
    """Inception networks with their auxiliary classifiers in the loss."""
    import torchvision

    model = torchvision.models.get_model(name, weights=None, aux_logits=True, init_weights=False).cuda().train()
    data = {"images": torch.randn(batch, 3, size, size), "labels": torch.randint(0, 1000, (batch,))}

    def forward(model: nn.Module, batch: Batch) -> Any:
        outputs = model(batch["images"])
        loss = F.cross_entropy(outputs[0], batch["labels"])
        for extra in outputs[1:]:
            loss = loss + 0.3 * F.cross_entropy(extra, batch["labels"])
        return loss

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style)


def optical_flow(
    *, name: str = "raft_small", batch: int = 4, height: int = 304, width: int = 400, updates: int = 10,
    precision: str = "fp32", optimizer: str = "adamw", gamma: float = 0.8,
) -> Step:  # fmt: skip
    """RAFT: an all-pairs correlation volume looked up in every recurrent update."""
    import torchvision

    model = torchvision.models.get_model(name, weights=None).cuda().train()
    data = {
        "first": torch.randn(batch, 3, height, width), "second": torch.randn(batch, 3, height, width),
        "flow": torch.randn(batch, 2, height, width),
    }  # fmt: skip

    def forward(model: nn.Module, batch: Batch) -> Any:
        flows = model(batch["first"], batch["second"], num_flow_updates=updates)
        loss: Any = 0.0
        for i, flow in enumerate(flows):
            loss = loss + gamma ** (len(flows) - 1 - i) * (flow - batch["flow"]).abs().mean()
        return loss

    chosen = make_optimizer(optimizer, model.parameters())
    return train(model, data, forward, chosen, precision=precision, clip=1.0)


def sharpness_aware(
    *, name: str = "wide_resnet50_2", batch: int = 40, size: int = 176, radius: float = 0.05,
    optimizer: str = "sgd-momentum", precision: str = "fp32",
) -> Step:  # fmt: skip
    """SAM: climb along the gradient, take a second gradient there, and step from where it began."""
    import torchvision

    model = torchvision.models.get_model(name, weights=None).cuda().train()
    chosen = make_optimizer(optimizer, model.parameters(), lr=0.05)
    images, labels = torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,))

    def step() -> None:
        x, y = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
        with autocast_for(precision):
            F.cross_entropy(model(x), y).backward()
        saved = {}
        with torch.no_grad():
            norm = torch.norm(torch.stack([p.grad.norm(2) for p in model.parameters()]), 2)
            for p in model.parameters():
                saved[p] = p.data.clone()
                p.add_(p.grad * (radius / (norm + 1e-12)))
        chosen.zero_grad()
        with autocast_for(precision):
            F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p in model.parameters():
                p.data = saved[p]
        chosen.step()
        chosen.zero_grad()

    return step


def two_views(
    *, name: str = "resnet34", batch: int = 512, size: int = 96, temperature: float = 0.5, precision: str = "bf16",
    optimizer: str = "sgd-momentum",
) -> Step:  # fmt: skip
    """SimCLR: both views in one pass, and the similarity of every pair in a large batch."""
    import torchvision

    encoder = torchvision.models.get_model(name, weights=None)
    width = encoder.fc.in_features
    encoder.fc = nn.Sequential(nn.Linear(width, 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Linear(1024, 256))
    encoder.cuda().train()

    def views() -> Batch:
        return {"views": torch.randn(2 * batch, 3, size, size, device="cuda")}

    def forward(model: nn.Module, views: Batch) -> Any:
        z = F.normalize(model(views["views"]).float(), dim=1)
        similarity = z @ z.T / temperature
        own = torch.eye(2 * batch, dtype=torch.bool, device=z.device)
        similarity = similarity.masked_fill(own, float("-inf"))
        partner = torch.arange(2 * batch, device=z.device).roll(batch)
        return F.cross_entropy(similarity, partner), z

    chosen = make_optimizer(optimizer, encoder.parameters(), lr=0.3)
    return train(encoder, views, forward, chosen, precision=precision, style="loop")


def triplets(
    *, name: str = "mobilenet_v2", batch: int = 60, size: int = 160, precision: str = "fp32",
    optimizer: str = "adagrad", style: str = "function",
) -> Step:  # fmt: skip
    """Siamese: one network run three times, all three graphs alive at once."""
    import torchvision

    model = torchvision.models.get_model(name, weights=None, num_classes=128).cuda().train()
    data = {key: torch.randn(batch, 3, size, size) for key in ("anchor", "positive", "negative")}

    def forward(model: nn.Module, batch: Batch) -> Any:
        anchor, positive, negative = (model(batch[k]) for k in ("anchor", "positive", "negative"))
        return F.triplet_margin_loss(anchor, positive, negative, margin=0.2)

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style)


def train_and_evaluate(
    *, name: str = "regnet_x_3_2gf", batch: int = 64, evaluation: int = 200, size: int = 224, precision: str = "fp16",
    optimizer: str = "adamw",
) -> Step:  # fmt: skip
    """After every update an evaluation pass with a larger batch, its predictions kept for the metric."""
    import torchvision

    model = torchvision.models.get_model(name, weights=None).cuda()
    data = {"images": torch.randn(batch, 3, size, size), "labels": torch.randint(0, 1000, (batch,))}
    unseen = torch.randn(evaluation, 3, size, size)

    def forward(model: nn.Module, batch: Batch) -> Any:
        return F.cross_entropy(model(batch["images"]), batch["labels"])

    update = train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision)

    def step() -> None:
        model.train()
        update()
        model.eval()
        predictions = []
        with torch.no_grad(), autocast_for(precision):
            for part in unseen.cuda().chunk(2):
                predictions.append(model(part).softmax(dim=-1))
        torch.cat(predictions).topk(5, dim=-1).indices.cpu()

    return step


def mixed_optimizers(
    *, batch: int = 20, length: int = 420, width: int = 896, layers: int = 10, vocabulary: int = 32000,
    precision: str = "bf16",
) -> Step:  # fmt: skip
    """Embeddings under SGD, matrices under fused AdamW, norms and biases under unfused Adam without decay."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(vocabulary, width)
            self.position = nn.Parameter(torch.zeros(1, length, width))
            self.layers = nn.ModuleList(
                [
                    nn.TransformerEncoderLayer(
                        width, 14, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
                    )
                    for _ in range(layers)
                ]
            )
            self.norm = nn.LayerNorm(width)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids) + self.position
            mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
            for layer in self.layers:
                x = layer(x, src_mask=mask, is_causal=True)
            return F.linear(self.norm(x), self.embed.weight)

    model = Network().cuda()
    embeddings = [model.embed.weight, model.position]
    matrices = [p for p in model.layers.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() == 1]
    optimizers = [
        torch.optim.SGD(embeddings, lr=1e-2, momentum=0.9),
        torch.optim.AdamW(
            [{"params": matrices[::2], "lr": 1e-4}, {"params": matrices[1::2], "weight_decay": 0.1}], fused=True
        ),
        torch.optim.Adam(rest, lr=1e-3, foreach=False),
    ]
    tokens = torch.randint(0, vocabulary, (batch, length + 1))

    def step() -> None:
        ids = tokens.to("cuda")
        with autocast_for(precision):
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

    return step


def checkpointed_stages(
    *, name: str = "resnet152", batch: int = 90, size: int = 224, precision: str = "fp16", reentrant: bool = False,
    optimizer: str = "sgd-momentum",
) -> Step:  # fmt: skip
    """A residual network of which every stage is recomputed, batch norms and all."""
    import torchvision

    model = torchvision.models.get_model(name, weights=None).cuda().train()
    data = {"images": torch.randn(batch, 3, size, size), "labels": torch.randint(0, 1000, (batch,))}

    def forward(model: Any, batch: Batch) -> Any:
        x = model.maxpool(model.relu(model.bn1(model.conv1(batch["images"]))))
        for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
            x = checkpoint(stage, x, use_reentrant=reentrant)
        return F.cross_entropy(model.fc(torch.flatten(model.avgpool(x), 1)), batch["labels"])

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision)


def masked_autoencoder(
    *, batch: int = 90, size: int = 224, patch: int = 16, width: int = 768, layers: int = 12, keep: float = 0.25,
    precision: str = "bf16", optimizer: str = "adamw", style: str = "loop",
) -> Step:  # fmt: skip
    """MAE: a random quarter of the patches is encoded, a narrow decoder restores the rest."""

    def encoder(width: int, heads: int, layers: int) -> nn.TransformerEncoder:
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count, self.narrow = (size // patch) ** 2, 512
            self.embed = nn.Conv2d(3, width, patch, stride=patch)
            self.position = nn.Parameter(torch.randn(1, self.count, width) * 0.02)
            self.encoder = encoder(width, width // 64, layers)
            self.reduce = nn.Linear(width, self.narrow)
            self.hidden = nn.Parameter(torch.zeros(1, 1, self.narrow))
            self.decoder_position = nn.Parameter(torch.randn(1, self.count, self.narrow) * 0.02)
            self.decoder = encoder(self.narrow, 16, 6)
            self.output = nn.Linear(self.narrow, 3 * patch * patch)

        def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x = self.embed(images).flatten(2).transpose(1, 2) + self.position
            order = torch.rand(x.shape[:2], device=x.device).argsort(dim=1)
            back = order.argsort(dim=1)
            kept = order[:, : int(self.count * keep)]
            x = self.encoder(torch.gather(x, 1, kept.unsqueeze(-1).expand(-1, -1, x.shape[-1])))
            x = self.reduce(x)
            x = torch.cat([x, self.hidden.to(x.dtype).expand(x.shape[0], self.count - x.shape[1], -1)], dim=1)
            x = torch.gather(x, 1, back.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
            return self.output(self.decoder(x + self.decoder_position)), back >= kept.shape[1]

    model = Autoencoder().cuda().train()

    def forward(model: nn.Module, batch: Batch) -> Any:
        predicted, hidden = model(batch["images"])
        target = F.unfold(batch["images"], patch, stride=patch).transpose(1, 2)
        target = (target - target.mean(-1, keepdim=True)) / (target.var(-1, keepdim=True) + 1e-6).sqrt()
        loss = (predicted.float() - target).square().mean(-1)
        return (loss * hidden).sum() / hidden.sum(), predicted

    data = {"images": torch.randn(batch, 3, size, size)}
    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style)


def second_order_closure(*, points: int = 400_000, width: int = 384, depth: int = 5, history: int = 10) -> Step:
    """LBFGS with a closure that it calls several times in one step."""
    sizes = [3] + [width] * depth
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(width, 1)).cuda()
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=0.5, max_iter=4, history_size=history, tolerance_grad=0.0, tolerance_change=0.0
    )
    x, y = torch.rand(points, 3, device="cuda"), torch.rand(points, 1, device="cuda")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    def step() -> None:
        optimizer.step(closure)

    return step
