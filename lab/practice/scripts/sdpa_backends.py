"""Scaled dot-product attention with each backend and mask, and grouped queries."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

torch.manual_seed(0)
qkv = nn.Linear(1024, 3 * 1024).cuda()
grouped = nn.Linear(1024, 1024 + 2 * 256).cuda()
optimizer = torch.optim.AdamW([*qkv.parameters(), *grouped.parameters()], lr=1e-4)
bias = nn.Parameter(torch.zeros(1, 16, 1024, 1024, device="cuda"))
for step in range(4):
    x = torch.randn(4, 1024, 1024, device="cuda")
    loss = 0.0
    with torch.autocast("cuda", dtype=torch.bfloat16):
        q, k, v = qkv(x).view(4, 1024, 3, 16, 64).permute(2, 0, 3, 1, 4)
        for backend in (
            SDPBackend.FLASH_ATTENTION,
            SDPBackend.EFFICIENT_ATTENTION,
            SDPBackend.CUDNN_ATTENTION,
            SDPBackend.MATH,
        ):
            with sdpa_kernel(backend):
                loss = loss + F.scaled_dot_product_attention(q, k, v, is_causal=True).float().square().mean()
        keep = torch.rand(4, 1, 1024, 1024, device="cuda") > 0.1
        loss = loss + F.scaled_dot_product_attention(q, k, v, attn_mask=keep).float().mean()
        loss = loss + F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype), dropout_p=0.1).float().mean()
        loss = (
            loss
            + F.scaled_dot_product_attention(q[:, :, -256:], k, v, attn_mask=causal_lower_right(256, 1024))
            .float()
            .mean()
        )
        y = grouped(x)
        gq = y[..., :1024].view(4, 1024, 16, 64).transpose(1, 2)
        gk = y[..., 1024:1280].view(4, 1024, 4, 64).transpose(1, 2)
        gv = y[..., 1280:].view(4, 1024, 4, 64).transpose(1, 2)
        loss = (
            loss + F.scaled_dot_product_attention(gq, gk, gv, is_causal=True, enable_gqa=True).float().square().mean()
        )
    full = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True)
    loss = loss + full.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
