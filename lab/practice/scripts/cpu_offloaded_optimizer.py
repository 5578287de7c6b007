"""The optimizer's state lives on the CPU: gradients are copied out, the step is made there, weights are copied back."""

import torch
from transformers import OPTConfig, OPTForCausalLM

torch.manual_seed(0)
config = OPTConfig(
    hidden_size=1024, ffn_dim=4096, num_hidden_layers=8, num_attention_heads=16, word_embed_proj_dim=1024
)
model = OPTForCausalLM(config).cuda().bfloat16()
masters = [p.detach().float().cpu().pin_memory().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.AdamW(masters, lr=1e-5)
for step in range(4):
    for micro in range(2):
        ids = torch.randint(0, 50000, (4, 512), device="cuda")
        loss = model(ids, labels=ids).loss / 2
        loss.backward()
    for p, master in zip(model.parameters(), masters):
        master.grad = p.grad.to("cpu", torch.float32)
        p.grad = None
    torch.nn.utils.clip_grad_norm_(masters, 1.0)
    optimizer.step()
    with torch.no_grad():
        for p, master in zip(model.parameters(), masters):
            p.copy_(master, non_blocking=True)
print(loss.item())
