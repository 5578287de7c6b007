"""OPT in fp4 (bitsandbytes), peft with rsLoRA on every linear layer, an embedding trained whole, gradients accumulated."""

import bitsandbytes as bnb
import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch import nn
from transformers import OPTConfig, OPTForCausalLM

torch.manual_seed(0)
config = OPTConfig(
    hidden_size=2048, ffn_dim=8192, num_hidden_layers=6, num_attention_heads=32, vocab_size=50272,
    word_embed_proj_dim=2048, use_cache=False,
)  # fmt: skip
model = OPTForCausalLM(config).half()
for name, module in list(model.named_modules()):
    if isinstance(module, nn.Linear) and "lm_head" not in name:
        parent = model.get_submodule(name.rpartition(".")[0])
        small = bnb.nn.LinearFP4(
            module.in_features, module.out_features, bias=True, compute_dtype=torch.float16, compress_statistics=False
        )
        small.load_state_dict(module.state_dict())
        setattr(parent, name.rpartition(".")[2], small)
model = model.cuda()
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
model.enable_input_require_grads()
lora = LoraConfig(
    task_type=TaskType.CAUSAL_LM, r=64, lora_alpha=16, use_rslora=True, lora_dropout=0.0, bias="none",
    target_modules=["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"],
)  # fmt: skip
model = get_peft_model(model, lora)
model.print_trainable_parameters()
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-4, foreach=False)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
for step in range(8):
    ids = torch.randint(4, 50000, (2, 512), device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(input_ids=ids, labels=ids).loss / 2
    scaler.scale(loss).backward()
    if step % 2:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_([p for p in model.parameters() if p.requires_grad], 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
print(loss.item())
