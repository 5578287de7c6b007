"""DoRA on a ViT (peft), merged after training for evaluation, then taken apart again."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import ViTConfig, ViTForImageClassification

torch.manual_seed(0)
config = ViTConfig(
    hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072, num_labels=200
)
model = ViTForImageClassification(config)
model = get_peft_model(
    model,
    LoraConfig(
        r=8, lora_alpha=16, use_dora=True, lora_dropout=0.1, target_modules=r".*(attention|mlp).*(query|value|q_proj|v_proj|fc1|dense|fc2)",
        modules_to_save=["classifier"],
    ),
).to("cuda")  # fmt: skip
optimizer = torch.optim.NAdam([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.01)
for epoch in range(2):
    model.train()
    for step in range(3):
        images = torch.randn(32, 3, 224, 224, device="cuda")
        labels = torch.randint(0, 200, (32,), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(pixel_values=images, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    model.merge_adapter()
    with torch.inference_mode():
        right = 0
        for step in range(2):
            images = torch.randn(64, 3, 224, 224, device="cuda")
            right += (model(pixel_values=images).logits.argmax(-1) == 3).sum()
    model.unmerge_adapter()
print(loss.item(), right.item())
