"""DPO with LoRA: the reference is the same model with its adapter switched off."""

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=1536,
    intermediate_size=4096,
    num_hidden_layers=8,
    num_attention_heads=12,
    num_key_value_heads=4,
    vocab_size=32000,
    use_cache=False,
)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]))
model.train()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-6)


def sequence_log_probability(ids, mask, start):
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    logp = torch.gather(logits.float().log_softmax(-1), 2, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    keep = mask[:, 1:].bool().clone()
    keep[:, : start - 1] = False
    return (logp * keep).sum(-1)


for step in range(4):
    ids = torch.randint(0, 32000, (8, 768), device="cuda")
    ids[4:, :256] = ids[:4, :256]
    mask = torch.ones_like(ids)
    mask[1, 600:] = 0
    with torch.no_grad(), model.disable_adapter():
        reference = sequence_log_probability(ids, mask, 256)
    policy = sequence_log_probability(ids, mask, 256)
    margin = (policy - reference)[:4] - (policy - reference)[4:]
    loss = -F.logsigmoid(0.1 * margin).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
