"""Dense prediction: segmentation networks, and detectors whose allocations depend on their data."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from lab.workloads.common import Batch, Step, make_optimizer, train


def _masks(batch: int, size: int, classes: int) -> Batch:
    return {"images": torch.randn(batch, 3, size, size), "masks": torch.randint(0, classes, (batch, size, size))}


def torchvision_segmentation(
    *, name: str = "deeplabv3_resnet50", batch: int = 10, size: int = 400, classes: int = 21, precision: str = "fp32",
    optimizer: str = "sgd-momentum", auxiliary: bool = True, layout: str = "contiguous",
) -> Step:  # fmt: skip
    import torchvision

    model = torchvision.models.get_model(
        name, weights=None, weights_backbone=None, num_classes=classes, **({"aux_loss": True} if auxiliary else {})
    )
    model = model.cuda().train()
    if layout == "channels_last":
        model = model.to(memory_format=torch.channels_last)

    def forward(model: nn.Module, batch: Batch) -> Any:
        images = batch["images"]
        if layout == "channels_last":
            images = images.to(memory_format=torch.channels_last)
        outputs = model(images)
        loss = F.cross_entropy(outputs["out"], batch["masks"])
        if "aux" in outputs:
            loss = loss + 0.5 * F.cross_entropy(outputs["aux"], batch["masks"])
        return loss, outputs

    return train(
        model, _masks(batch, size, classes), forward, make_optimizer(optimizer, model.parameters()),
        precision=precision, style="loop",
    )  # fmt: skip


class DoubleConv(nn.Sequential):
    def __init__(self, dims: int, inputs: int, outputs: int, norm: str) -> None:
        convolution: Any = {2: nn.Conv2d, 3: nn.Conv3d}[dims]
        norms: dict[str, Any] = {
            "batch": {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dims],
            "instance": {2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}[dims],
            "group": lambda channels: nn.GroupNorm(8, channels),
        }
        super().__init__(
            convolution(inputs, outputs, 3, padding=1, bias=False), norms[norm](outputs), nn.ReLU(inplace=True),
            convolution(outputs, outputs, 3, padding=1, bias=False), norms[norm](outputs), nn.ReLU(inplace=True),
        )  # fmt: skip


class UNet(nn.Module):
    """The classical U-Net in two or three dimensions."""

    def __init__(
        self, dims: int, inputs: int, outputs: int, width: int, levels: int, norm: str, bilinear: bool
    ) -> None:
        super().__init__()
        convolution: Any = {2: nn.Conv2d, 3: nn.Conv3d}[dims]
        transposed: Any = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}[dims]
        widths = [width * 2**i for i in range(levels)]
        self.pool = {2: nn.MaxPool2d(2), 3: nn.MaxPool3d(2)}[dims]
        pairs = list(zip([inputs, *widths[:-1]], widths, strict=True))
        self.down = nn.ModuleList([DoubleConv(dims, a, b, norm) for a, b in pairs])
        self.mode = {2: "bilinear", 3: "trilinear"}[dims]
        self.up = nn.ModuleList(
            [convolution(2 * a, a, 1) if bilinear else transposed(2 * a, a, 2, stride=2) for a in reversed(widths[:-1])]
        )
        self.bilinear = bilinear
        self.merge = nn.ModuleList([DoubleConv(dims, 2 * a, a, norm) for a in reversed(widths[:-1])])
        self.head = convolution(width, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for number, block in enumerate(self.down):
            x = block(self.pool(x) if number else x)
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            if self.bilinear:
                x = F.interpolate(x, scale_factor=2, mode=self.mode, align_corners=True)
            x = merge(torch.cat([skips.pop(), up(x)], dim=1))
        return self.head(x)


def _dice(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    probability = logits.softmax(1)
    wanted = F.one_hot(target, logits.shape[1]).movedim(-1, 1).float()
    dims = tuple(range(2, logits.dim()))
    overlap = (probability * wanted).sum(dims)
    return 1 - (2 * overlap / (probability.sum(dims) + wanted.sum(dims) + 1e-5)).mean()


def unet2d(
    *, batch: int = 6, size: int = 400, width: int = 64, levels: int = 5, classes: int = 4, precision: str = "fp32",
    norm: str = "batch", bilinear: bool = False, optimizer: str = "rmsprop", layout: str = "contiguous",
    style: str = "function",
) -> Step:  # fmt: skip
    model = UNet(2, 3, classes, width, levels, norm, bilinear).cuda()
    if layout == "channels_last":
        model = model.to(memory_format=torch.channels_last)

    def forward(model: nn.Module, batch: Batch) -> Any:
        images = batch["images"]
        if layout == "channels_last":
            images = images.to(memory_format=torch.channels_last)
        logits = model(images)
        loss = F.cross_entropy(logits, batch["masks"]) + _dice(logits.float(), batch["masks"])
        return (loss, logits) if style == "loop" else loss

    return train(
        model, _masks(batch, size, classes), forward, make_optimizer(optimizer, model.parameters()),
        precision=precision, style=style, clip=1.0,
    )  # fmt: skip


def unet3d(
    *, batch: int = 2, size: int = 96, depth: int = 80, width: int = 32, levels: int = 4, classes: int = 3,
    precision: str = "fp32", norm: str = "instance", optimizer: str = "sgd-momentum", bilinear: bool = False,
) -> Step:  # fmt: skip
    """The shape of medical volume segmentation: one channel in, instance norm, Dice loss."""
    model = UNet(3, 1, classes, width, levels, norm, bilinear).cuda()
    data = {
        "images": torch.randn(batch, 1, depth, size, size),
        "masks": torch.randint(0, classes, (batch, depth, size, size)),
    }

    def forward(model: nn.Module, batch: Batch) -> Any:
        logits = model(batch["images"])
        return F.cross_entropy(logits, batch["masks"]) + _dice(logits.float(), batch["masks"])

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision)


def checkpointed_cnn(
    *, batch: int = 20, size: int = 240, width: int = 96, blocks: int = 16, segments: int = 4,
    reentrant: bool = False, precision: str = "fp32", optimizer: str = "adam",
) -> Step:  # fmt: skip
    """A plain stack of convolution blocks run by checkpoint_sequential, with a pixel-wise loss."""
    stem = nn.Conv2d(3, width, 3, padding=1)
    body = nn.Sequential(*[DoubleConv(2, width, width, "group") for _ in range(blocks)])
    head = nn.Conv2d(width, 3, 3, padding=1)
    model = nn.ModuleList([stem, body, head]).cuda()
    data = {"images": torch.randn(batch, 3, size, size)}

    def forward(model: Any, batch: Batch) -> Any:
        stem, body, head = model
        x = stem(batch["images"])
        x = checkpoint_sequential(body, segments, x, use_reentrant=reentrant)
        return F.l1_loss(head(x), batch["images"])

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision)


def segformer(
    *, batch: int = 8, size: int = 480, classes: int = 150, precision: str = "bf16", optimizer: str = "adamw"
) -> Step:
    """SegFormer-B2: overlapping patches, attention with a spatial reduction."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        depths=[3, 4, 6, 3], hidden_sizes=[64, 128, 320, 512], decoder_hidden_size=768, num_labels=classes
    )
    model = SegformerForSemanticSegmentation(config).cuda().train()

    def forward(model: nn.Module, batch: Batch) -> Any:
        outputs = model(pixel_values=batch["images"], labels=batch["masks"])
        return outputs.loss, outputs

    return train(
        model, _masks(batch, size, classes), forward, make_optimizer(optimizer, model.parameters()),
        precision=precision, style="loop",
    )  # fmt: skip


def torchvision_detection(
    *, name: str = "retinanet_resnet50_fpn", batch: int = 4, size: int = 608, boxes: int = 7, classes: int = 91,
    precision: str = "fp32", optimizer: str = "sgd-momentum",
) -> Step:  # fmt: skip
    """A detector on fixed random boxes; matching and non-maximum suppression depend on the data."""
    import torchvision

    model = torchvision.models.get_model(name, weights=None, weights_backbone=None, num_classes=classes)
    model = model.cuda().train()
    generator = torch.Generator().manual_seed(11)
    images = [torch.rand(3, size, size, generator=generator) for _ in range(batch)]
    targets = []
    for _ in range(batch):
        corner = torch.rand(boxes, 2, generator=generator) * size * 0.5
        extent = torch.rand(boxes, 2, generator=generator) * size * 0.4 + 16
        target = {"boxes": torch.cat([corner, corner + extent], 1)}
        target["labels"] = torch.randint(1, classes, (boxes,), generator=generator)
        if "maskrcnn" in name:
            target["masks"] = torch.randint(0, 2, (boxes, size, size), generator=generator, dtype=torch.uint8)
        targets.append(target)
    parameters = [p for p in model.parameters() if p.requires_grad]
    chosen = make_optimizer(optimizer, parameters, lr=1e-4)

    def make_batch() -> Any:
        moved = [{k: v.to("cuda") for k, v in t.items()} for t in targets]
        return {"images": [image.to("cuda") for image in images], "targets": moved}

    def forward(model: nn.Module, batch: Any) -> Any:
        losses = model(batch["images"], batch["targets"])
        return sum(losses.values())

    return train(model, make_batch, forward, chosen, precision=precision)


def detr(*, batch: int = 4, size: int = 512, boxes: int = 6, precision: str = "fp32", optimizer: str = "adamw") -> Step:
    """DETR's set prediction with the box loss of matched queries; the matching is fixed, not searched."""
    import torchvision

    backbone = torchvision.models.resnet50(weights=None)
    features = nn.Sequential(*list(backbone.children())[:-2])

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = features
            self.narrow = nn.Conv2d(2048, 256, 1)
            self.transformer = nn.Transformer(256, 8, 6, 6, 2048, dropout=0.1, batch_first=True)
            self.queries = nn.Parameter(torch.rand(100, 256))
            self.rows = nn.Parameter(torch.rand(64, 128))
            self.columns = nn.Parameter(torch.rand(64, 128))
            self.classify = nn.Linear(256, 92)
            self.box = nn.Linear(256, 4)

        def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x = self.narrow(self.features(images))
            height, width = x.shape[-2:]
            position = torch.cat(
                [
                    self.columns[:width].unsqueeze(0).repeat(height, 1, 1),
                    self.rows[:height].unsqueeze(1).repeat(1, width, 1),
                ],
                dim=-1,
            ).flatten(0, 1)
            tokens = x.flatten(2).transpose(1, 2) + position
            answer = self.transformer(tokens, self.queries.unsqueeze(0).expand(x.shape[0], -1, -1))
            return self.classify(answer), self.box(answer).sigmoid()

    model = Detector().to("cuda").train()
    data = {
        "images": torch.randn(batch, 3, size, size),
        "classes": torch.randint(0, 91, (batch, 100)),
        "boxes": torch.rand(batch, boxes, 4),
    }

    def forward(model: nn.Module, batch: Batch) -> Any:
        scores, predicted = model(batch["images"])
        loss = F.cross_entropy(scores.flatten(0, 1), batch["classes"].flatten())
        return loss + 5 * F.l1_loss(predicted[:, :boxes], batch["boxes"])

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, clip=0.1)
