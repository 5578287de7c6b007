"""OLMoE of transformers with its balancing loss, and a z-loss on the router's logits."""

import torch
from transformers import OlmoeConfig, OlmoeForCausalLM

torch.manual_seed(0)
config = OlmoeConfig(
    hidden_size=512, intermediate_size=512, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=8,
    num_experts=16, num_experts_per_tok=4, vocab_size=32000, output_router_logits=True, router_aux_loss_coef=0.01,
)  # fmt: skip
model = OlmoeForCausalLM(config).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 4))
for step in range(4):
    for micro in range(2):
        ids = torch.randint(0, 32000, (4, 512), device="cuda")
        out = model(ids, labels=ids)
        z = torch.stack([layer.float().logsumexp(-1).square().mean() for layer in out.router_logits]).mean()
        ((out.loss + 0.001 * z) / 2).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
print(out.loss.item())
