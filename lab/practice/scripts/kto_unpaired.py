"""KTO on unpaired answers: a KL baseline of mismatched pairs, the reference is the model with its adapter off."""

import torch
from torch import nn
from transformers import MistralConfig, MistralForCausalLM

torch.manual_seed(0)
config = MistralConfig(
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=8,
    vocab_size=32000,
)
model = MistralForCausalLM(config).to("cuda", torch.bfloat16).requires_grad_(False)


class Adapter(nn.Module):
    on = True

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, 16, bias=False, device="cuda", dtype=torch.float32)
        self.up = nn.Linear(16, base.out_features, bias=False, device="cuda", dtype=torch.float32)

    def forward(self, x):
        y = self.base(x)
        return y + self.up(self.down(x.float())).to(y.dtype) * 2 if Adapter.on else y


for layer in model.model.layers:
    for owner, name in ((layer.self_attn, "q_proj"), (layer.self_attn, "v_proj"), (layer.mlp, "down_proj")):
        setattr(owner, name, Adapter(getattr(owner, name)))
optimizer = torch.optim.RMSprop([p for p in model.parameters() if p.requires_grad], lr=1e-5, centered=True)


def log_probability(ids):
    logits = model(ids, use_cache=False).logits[:, :-1].float()
    return -nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").sum(-1)


for step in range(4):
    ids = torch.randint(0, 32000, (6, 384 + 64 * step), device="cuda")
    wanted = torch.arange(6, device="cuda") % 2 == 0
    Adapter.on = False
    with torch.no_grad():
        reference, mismatched = log_probability(ids), log_probability(ids.roll(1, 0))
    Adapter.on = True
    with torch.no_grad():
        baseline = (log_probability(ids.roll(1, 0)) - mismatched).mean().clamp(min=0)
    ratio = log_probability(ids) - reference
    loss = torch.where(
        wanted, 1 - torch.sigmoid(0.1 * (ratio - baseline)), 1 - torch.sigmoid(0.1 * (baseline - ratio))
    ).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
print(loss.item())
