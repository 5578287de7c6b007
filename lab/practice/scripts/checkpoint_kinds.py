"""Every way to checkpoint in one network: in a sequence, nested, reentrant, without early stop, by policy."""

import functools

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

SAVED = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
}


def policy(context, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op in SAVED else CheckpointPolicy.PREFER_RECOMPUTE


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(width, 8, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)

    def forward(self, x):
        return self.layer(x)


def nested(layers, x):
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=False)
    return x


torch.manual_seed(0)
width = 512
first = nn.Sequential(*(Layer(width) for _ in range(4))).cuda()
second = nn.ModuleList(Layer(width) for _ in range(2)).cuda()
third, fourth, fifth = Layer(width).cuda(), Layer(width).cuda(), Layer(width).cuda()
head = nn.Linear(width, 1000).cuda()
modules = nn.ModuleList([first, second, third, fourth, fifth, head])
optimizer = torch.optim.RAdam(modules.parameters(), lr=1e-4)
by_policy = functools.partial(create_selective_checkpoint_contexts, policy)
for step in range(4):
    x = torch.randn(16, 512, width, device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        y = checkpoint_sequential(first, 2, x, use_reentrant=False)
        y = checkpoint(nested, second, y, use_reentrant=False)
        y = checkpoint(third, y, use_reentrant=True)
        with set_checkpoint_early_stop(False):
            y = checkpoint(fourth, y, use_reentrant=False, determinism_check="none")
        y = checkpoint(fifth, y, use_reentrant=False, context_fn=by_policy, preserve_rng_state=False)
        loss = head(y).float().logsumexp(-1).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
