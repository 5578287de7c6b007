"""Keypoint R-CNN: training steps with an evaluation between them, detections thinned by NMS."""

import torch
from torchvision.models.detection import keypointrcnn_resnet50_fpn

torch.manual_seed(0)
net = keypointrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_keypoints=17).cuda()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
for step in range(4):
    net.train()
    images = [torch.rand(3, 480, 480 + 64 * i, device="cuda") for i in range(2)]
    targets = []
    for i in range(2):
        corner = torch.rand(3, 2, device="cuda") * 200
        boxes = torch.cat([corner, corner + 60 + 100 * torch.rand_like(corner)], 1)
        points = torch.cat([boxes[:, None, :2].expand(-1, 17, -1) + 20, torch.ones(3, 17, 1, device="cuda")], -1)
        targets.append({"boxes": boxes, "labels": torch.ones(3, dtype=torch.int64, device="cuda"), "keypoints": points})
    loss = sum(net(images, targets).values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 2:
        net.eval()
        with torch.no_grad():
            found = net(images)
        print([len(f["boxes"]) for f in found])
print(loss.item())
