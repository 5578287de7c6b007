"""Plain SGD in post-accumulate hooks with a norm that a first backward pass takes (LOMO), in pure bf16."""

import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

torch.manual_seed(0)
config = GPTNeoXConfig(
    hidden_size=1024, num_hidden_layers=10, num_attention_heads=16, intermediate_size=4096, vocab_size=50304
)
model = GPTNeoXForCausalLM(config).to("cuda", torch.bfloat16)
model.gradient_checkpointing_enable()
norms, scale = [], 1.0


def take_norm(p):
    norms.append(p.grad.float().norm())
    p.grad = None


def update(p):
    with torch.no_grad():
        p.add_(p.grad, alpha=-1e-4 * float(scale))
    p.grad = None


for step in range(3):
    ids = torch.randint(0, 50304, (4, 1024), device="cuda")
    for hook in (take_norm, update):
        handles = [p.register_post_accumulate_grad_hook(hook) for p in model.parameters()]
        loss = model(ids, labels=ids).loss
        loss.backward()
        for handle in handles:
            handle.remove()
        if hook is take_norm:
            scale = min(1.0, 1.0 / (torch.stack(norms).norm().item() + 1e-6))
            norms.clear()
print(loss.item())
