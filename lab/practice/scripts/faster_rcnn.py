"""Faster R-CNN of torchvision on images of different sizes, then evaluated."""

import torch
import torchvision

torch.manual_seed(0)
model = torchvision.models.detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=21).cuda()
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.005, momentum=0.9)
for step in range(4):
    images, targets = [], []
    for i in range(4):
        height, width = 400 + 40 * i, 600 - 30 * step
        images.append(torch.rand(3, height, width, device="cuda"))
        corner = torch.rand(8, 2, device="cuda") * 200
        targets.append(
            {
                "boxes": torch.cat([corner, corner + 50 + 100 * torch.rand(8, 2, device="cuda")], 1),
                "labels": torch.randint(1, 21, (8,), device="cuda"),
            }
        )
    losses = model(images, targets)
    loss = sum(losses.values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
