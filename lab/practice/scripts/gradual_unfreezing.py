"""A ResNet whose stages are unfrozen one after the other; each joins the optimizer when it is."""

import torch
from torchvision.models import resnet50

torch.manual_seed(0)
model = resnet50(num_classes=100).cuda()
for p in model.parameters():
    p.requires_grad_(False)
model.fc.requires_grad_(True)
optimizer = torch.optim.AdamW(model.fc.parameters(), lr=1e-3)
stages = [model.layer4, model.layer3, model.layer2]
criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
for step in range(8):
    if step % 2 == 0 and step:
        stage = stages[step // 2 - 1]
        stage.requires_grad_(True)
        optimizer.add_param_group({"params": stage.parameters(), "lr": 1e-4})
    images = torch.randn(32, 3, 224, 224).cuda(non_blocking=True)
    labels = torch.randint(0, 100, (32,)).cuda(non_blocking=True)
    with torch.autocast("cuda", torch.bfloat16):
        loss = criterion(model(images), labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
print(loss.item())
