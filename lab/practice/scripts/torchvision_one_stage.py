"""RetinaNet, FCOS and SSD of torchvision in turns: anchors, focal loss, hard negatives, boxes of varying number."""

import torch
from torchvision.models import detection

torch.manual_seed(0)
nets = [
    detection.retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=21),
    detection.fcos_resnet50_fpn(weights=None, weights_backbone=None, num_classes=21),
    detection.ssd300_vgg16(weights=None, weights_backbone=None, num_classes=21),
]
for net in nets:
    net.cuda().train()
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=1e-3, momentum=0.9)
    for step in range(3):
        images = [torch.rand(3, 320 + 40 * i, 480 - 30 * i, device="cuda") for i in range(3)]
        targets = []
        for i in range(3):
            corner = torch.rand(2 + 3 * i, 2, device="cuda") * 150
            boxes = torch.cat([corner, corner + 40 + 100 * torch.rand_like(corner)], 1)
            targets.append({"boxes": boxes, "labels": torch.randint(1, 21, (len(boxes),), device="cuda")})
        losses = sum(net(images, targets).values())
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
    net.cpu()
print(losses.item())
