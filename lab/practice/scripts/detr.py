"""DETR from transformers: a ResNet backbone, set prediction with the Hungarian matcher, padded images."""

import torch
from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

torch.manual_seed(0)
config = DetrConfig(
    use_timm_backbone=False,
    use_pretrained_backbone=False,
    backbone=None,
    backbone_config=ResNetConfig(out_features=["stage4"]),
    num_labels=80,
)
model = DetrForObjectDetection(config).cuda()
backbone = [p for n, p in model.named_parameters() if "backbone" in n]
others = [p for n, p in model.named_parameters() if "backbone" not in n]
optimizer = torch.optim.AdamW([{"params": backbone, "lr": 1e-5}, {"params": others}], lr=1e-4, weight_decay=1e-4)
for step in range(4):
    pixels = torch.randn(4, 3, 640, 640 + 32 * step, device="cuda")
    mask = torch.ones(4, 640, 640 + 32 * step, dtype=torch.long, device="cuda")
    mask[0, 500:] = 0
    targets = [
        {
            "class_labels": torch.randint(0, 80, (5 + i,), device="cuda"),
            "boxes": torch.cat([torch.rand(5 + i, 2) * 0.4 + 0.3, torch.rand(5 + i, 2) * 0.2 + 0.1], 1).cuda(),
        }
        for i in range(4)
    ]
    loss = model(pixel_values=pixels, pixel_mask=mask, labels=targets).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
print(loss.item())
