"""A transformer block over sequences of different lengths, kept as one jagged tensor without padding."""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS = 1024, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = (
            part.unflatten(-1, [HEADS, WIDTH // HEADS]).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        return x + self.out(attended.transpose(1, 2).flatten(-2))


model = nn.Sequential(*(Block() for _ in range(6))).cuda().bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
generator = torch.Generator().manual_seed(0)
for _ in range(4):
    lengths = torch.randint(64, 1024, (16,), generator=generator).tolist()
    parts = [torch.randn(length, WIDTH, device="cuda", dtype=torch.bfloat16) for length in lengths]
    batch = torch.nested.nested_tensor(parts, layout=torch.jagged)
    loss = model(batch).values().float().pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
