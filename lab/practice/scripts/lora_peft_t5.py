"""LoRA with peft on a T5 under fp16 autocast with a GradScaler, then merged and used."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import T5Config, T5ForConditionalGeneration

torch.manual_seed(0)
config = T5Config(d_model=768, d_ff=3072, num_layers=8, num_heads=12, vocab_size=32128, decoder_start_token_id=0)
model = T5ForConditionalGeneration(config).cuda()
model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, lora_dropout=0.1, target_modules=["q", "v"]))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
for step in range(4):
    source = torch.randint(2, 32000, (8, 512), device="cuda")
    target = torch.randint(2, 32000, (8, 128), device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(input_ids=source, labels=target).loss
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
merged = model.merge_and_unload().eval()
with torch.inference_mode():
    merged(input_ids=source, labels=target)
print(loss.item())
