"""Mask R-CNN of torchvision with mixed precision."""

import torch
import torchvision

torch.manual_seed(0)
model = torchvision.models.detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=5).cuda()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
scaler = torch.amp.GradScaler("cuda")
for step in range(4):
    images = [torch.rand(3, 480, 640, device="cuda") for _ in range(2)]
    targets = []
    for _ in images:
        corner = torch.rand(4, 2, device="cuda") * 200
        masks = torch.zeros(4, 480, 640, dtype=torch.uint8, device="cuda")
        masks[:, 100:300, 100:300] = 1
        targets.append(
            {
                "boxes": torch.cat([corner, corner + 150], 1),
                "labels": torch.randint(1, 5, (4,), device="cuda"),
                "masks": masks,
            }
        )
    with torch.autocast("cuda", dtype=torch.float16):
        loss = sum(model(images, targets).values())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print(loss.item())
