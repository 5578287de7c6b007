"""DoRA written as a parametrization of the frozen weights of a GPT-NeoX."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM


class DoRA(nn.Module):
    def __init__(self, weight, rank=16, alpha=32):
        super().__init__()
        rows, columns = weight.shape
        self.a = nn.Parameter(torch.randn(rank, columns, device=weight.device) / columns**0.5)
        self.b = nn.Parameter(torch.zeros(rows, rank, device=weight.device))
        self.magnitude = nn.Parameter(weight.float().norm(dim=1, keepdim=True))
        self.scale = alpha / rank

    def forward(self, weight):
        changed = weight + self.scale * (self.b @ self.a).to(weight.dtype)
        return (self.magnitude * F.normalize(changed.float(), dim=1)).to(weight.dtype)


torch.manual_seed(0)
config = GPTNeoXConfig(
    hidden_size=1024, intermediate_size=4096, num_hidden_layers=8, num_attention_heads=16, vocab_size=50304
)
model = GPTNeoXForCausalLM(config).to("cuda", torch.bfloat16)
model.requires_grad_(False)
for layer in model.gpt_neox.layers:
    for linear in (layer.attention.query_key_value, layer.mlp.dense_h_to_4h, layer.mlp.dense_4h_to_h):
        parametrize.register_parametrization(linear, "weight", DoRA(linear.weight))
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.Adam(trained, lr=1e-4, amsgrad=True)
for step in range(4):
    ids = torch.randint(0, 50304, (4, 512 + 128 * (step % 2)), device="cuda")
    with parametrize.cached():
        loss = model(ids, labels=ids).loss
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
