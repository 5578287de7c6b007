accelerate launch --num_cpu_threads_per_process 1 train_network.py --pretrained_model_name_or_path model.safetensors \
  --train_data_dir images --resolution 512,768 --network_module networks.lora --network_dim 16 --network_alpha 8 \
  --optimizer_type AdamW8bit --mixed_precision fp16 --train_batch_size 4 --clip_skip 2 --max_token_length 225 --sdpa
