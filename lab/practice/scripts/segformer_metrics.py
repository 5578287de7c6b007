"""SegFormer with a confusion matrix by bincount, sliding-window evaluation, Dice and focal losses, poly schedule."""

import torch
from torch.nn import functional as F
from transformers import SegformerConfig, SegformerForSemanticSegmentation

torch.manual_seed(0)
net = SegformerForSemanticSegmentation(
    SegformerConfig(num_labels=19, depths=[2, 2, 2, 2], hidden_sizes=[32, 64, 160, 256], decoder_hidden_size=256)
).cuda()
optimizer = torch.optim.AdamW(
    [{"params": net.segformer.parameters()}, {"params": net.decode_head.parameters(), "lr": 6e-4}], lr=6e-5
)
schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, 100, 1.0)
for step in range(4):
    net.train()
    x, y = torch.randn(4, 3, 512, 512, device="cuda"), torch.randint(0, 19, (4, 512, 512), device="cuda")
    logits = F.interpolate(net(x).logits, size=(512, 512), mode="bilinear", align_corners=False)
    probability = logits.softmax(1)
    one_hot = F.one_hot(y, 19).permute(0, 3, 1, 2).float()
    dice = 1 - (2 * (probability * one_hot).sum((0, 2, 3)) / (probability + one_hot).sum((0, 2, 3)).clamp(min=1)).mean()
    entropy = F.cross_entropy(logits, y, reduction="none")
    focal = ((1 - (-entropy).exp()) ** 2 * entropy).mean()
    (dice + focal).backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
net.eval()
matrix = torch.zeros(19, 19, device="cuda", dtype=torch.long)
with torch.inference_mode():
    image, truth = torch.randn(1, 3, 1024, 1536, device="cuda"), torch.randint(0, 19, (1024, 1536), device="cuda")
    votes = torch.zeros(1, 19, 1024, 1536, device="cuda")
    for top in range(0, 769, 256):
        for left in range(0, 1281, 256):
            window = image[:, :, top : top + 256, left : left + 256]
            votes[:, :, top : top + 256, left : left + 256] += F.interpolate(
                net(window).logits, size=window.shape[-2:], mode="bilinear"
            )
    guess = votes.argmax(1)[0]
    matrix += torch.bincount(truth.flatten() * 19 + guess.flatten(), minlength=361).view(19, 19)
print((matrix.diag() / matrix.sum(1)).mean().item())
