"""nn.TransformerEncoder trained on small batches and evaluated on large ones, where PyTorch takes its fused path."""

import torch
from torch import nn

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True)
model = nn.TransformerEncoder(layer, 6).cuda()
head = nn.Linear(768, 10).cuda()
optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-4)
for step in range(4):
    model.train()
    x, y = torch.randn(8, 256, 768, device="cuda"), torch.randint(0, 10, (8,), device="cuda")
    loss = nn.functional.cross_entropy(head(model(x).mean(1)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        head(model(torch.randn(128, 256, 768, device="cuda")).mean(1)).argmax(1)
print(loss.item())
