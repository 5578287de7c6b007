"""Two blocks of a network as graphed callables, the rest eager, with a loss that depends on the data."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 8, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)


torch.manual_seed(0)
embedding = nn.Linear(128, 512).cuda()
first, second, middle = Block(512).cuda(), Block(512).cuda(), Block(512).cuda()
head = nn.Linear(512, 10).cuda()
everything = nn.ModuleList([embedding, first, middle, second, head])
sample = torch.randn(32, 196, 512, device="cuda", requires_grad=True)
first, second = torch.cuda.make_graphed_callables(
    (first, second), ((sample,), (sample.detach().clone().requires_grad_(),))
)
optimizer = torch.optim.SGD(everything.parameters(), lr=0.01, momentum=0.9)
for step in range(6):
    x = torch.randn(32, 196, 128, device="cuda")
    y = second(middle(first(embedding(x))))
    logits = head(y.mean(1))
    loss = nn.functional.cross_entropy(logits, torch.randint(0, 10, (32,), device="cuda"))
    if loss.item() > 0:
        loss = loss + 0.01 * logits.square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
print(loss.item())
