"""LoRA written by hand on a GPT-2, the rest frozen in bf16."""

import math

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D


class LoRA(nn.Module):
    def __init__(self, base, rank=16, alpha=32, dropout=0.1):
        super().__init__()
        self.base = base
        fan_in, fan_out = base.weight.shape
        self.down = nn.Parameter(torch.empty(rank, fan_in))
        self.up = nn.Parameter(torch.zeros(fan_out, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))
        self.dropout = nn.Dropout(dropout)
        self.scale = alpha / rank

    def forward(self, x):
        low = self.dropout(x).float() @ self.down.t() @ self.up.t()
        return self.base(x) + (self.scale * low).to(x.dtype)


torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=12, n_embd=1024, n_head=16, use_cache=False)).bfloat16()
model.requires_grad_(False)
for block in model.transformer.h:
    for parent, name in ((block.attn, "c_attn"), (block.attn, "c_proj"), (block.mlp, "c_fc")):
        assert isinstance(getattr(parent, name), Conv1D)
        setattr(parent, name, LoRA(getattr(parent, name)))
model.cuda()
trainable = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.Adam(trainable, lr=1e-3)
for step in range(5):
    ids = torch.randint(0, 50257, (8, 768)).to("cuda", non_blocking=True)
    loss = model(ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
