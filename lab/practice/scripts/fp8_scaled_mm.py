"""Linear layers in fp8 with torch._scaled_mm, dynamic scaling per tensor, in an autograd.Function."""

import torch
from torch import nn

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def cast(x, dtype):
    scale = torch.finfo(dtype).max / x.abs().max().float().clamp(min=1e-12)
    return (x.float() * scale).clamp(torch.finfo(dtype).min, torch.finfo(dtype).max).to(dtype), scale.reciprocal()


class FP8Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        x8, sx = cast(x, E4M3)
        w8, sw = cast(weight, E4M3)
        ctx.save_for_backward(x8, sx, w8, sw)
        return torch._scaled_mm(x8, w8.t(), scale_a=sx, scale_b=sw, out_dtype=torch.bfloat16, use_fast_accum=True)

    @staticmethod
    def backward(ctx, grad):
        x8, sx, w8, sw = ctx.saved_tensors
        g8, sg = cast(grad.contiguous(), E5M2)
        dx = torch._scaled_mm(g8, w8.t().contiguous().t(), scale_a=sg, scale_b=sw, out_dtype=torch.bfloat16)
        dw = torch._scaled_mm(
            g8.t().contiguous(), x8.t().contiguous().t(), scale_a=sg, scale_b=sx, out_dtype=torch.bfloat16
        )
        return dx, dw


class FP8Linear(nn.Linear):
    def forward(self, x):
        return FP8Matmul.apply(x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


torch.manual_seed(0)
layers = []
for _ in range(6):
    layers += [nn.LayerNorm(2048), FP8Linear(2048, 8192, bias=False), nn.GELU(), FP8Linear(8192, 2048, bias=False)]
model = nn.Sequential(*layers).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(5):
    x = torch.randn(8, 1024, 2048, device="cuda", dtype=torch.bfloat16)
    loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
