"""Names of axolotl's config, as data (axolotl/utils/schemas of version 0.5 on)."""

from __future__ import annotations

OPTIMIZERS = frozenset((
    "optimi_adamw", "ao_adamw_4bit", "ao_adamw_8bit", "ao_adamw_fp8", "adopt_adamw", "came_pytorch", "muon", "dion",
    "sinkgd", "flash_adamw", "flash_adam", "flash_sgd", "flash_sgdw", "flash_lion", "q_galore_adamw8bit",
))  # fmt: skip
"""Its own, none of which a job knows."""

RL = ("dpo", "gdpo", "grpo", "ipo", "orpo", "kto", "simpo", "ebft", "kto_pair")

LORA_NOT_MODELLED = {
    "lora_rank_pattern": "ranks by module are not modelled; leave it out",
    "peft_layers_to_transform": "adapters in some layers alone are not modelled; say a pattern in lora_target_modules",
    "peft_layer_replication": "layers that are there twice are not modelled; leave it out",
    "peft_trainable_token_indices": "single rows of the embeddings that learn are not modelled; leave it out",
    "peft": "loftq is not modelled; leave it out",
}

NOT_MODELLED = {
    "qat": ("precision", "training for quantized weights is not modelled; leave it out"),
    "use_onebitllms": ("components", "1-bit linear layers are not modelled; leave it out"),
    "lisa_n_layers": ("components", "LISA's changing layers are not modelled; --set components.model.train_only=[...]"),
    "diffusion": ("step", "the training of a diffusion language model is not modelled"),
    "kd_trainer": ("step", "distillation is not modelled here; a vramcast.yaml can say it"),
    "s2_attention": ("components", "shifted sparse attention is not modelled; leave it out"),
    "tiled_mlp": ("components", "an MLP in tiles is not modelled; leave it out"),
    "gpu_memory_limit": ("components", "weights spread over several places are not modelled; leave it out"),
    "max_memory": ("components", "weights spread over several places are not modelled; leave it out"),
    "use_mora": ("components", "MoRA is not modelled; leave it out"),
    "fp32_norms": ("components", "norms in fp32 under FSDP are not modelled; leave it out"),
}
"""Key → the part of the job it is about, and what is said of it."""

NOTES = {
    "liger_rms_norm": "Liger's norm keeps less than is predicted",
    "liger_rms_norm_gated": "Liger's norm keeps less than is predicted",
    "liger_layer_norm": "Liger's norm keeps less than is predicted",
    "liger_glu_activation": "Liger's gated activation keeps less than is predicted",
    "liger_swiglu": "Liger's gated activation keeps less than is predicted",
    "liger_rope": "Liger's rotary embedding keeps less than is predicted",
    "liger_cross_entropy": "Liger's cross-entropy keeps less than is predicted",
    "flash_attn_cross_entropy": "the fused cross-entropy keeps less than is predicted",
    "flash_attn_rms_norm": "the fused norm keeps less than is predicted",
    "flash_attn_fuse_mlp": "the fused MLP keeps less than is predicted",
    "fused_attn_kernel": "fused kernels keep less than is predicted",
    "use_kernels": "kernels of the Hub keep about what is predicted, or less",
    "use_scattermoe": "its kernel for experts is predicted as transformers' own",
    "use_sonicmoe": "its kernel for experts is predicted as transformers' own",
    "experts_implementation": "experts are predicted as transformers runs them by default",
    "neftune_noise_alpha": "NEFTune's noise takes one more tensor of the embeddings' size",
    "noisy_embedding_alpha": "NEFTune's noise takes one more tensor of the embeddings' size",
    "auto_find_batch_size": "it halves the batch until it fits; the batch given is predicted",
    "relora": "merging adapters now and then is not modelled",
    "resize_token_embeddings_to_32x": "the vocabulary may grow to a multiple of 32",
    "llama4_linearized_experts": "experts are predicted as transformers has them",
    "embeddings_skip_upcast": "embeddings are predicted in the dtype of the other weights",
    "torch_empty_cache_steps": "emptying the cache every few steps is not modelled",
    "eaft_alpha": "a loss that weighs tokens takes a little more than the usual one",
}
"""Key → what the prediction leaves out."""

PLUGINS = frozenset((
    "CutCrossEntropyPlugin", "LigerPlugin", "GrokfastPlugin", "LMEvalPlugin", "SwanLabPlugin", "KernelsPlugin",
    "OtelMetricsPlugin", "MoreOptimizersPlugin", "DenseMixerPlugin", "ExpertParallelPlugin", "NemoGymPlugin",
))  # fmt: skip
"""Those whose keys say what they do."""
PLUGINS_NOT_MODELLED = {
    "KDPlugin": "(distillation) is not modelled here; a vramcast.yaml can say it",
    "SpectrumPlugin": "chooses layers by their weights, which are not read: --set components.model.train_only=[...]",
    "DiffusionPlugin": "(a diffusion language model) is not modelled",
    "LLMCompressorPlugin": "(sparse weights) is not modelled",
}

WITHOUT_EFFECT = frozenset((
    "learning_rate", "output_dir", "datasets", "lr_scheduler", "logging_steps", "warmup_ratio", "saves_per_epoch",
    "weight_decay", "dataset_prepared_path", "tokenizer_type", "chat_template", "special_tokens", "eval_sample_packing",
    "strict", "remove_unused_columns", "eot_tokens", "processor_type", "skip_prepare_dataset", "max_steps",
    "fsdp_version", "warmup_steps", "loss_watchdog_threshold", "loss_watchdog_patience", "save_steps", "seed",
    "wandb_project", "tokenizer_use_mistral_common", "adam_beta2", "train_on_inputs", "group_by_length",
    "save_strategy", "save_total_limit", "adam_epsilon", "tokens", "shuffle_merged_datasets", "save_only_model",
    "num_epochs", "tokenizer_use_fast", "hub_model_id", "tokenizer_config", "streaming", "save_safetensors",
    "wandb_entity", "wandb_watch", "wandb_name", "wandb_log_model", "lora_model_dir", "resume_from_checkpoint",
    "early_stopping_patience", "local_rank", "debug", "hf_use_auth_token", "adam_beta1", "lora_fan_in_fan_out",
    "peft_use_rslora", "cls_model_config", "revision_of_model", "lora_on_cpu", "lora_alpha_pattern", "rope_scaling",
    "loraplus_lr_ratio", "loraplus_lr_embedding", "peft_init_lora_weights", "merge_lora", "dataset_processes",
    "dataset_num_proc", "dataloader_num_workers", "dataloader_pin_memory", "dataloader_prefetch_factor", "use_wandb",
    "embedding_lr", "embedding_lr_scale", "eval_table_size", "eval_max_new_tokens", "hub_strategy", "profiler_steps",
    "sample_packing_group_size", "sample_packing_bin_size", "sample_packing_eff_est", "multipack_real_batches",
    "sample_packing_sequentially", "include_tokens_per_second", "gc_steps", "default_system_message", "reinit_weights",
    "device_map", "low_cpu_mem_usage", "torch_compile_mode", "torch_compile_backend",
))  # fmt: skip
