"""DoRA with peft on a Mistral in bf16."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import MistralConfig, MistralForCausalLM

torch.manual_seed(0)
config = MistralConfig(
    hidden_size=2048,
    intermediate_size=7168,
    num_hidden_layers=6,
    num_attention_heads=16,
    num_key_value_heads=4,
    vocab_size=32000,
    use_cache=False,
)
model = MistralForCausalLM(config).to("cuda", torch.bfloat16)
model = get_peft_model(
    model,
    LoraConfig(r=16, lora_alpha=32, use_dora=True, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"]),
)
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
for step in range(5):
    ids = torch.randint(0, config.vocab_size, (4, 1024), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
print(loss.item())
