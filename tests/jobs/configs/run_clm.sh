#!/bin/bash
# Starts transformers' run_clm.py on one machine.
export WANDB_PROJECT=tiny
MODEL=llama-tiny
NUM_GPUS=4
BATCH=${BATCH:-4}

mkdir -p out
torchrun --nproc_per_node=$NUM_GPUS --master_port 29501 examples/pytorch/language-modeling/run_clm.py \
    --model_name_or_path $MODEL \
    --dataset_name wikitext --dataset_config_name wikitext-2-raw-v1 \
    --per_device_train_batch_size ${BATCH} \
    --gradient_accumulation_steps 8 \
    --block_size 128 \
    --bf16 \
    --gradient_checkpointing True \
    --optim adamw_bnb_8bit \
    --learning_rate 2e-5 \
    --do_train --output_dir out/clm 2>&1 | tee out/log.txt
