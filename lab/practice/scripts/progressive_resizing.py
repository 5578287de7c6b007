"""Images that grow from epoch to epoch, an evaluation at full size after each, and a cache that is emptied in between."""

import torch
from torchvision.models import efficientnet_v2_s

torch.manual_seed(0)
model = efficientnet_v2_s(num_classes=50).to("cuda", memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-5)
scaler = torch.amp.GradScaler("cuda")
for size, batch in ((128, 64), (192, 32), (256, 24)):
    model.train()
    for _ in range(2):
        images = torch.randn(batch, 3, size, size, device="cuda").contiguous(memory_format=torch.channels_last)
        target = torch.randint(0, 50, (batch,), device="cuda")
        with torch.autocast("cuda", torch.float16):
            loss = torch.nn.functional.cross_entropy(model(images), target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
    torch.cuda.empty_cache()
    model.eval()
    with torch.inference_mode(), torch.autocast("cuda", torch.float16):
        right = 0
        for _ in range(2):
            images = torch.randn(96, 3, 288, 288, device="cuda").to(memory_format=torch.channels_last)
            right += (model(images).argmax(-1) == 0).sum().item()
print(loss.item(), right)
