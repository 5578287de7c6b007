"""Small workloads built around one layer or one habit of training code."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lab.workloads.common import Batch, Step, make_optimizer, train


def transformer_encoder(
    *, batch: int = 24, length: int = 500, width: int = 768, layers: int = 8, heads: int = 12, precision: str = "fp32",
    norm_first: bool = False, padded: bool = True, optimizer: str = "nadam", style: str = "function",
) -> Step:  # fmt: skip
    """nn.TransformerEncoder with a padding mask."""
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).cuda().train()
    mask = torch.zeros(batch, length, dtype=torch.bool)
    mask[:, -length // 10 :] = True
    data = {"x": torch.randn(batch, length, width), "mask": mask}

    def forward(model: nn.Module, batch: Batch) -> Any:
        answer = model(batch["x"], src_key_padding_mask=batch["mask"] if padded else None)
        return F.mse_loss(answer, batch["x"])

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style)


def transformer_translation(
    *, batch: int = 40, source: int = 130, target: int = 110, width: int = 512, vocabulary: int = 20000,
    precision: str = "fp32", optimizer: str = "adam", style: str = "loop",
) -> Step:  # fmt: skip
    """nn.Transformer with a causal target mask, as in PyTorch's translation tutorial."""

    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source = nn.Embedding(vocabulary, width)
            self.target = nn.Embedding(vocabulary, width)
            self.transformer = nn.Transformer(width, 8, 6, 6, 2048, batch_first=True)
            self.output = nn.Linear(width, vocabulary)

        def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
            hidden = self.transformer(self.source(source), self.target(target), tgt_mask=mask, tgt_is_causal=True)
            return self.output(hidden)

    model = Translator().cuda().train()
    data = {
        "source": torch.randint(0, vocabulary, (batch, source)),
        "target": torch.randint(0, vocabulary, (batch, target + 1)),
    }

    def forward(model: nn.Module, batch: Batch) -> Any:
        logits = model(batch["source"], batch["target"][:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, vocabulary), batch["target"][:, 1:].reshape(-1))
        return (loss, logits) if style == "loop" else loss

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style)


def multihead_attention(
    *, batch: int = 16, length: int = 700, width: int = 640, layers: int = 4, heads: int = 10,
    need_weights: bool = True, dropout: float = 0.1, precision: str = "fp32", optimizer: str = "adagrad",
) -> Step:  # fmt: skip
    """nn.MultiheadAttention with and without its weights returned."""

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.ModuleList(
                [nn.MultiheadAttention(width, heads, dropout=dropout, batch_first=True) for _ in range(layers)]
            )
            self.norm = nn.ModuleList([nn.LayerNorm(width) for _ in range(layers)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for attention, norm in zip(self.attention, self.norm, strict=True):
                answer, _ = attention(x, x, x, need_weights=need_weights)
                x = norm(x + answer)
            return x

    model = Stack().cuda().train()

    def forward(model: nn.Module, batch: Batch) -> Any:
        return model(batch["x"]).square().mean()

    return train(
        model, {"x": torch.randn(batch, length, width)}, forward, make_optimizer(optimizer, model.parameters()),
        precision=precision,
    )  # fmt: skip


class SquaredReLU(torch.autograd.Function):
    """An activation with a backward pass of its own that keeps only its input."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0).square()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 2 * x.clamp(min=0)


def mlp_mixer_custom(
    *, batch: int = 4000, width: int = 3000, layers: int = 9, optimizer: str = "radam", precision: str = "fp32",
    tf32: bool = False,
) -> Step:  # fmt: skip
    """A residual MLP whose activation is a custom autograd.Function."""
    if tf32:
        torch.set_float32_matmul_precision("high")

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.up = nn.Linear(width, 2 * width)
            self.down = nn.Linear(2 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(SquaredReLU.apply(self.up(self.norm(x))))

    model = nn.Sequential(*[Residual() for _ in range(layers)]).cuda()

    def forward(model: nn.Module, batch: Batch) -> Any:
        return F.smooth_l1_loss(model(batch["x"]), batch["y"])

    data = {"x": torch.randn(batch, width), "y": torch.randn(batch, width)}
    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision)


class Recommender(nn.Module):
    """DLRM's shape: bags of sparse features and a dense part, joined by their pairwise products."""

    def __init__(self, tables: list[int], width: int, dense: int, sparse: bool) -> None:
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(rows, width, mode="sum", sparse=sparse) for rows in tables])
        self.bottom = nn.Sequential(nn.Linear(dense, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        count = len(tables) + 1
        self.register_buffer("pairs", torch.tril_indices(count, count, offset=-1), persistent=False)
        self.top = nn.Sequential(
            nn.Linear(width + count * (count - 1) // 2, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
            nn.Linear(1024, 1),
        )  # fmt: skip

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        features = torch.stack([bottom] + [bag(ids) for bag, ids in zip(self.bags, sparse, strict=True)], dim=1)
        products = torch.bmm(features, features.transpose(1, 2))
        chosen = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([bottom, chosen], dim=1)).squeeze(1)


def recommender(
    *, batch: int = 9000, tables: int = 14, rows: int = 400_000, width: int = 128, per_bag: int = 12,
    sparse: bool = False, optimizer: str = "adagrad",
) -> Step:  # fmt: skip
    """With sparse gradients the tables have SparseAdam, the rest its own optimizer."""
    sizes = [rows + 1000 * i for i in range(tables)]
    with torch.device("cuda"):
        model = Recommender(sizes, width, 13, sparse)
    model.to("cuda")
    dense_parameters = [p for name, p in model.named_parameters() if not (sparse and name.startswith("bags"))]
    chosen = make_optimizer(optimizer, dense_parameters, lr=1e-3)
    sparse_optimizer = torch.optim.SparseAdam(list(model.bags.parameters()), lr=1e-3) if sparse else None
    dense = torch.randn(batch, 13)
    ids = torch.randint(0, rows, (tables, batch, per_bag))
    clicks = torch.randint(0, 2, (batch,)).float()

    def step() -> None:
        scores = model(dense.to("cuda"), ids.to("cuda"))
        loss = F.binary_cross_entropy_with_logits(scores, clicks.to("cuda"))
        model.zero_grad()
        loss.backward()
        chosen.step()
        if sparse_optimizer is not None:
            sparse_optimizer.step()

    return step


class MessagePassing(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))
        self.update = nn.GRUCell(width, width)

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        messages = self.message(torch.cat([x[source], x[target]], dim=-1))
        gathered = torch.zeros_like(x).index_add(0, target, messages)
        degree = torch.zeros(x.shape[0], device=x.device, dtype=x.dtype).scatter_add(
            0, target, torch.ones_like(target, dtype=x.dtype)
        )
        return self.update(gathered / degree.clamp(min=1).unsqueeze(-1), x)


def graph_network(
    *, nodes: int = 60_000, edges: int = 900_000, width: int = 96, layers: int = 4, graphs: int = 500,
    optimizer: str = "adamw", precision: str = "fp32", style: str = "loop",
) -> Step:  # fmt: skip
    """Message passing by index_add and scatter, and a read-out for each graph of the batch."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(32, width)
            self.layers = nn.ModuleList([MessagePassing(width) for _ in range(layers)])
            self.output = nn.Linear(width, 1)

        def forward(self, x: torch.Tensor, edge: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
            x = self.embed(x)
            for layer in self.layers:
                x = layer(x, edge[0], edge[1])
            pooled = torch.zeros(graphs, width, device=x.device, dtype=x.dtype)
            pooled = pooled.scatter_reduce(0, graph.unsqueeze(-1).expand_as(x), x, "mean", include_self=False)
            return self.output(pooled).squeeze(-1)

    model = Network().cuda()
    data = {
        "x": torch.randn(nodes, 32),
        "edge": torch.randint(0, nodes, (2, edges)),
        "graph": torch.arange(nodes) * graphs // nodes,
        "y": torch.randn(graphs),
    }

    def forward(model: nn.Module, batch: Batch) -> Any:
        return F.mse_loss(model(batch["x"], batch["edge"], batch["graph"]), batch["y"])

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style)


def point_cloud(
    *, batch: int = 10, points: int = 2048, neighbours: int = 20, width: int = 64, optimizer: str = "sgd-momentum"
) -> Step:
    """DGCNN: k nearest neighbours in feature space, edge convolutions, max over neighbours."""

    class EdgeConv(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.convolution = nn.Sequential(
                nn.Conv2d(2 * inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nearest = torch.cdist(x.transpose(1, 2), x.transpose(1, 2)).topk(neighbours, largest=False).indices
            count, channels = x.shape[:2]
            index = nearest.flatten(1).unsqueeze(1).expand(-1, channels, -1)
            gathered = torch.gather(x, 2, index).view(count, channels, points, neighbours)
            centre = x.unsqueeze(-1).expand_as(gathered)
            return self.convolution(torch.cat([gathered - centre, centre], dim=1)).amax(dim=-1)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.edges = nn.ModuleList([EdgeConv(3, width), EdgeConv(width, width), EdgeConv(width, 2 * width)])
            self.mix = nn.Sequential(nn.Conv1d(4 * width, 1024, 1, bias=False), nn.BatchNorm1d(1024), nn.LeakyReLU(0.2))
            self.output = nn.Sequential(nn.Linear(2048, 512), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, 40))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            features = []
            for edge in self.edges:
                x = edge(x)
                features.append(x)
            mixed = self.mix(torch.cat(features, dim=1))
            return self.output(torch.cat([mixed.amax(-1), mixed.mean(-1)], dim=1))

    model = Network().cuda().train()
    data = {"cloud": torch.randn(batch, 3, points), "labels": torch.randint(0, 40, (batch,))}

    def forward(model: nn.Module, batch: Batch) -> Any:
        return F.cross_entropy(model(batch["cloud"]), batch["labels"])

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()))


def deformable_network(
    *, batch: int = 10, size: int = 160, width: int = 64, layers: int = 5, optimizer: str = "adamax",
    precision: str = "fp32",
) -> Step:  # fmt: skip
    """Blocks of modulated deformable convolution (torchvision.ops.deform_conv2d)."""
    from torchvision.ops import deform_conv2d

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.offset = nn.Conv2d(width, 27, 3, padding=1)
            self.weight = nn.Parameter(torch.randn(width, width, 3, 3) * 0.02)
            self.norm = nn.BatchNorm2d(width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            offset, mask = self.offset(x).split([18, 9], dim=1)
            answer = deform_conv2d(x, offset, self.weight, padding=1, mask=mask.sigmoid())
            return x + F.relu(self.norm(answer))

    model = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *[Block() for _ in range(layers)], nn.Conv2d(width, 3, 1))
    model = model.cuda()

    def forward(model: nn.Module, batch: Batch) -> Any:
        return F.l1_loss(model(batch["images"]), batch["images"])

    return train(
        model, {"images": torch.randn(batch, 3, size, size)}, forward, make_optimizer(optimizer, model.parameters()),
        precision=precision,
    )  # fmt: skip


def contrastive_momentum(
    *, batch: int = 96, size: int = 192, queue: int = 65536, precision: str = "fp16", momentum: float = 0.999
) -> Step:
    """MoCo: a momentum copy of the encoder under no_grad, and a queue of negatives."""
    import torchvision

    encoder = torchvision.models.resnet50(weights=None, num_classes=128).cuda()
    shadow = copy.deepcopy(encoder).requires_grad_(False)
    negatives = F.normalize(torch.randn(128, queue, device="cuda"), dim=0)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    data = {"first": torch.randn(batch, 3, size, size), "second": torch.randn(batch, 3, size, size)}

    @torch.no_grad()
    def update_shadow() -> None:
        for slow, fast in zip(shadow.parameters(), encoder.parameters(), strict=True):
            slow.mul_(momentum).add_(fast, alpha=1 - momentum)

    def forward(model: nn.Module, batch: Batch) -> Any:
        query = F.normalize(model(batch["first"]), dim=1)
        with torch.no_grad():
            key = F.normalize(shadow(batch["second"]), dim=1)
        positive = torch.einsum("nc,nc->n", query, key).unsqueeze(-1)
        logits = torch.cat([positive, query @ negatives.clone().detach()], dim=1) / 0.07
        loss = F.cross_entropy(logits, torch.zeros(len(query), dtype=torch.long, device="cuda"))
        negatives[:, : len(key)] = key.T
        return loss

    return train(encoder, data, forward, optimizer, precision=precision, after_step=update_shadow)


def muon_transformer(*, batch: int = 12, length: int = 512, width: int = 1024, layers: int = 8) -> Step:
    """Muon for the matrices and AdamW for the rest, as its users combine them; the loss stays alive between steps."""
    layer = nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
    body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    model = nn.ModuleDict(
        {"embed": nn.Embedding(32000, width), "body": body, "output": nn.Linear(width, 32000, bias=False)}
    )
    model.to("cuda")
    matrices = [p for p in model["body"].parameters() if p.ndim == 2]
    others = [p for name, p in model.named_parameters() if not (name.startswith("body") and p.ndim == 2)]
    optimizers = [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=3e-4)]
    ids = torch.randint(0, 32000, (batch, length + 1))

    def loop() -> Iterator[None]:
        while True:
            tokens = ids.to("cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16):
                mask = nn.Transformer.generate_square_subsequent_mask(length, device="cuda")
                hidden = model["body"](model["embed"](tokens[:, :-1]), mask=mask, is_causal=True)
                logits = model["output"](hidden)
                loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            yield

    iterations = loop()
    return lambda: next(iterations)
