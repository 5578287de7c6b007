"""Names of Hugging Face's TrainingArguments and its optimizers, as data (transformers 4.40 to 5)."""

from __future__ import annotations

from typing import Any

from vramcast.jobs.optimizer_names import optimizer_named
from vramcast.jobs.schema import Optimizer

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw_torch": {"name": "adamw"},
    "adamw_hf": {"name": "adamw"},
    "adamw_torch_fused": {"name": "adamw", "arguments": {"fused": True}},
    "adafactor": {
        "name": "transformers-adafactor",
        "arguments": {"scale_parameter": False, "relative_step": False, "warmup_init": False, "lr": 5e-5},
    },
    "sgd": {"name": "sgd"},
    "adagrad": {"name": "adagrad"},
    "rmsprop": {"name": "rmsprop"},
    "adamw_bnb_8bit": {"name": "adamw8bit"},
    "adamw_8bit": {"name": "adamw8bit"},
    "ademamix_8bit": {"name": "ademamix8bit"},
    "lion_8bit": {"name": "lion8bit"},
    "lion_32bit": {"name": "lion"},
    "rmsprop_bnb_8bit": {"name": "rmsprop8bit"},
    "paged_adamw_32bit": {"name": "paged-adamw"},
    "paged_adamw_8bit": {"name": "paged-adamw8bit"},
    "paged_lion_8bit": {"name": "paged-lion8bit"},
    "adamw_torch_8bit": {"name": "torchao-adamw8bit"},
    "adamw_torch_4bit": {"name": "torchao-adamw4bit"},
}
"""`optim` → the job's optimizer."""

OTHER_OPTIMIZERS = frozenset((
    "adamw_torch_xla", "adamw_torch_npu_fused", "adamw_apex_fused", "adamw_anyprecision", "ademamix",
    "paged_ademamix_32bit", "paged_ademamix_8bit", "paged_lion_32bit", "rmsprop_bnb",
    "rmsprop_bnb_32bit", "galore_adamw", "galore_adamw_8bit", "galore_adafactor", "galore_adamw_layerwise",
    "galore_adamw_8bit_layerwise", "galore_adafactor_layerwise", "lomo", "adalomo", "grokadamw", "schedule_free_radam",
    "schedule_free_adamw", "schedule_free_sgd", "apollo_adamw", "apollo_adamw_layerwise", "stable_adamw",
))  # fmt: skip
"""Known to transformers, but not to a job."""

DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
"""`dtype` → the job's."""

READ = frozenset((
    "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "bf16", "fp16", "tf32",
    "gradient_checkpointing", "gradient_checkpointing_kwargs", "optim", "max_grad_norm", "eval_strategy",
    "evaluation_strategy", "torch_compile", "deepspeed", "fsdp", "fsdp_config", "ddp_find_unused_parameters",
    "ddp_bucket_cap_mb", "ddp_static_graph", "use_liger_kernel", "neftune_noise_alpha", "auto_find_batch_size",
    "torch_empty_cache_steps", "label_smoothing_factor", "max_train_samples", "use_cache", "adafactor",
))  # fmt: skip
"""Arguments that a job follows from."""

BATCH_NAMES = ("per_device_train_batch_size", "per_gpu_train_batch_size")
DTYPE_NAMES = ("torch_dtype", "dtype")
EVALUATION_NAMES = ("eval_strategy", "evaluation_strategy")

DEFAULT_OPTIMIZER = "adamw_torch_fused"
DEFAULT_BATCH = 8
DEFAULT_LARGEST_NORM = 1.0

SEQUENCE_NAMES = ("max_seq_length", "max_length", "block_size", "model_max_length", "max_source_length", "cutoff_len")
"""What scripts call the length of a sequence: transformers' examples, TRL, FastChat, LLaMA-Factory."""

WITHOUT_EFFECT = frozenset((
    "output_dir", "overwrite_output_dir", "do_train", "do_eval", "do_predict", "learning_rate", "weight_decay",
    "adam_beta1", "adam_beta2", "adam_epsilon", "max_steps", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_ratio",
    "warmup_steps", "optim_args", "log_level", "log_level_replica", "log_on_each_node", "logging_dir",
    "logging_strategy", "logging_first_step", "logging_steps", "logging_nan_inf_filter", "save_strategy", "save_steps",
    "save_total_limit", "save_safetensors", "save_on_each_node", "save_only_model",
    "restore_callback_states_from_checkpoint", "use_cpu", "no_cuda", "use_mps_device", "seed", "data_seed",
    "jit_mode_eval", "use_ipex", "local_rank", "ddp_backend", "ddp_timeout", "ddp_broadcast_buffers",
    "dataloader_drop_last", "dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_persistent_workers",
    "dataloader_pin_memory", "dataloader_in_order", "eval_steps", "eval_delay", "eval_accumulation_steps",
    "eval_on_start", "run_name",
    "disable_tqdm", "remove_unused_columns", "label_names", "load_best_model_at_end", "metric_for_best_model",
    "greater_is_better", "ignore_data_skip", "accelerator_config", "debug", "group_by_length", "length_column_name",
    "train_sampling_strategy", "report_to", "project", "trackio_space_id", "push_to_hub", "resume_from_checkpoint",
    "hub_model_id", "hub_strategy", "hub_token", "hub_private_repo", "hub_always_push", "hub_revision",
    "include_inputs_for_metrics", "include_for_metrics", "eval_do_concat_batches", "mp_parameters", "full_determinism",
    "torchdynamo", "ray_scope", "torch_compile_backend", "torch_compile_mode", "include_tokens_per_second",
    "include_num_input_tokens_seen", "batch_eval_metrics", "eval_use_gather_object",
    "average_tokens_across_devices", "skip_memory_metrics", "half_precision_backend", "fp16_backend", "fp16_opt_level",
    "prediction_loss_only", "fp16_full_eval", "bf16_full_eval", "sortish_sampler", "predict_with_generate",
    "generation_max_length", "generation_num_beams", "generation_config", "past_index", "liger_kernel_config",
    "num_train_epochs", "dataset_name", "dataset_config_name", "dataset_config", "dataset_text_field",
    "dataset_num_proc", "train_file", "validation_file", "tokenizer_name", "config_name", "cache_dir", "model_revision",
    "use_fast_tokenizer", "use_auth_token", "token", "preprocessing_num_workers", "overwrite_cache", "task_name",
    "max_eval_samples", "max_predict_samples", "max_target_length", "val_max_target_length", "pad_to_max_length",
    "source_prefix", "packing", "eos_token", "lora_task_type", "streaming", "low_cpu_mem_usage",
    "validation_split_percentage", "keep_linebreaks",
))  # fmt: skip
"""Arguments that change no byte of the card's memory, or none that is predicted."""

SCRIPT_TASKS = {
    "run_clm": "causal-lm",
    "run_fim": "causal-lm",
    "sft": "causal-lm",
    "run_mlm": "masked-lm",
    "run_glue": "sequence-classification",
    "run_classification": "sequence-classification",
    "run_xnli": "sequence-classification",
    "run_ner": "token-classification",
    "run_qa": "question-answering",
    "run_summarization": "seq2seq-lm",
    "run_translation": "seq2seq-lm",
    "run_image_classification": "image-classification",
    "run_semantic_segmentation": "semantic-segmentation",
    "run_speech_recognition_ctc": "ctc",
    "run_speech_recognition_seq2seq": "speech-seq2seq",
    "run_audio_classification": "audio-classification",
}
"""transformers' and TRL's example scripts → the head that they put on the model."""

OTHER_TRAININGS = frozenset((
    "ppo", "rloo", "rloo_vlm", "online_dpo", "online_dpo_vlm", "dpo_online", "gkd", "xpo", "nash_md", "distillation",
    "gold", "gold_vlm", "minillm", "sdft", "sdpo", "ssd", "tpo", "bco", "prm", "gspo", "gspo_vlm", "grpo_vlm",
    "async_grpo", "dpo_vlm", "mpo_vlm", "sft_vlm", "sft_vlm_gemma3",
))  # fmt: skip
"""TRL's scripts with a second model, generated text, images or a loss of their own, which a job of these arguments
would leave out."""

SECOND_MODELS = frozenset((
    "teacher_model_name_or_path", "teacher_model_name", "teacher_model_path", "teacher_model", "teacher_name_or_path",
    "student_model_name", "reward_model_path", "reward_model_name_or_path", "ref_model_name_or_path", "ref_model_path",
))  # fmt: skip
"""Flags that name a model which lies on the card, too."""


def optimizer_name(wish: Optimizer) -> str | None:
    """What TrainingArguments call it."""
    return optimizer_named(OPTIMIZERS, wish)
