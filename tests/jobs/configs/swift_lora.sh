# 22GB
CUDA_VISIBLE_DEVICES=0,1 \
NPROC_PER_NODE=2 \
swift sft \
    --model llama-tiny \
    --tuner_type lora \
    --dataset 'some/data#500' \
    --torch_dtype bfloat16 \
    --per_device_train_batch_size 2 \
    --lora_rank 8 \
    --lora_alpha 32 \
    --target_modules all-linear \
    --max_length 128 \
    --split_dataset_ratio 0.1 \
    --model_author swift \
    --model_name swift-robot
