"""Each parameter has an Adafactor of its own that steps as soon as its gradient is ready."""

import torch
from transformers import MptConfig, MptForCausalLM

torch.manual_seed(0)
config = MptConfig(d_model=1024, n_heads=16, n_layers=10, vocab_size=32000, max_seq_len=1024)
model = MptForCausalLM(config).to(dtype=torch.bfloat16, device="cuda")
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
optimizers = {p: torch.optim.Adafactor([p], lr=1e-3) for p in model.parameters()}


def step_now(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


handles = [p.register_post_accumulate_grad_hook(step_now) for p in model.parameters()]
for step in range(4):
    ids = torch.randint(0, 32000, (4, 768), device="cuda")
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
for handle in handles:
    handle.remove()
print(loss.item())
