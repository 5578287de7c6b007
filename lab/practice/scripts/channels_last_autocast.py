"""ResNet-50 and an auxiliary U-shaped decoder in channels_last under fp16 autocast with a GradScaler."""

import torch
import torch.nn.functional as F
import torchvision
from torch import nn

torch.manual_seed(0)
backbone = torchvision.models.resnet50()
backbone = torchvision.models._utils.IntermediateLayerGetter(backbone, {"layer1": "a", "layer2": "b", "layer4": "c"})
decoder = nn.ModuleDict(
    {
        "c": nn.Conv2d(2048, 256, 1),
        "b": nn.Conv2d(512, 256, 1),
        "a": nn.Conv2d(256, 256, 1),
        "out": nn.Sequential(
            nn.Conv2d(256, 128, 3, padding=1, bias=False),
            nn.BatchNorm2d(128),
            nn.ReLU(inplace=True),
            nn.Conv2d(128, 21, 1),
        ),
    }
)
model = nn.ModuleList([backbone, decoder]).cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scaler = torch.amp.GradScaler("cuda")
for step in range(5):
    images = torch.randn(16, 3, 384, 384, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 21, (16, 384, 384), device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        features = backbone(images)
        x = decoder["c"](features["c"])
        for name in ("b", "a"):
            side = decoder[name](features[name])
            x = side + F.interpolate(x, size=side.shape[-2:], mode="bilinear", align_corners=False)
        logits = F.interpolate(decoder["out"](x), scale_factor=4, mode="bilinear", align_corners=False)
        loss = F.cross_entropy(logits, labels, ignore_index=255)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
print(loss.item())
