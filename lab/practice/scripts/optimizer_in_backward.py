"""The optimizer steps inside backward, a parameter at a time, so that gradients never live together."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=8,
    num_attention_heads=32,
    num_key_value_heads=4,
    vocab_size=32000,
    use_cache=False,
)
with torch.device("cuda"):
    model = LlamaForCausalLM(config).bfloat16()
model.gradient_checkpointing_enable()
model.train()
optimizers = {p: torch.optim.AdamW([p], lr=1e-4, fused=True) for p in model.parameters()}


def step_and_forget(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step_and_forget)

for step in range(5):
    ids = torch.randint(0, config.vocab_size, (4, 2048), device="cuda")
    loss = model(ids, labels=ids).loss
    loss.backward()
print(loss.item())
