export MODEL_NAME="stable-diffusion-v1-5/stable-diffusion-v1-5"
accelerate launch --mixed_precision="fp16" train_text_to_image_lora.py \
  --pretrained_model_name_or_path=$MODEL_NAME --dataset_name=images --resolution=512 --random_flip \
  --train_batch_size=2 --gradient_accumulation_steps=4 --gradient_checkpointing --rank=8 --max_train_steps=100 \
  --learning_rate=1e-04 --max_grad_norm=1 --lr_scheduler="cosine" --seed=1337 --output_dir=out
