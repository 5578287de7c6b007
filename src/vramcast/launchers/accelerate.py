"""`accelerate launch`, as accelerate/commands/launch.py and accelerate/utils/launch.py have it: options and a config
file become variables, and with more than one process torchrun starts them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vramcast.base.errors import CannotPredict, UsageError
from vramcast.launchers.launch import Launch
from vramcast.launchers.options import Options, OptionTable, names, whole
from vramcast.launchers.torchrun import CARDS, with_ranks

_FSDP = {
    "FSDP_VERSION": ("fsdp_version", "1"),
    "FSDP_SHARDING_STRATEGY": ("fsdp_sharding_strategy", "FULL_SHARD"),
    "FSDP_RESHARD_AFTER_FORWARD": ("fsdp_reshard_after_forward", "true"),
    "FSDP_OFFLOAD_PARAMS": ("fsdp_offload_params", "false"),
    "FSDP_MIN_NUM_PARAMS": ("fsdp_min_num_params", "100000000"),
    "FSDP_AUTO_WRAP_POLICY": ("fsdp_auto_wrap_policy", None),
    "FSDP_TRANSFORMER_CLS_TO_WRAP": ("fsdp_transformer_layer_cls_to_wrap", None),
    "FSDP_BACKWARD_PREFETCH": ("fsdp_backward_prefetch", None),
    "FSDP_STATE_DICT_TYPE": ("fsdp_state_dict_type", None),
    "FSDP_FORWARD_PREFETCH": ("fsdp_forward_prefetch", "false"),
    "FSDP_USE_ORIG_PARAMS": ("fsdp_use_orig_params", "true"),
    "FSDP_CPU_RAM_EFFICIENT_LOADING": ("fsdp_cpu_ram_efficient_loading", "true"),
    "FSDP_SYNC_MODULE_STATES": ("fsdp_sync_module_states", "true"),
    "FSDP_ACTIVATION_CHECKPOINTING": ("fsdp_activation_checkpointing", "false"),
    "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": ("fsdp_activation_checkpointing_offload", "false"),
    "FSDP_IGNORED_MODULES": ("fsdp_ignored_modules", None),
}
_FSDP_AS_SPELT = ("fsdp_sharding_strategy", "fsdp_auto_wrap_policy", "fsdp_transformer_layer_cls_to_wrap",
                  "fsdp_backward_prefetch", "fsdp_state_dict_type", "fsdp_ignored_modules")  # fmt: skip
"""The others are in small letters."""

_DEEPSPEED = {
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": "zero_stage",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "gradient_accumulation_steps",
    "ACCELERATE_GRADIENT_CLIPPING": "gradient_clipping",
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "offload_optimizer_device",
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "offload_param_device",
    "ACCELERATE_DEEPSPEED_ZERO3_INIT": "zero3_init_flag",
    "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "zero3_save_16bit_model",
    "ACCELERATE_DEEPSPEED_CONFIG_FILE": "deepspeed_config_file",
    "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES": "deepspeed_moe_layer_cls_names",
}
_DEEPSPEED_AS_SPELT = ("deepspeed_config_file", "deepspeed_moe_layer_cls_names")

_FP8 = {
    "fp8_margin": "0", "fp8_interval": "1", "fp8_format": "HYBRID", "fp8_amax_history_len": "1024",
    "fp8_amax_compute_algo": "most_recent", "fp8_opt_level": "O2", "fp8_enable_fsdp_float8_all_gather": "True",
    "fp8_pad_inner_dim": "True", "fp8_use_autocast_during_eval": "False", "fp8_backend": None,
}  # fmt: skip

_PARALLELISM = {
    "DP_REPLICATE_SIZE": "1", "DP_SHARD_SIZE": "1", "TP_SIZE": "1", "CP_SIZE": "1", "CP_BACKEND": "torch",
    "SP_SIZE": "1", "SP_BACKEND": "deepspeed",
}  # fmt: skip

ACCELERATE = OptionTable(
    "accelerate launch",
    names("""
        config_file mixed_precision num_processes num_machines num_cpu_threads_per_process dynamo_backend dynamo_mode
        gpu_ids machine_rank main_process_ip main_process_port tee log_dir role rdzv_backend rdzv_conf max_restarts
        monitor_interval vm env main_training_function aws_access_key_id aws_secret_access_key mpirun_hostfile
        mpirun_ccl offload_optimizer_nvme_path offload_param_nvme_path deepspeed_hostfile deepspeed_exclusion_filter
        deepspeed_inclusion_filter deepspeed_multinode_launcher fp8_override_linear_precision
        megatron_lm_tp_degree megatron_lm_use_custom_fsdp megatron_lm_no_load_optim megatron_lm_eod_mask_loss
        megatron_lm_overlap_cpu_optimizer_d2h_h2d megatron_lm_no_save_optim megatron_lm_optimizer_cpu_offload
        megatron_lm_use_precision_aware_optimizer megatron_lm_decoder_last_pipeline_num_layers megatron_lm_pp_degree
        megatron_lm_num_micro_batches megatron_lm_sequence_parallelism megatron_lm_recompute_activations
        megatron_lm_use_distributed_optimizer megatron_lm_gradient_clipping megatron_lm_recompute_granularity
        megatron_lm_recompute_method megatron_lm_recompute_num_layers megatron_lm_attention_backend
        megatron_lm_expert_model_parallel_size megatron_lm_context_parallel_size megatron_lm_attention_dropout
        megatron_lm_hidden_dropout megatron_lm_attention_softmax_in_fp32 megatron_lm_expert_tensor_parallel_size
        megatron_lm_calculate_per_token_loss megatron_lm_use_rotary_position_embeddings
        parallelism_config_cp_comm_strategy parallelism_config_sp_seq_length
        parallelism_config_sp_seq_length_is_variable parallelism_config_sp_attn_implementation
    """)
    | {name for name, _ in _FSDP.values()}
    | set(_DEEPSPEED.values())
    | set(_FP8) - {"fp8_use_autocast_during_eval"}
    | {f"parallelism_config_{name.lower()}" for name in _PARALLELISM},
    names("""
        quiet cpu multi_gpu tpu ipex use_mps_device use_xpu enable_cpu_affinity dynamo_use_fullgraph dynamo_use_dynamic
        dynamo_use_regional_compilation use_deepspeed use_fsdp use_parallelism_config use_megatron_lm same_network
        module no_python tpu_cluster no_tpu_cluster tpu_use_sudo downcast_bf16 fp8_use_autocast_during_eval debug
    """),
    {"m": "module", "q": "quiet", "t": "tee"},
)  # fmt: skip

_KINDS = {"DEEPSPEED": "use_deepspeed", "FSDP": "use_fsdp", "MULTI_GPU": "multi_gpu", "MEGATRON_LM": "use_megatron_lm"}
_MULTI = ("multi_gpu", "use_fsdp", "use_megatron_lm", "use_deepspeed")
_SECTIONS = ("fsdp_config", "fp8_config", "dynamo_config", "deepspeed_config", "parallelism_config",
             "megatron_lm_config", "mpirun_config")  # fmt: skip
_PREFIXED = {"fsdp_config": "fsdp", "fp8_config": "fp8", "dynamo_config": "dynamo_"}
"""Keys in these sections may leave out how their names begin."""
_PRECISIONS = ("no", "fp16", "bf16", "fp8")
_MOST_BYTES = 1 << 20


def launch(options: Options, target: Launch, environment: Mapping[str, str]) -> Launch:
    path = _config_path(options, environment)
    args, deepspeed_fields = _with_config(dict(options), path)
    if args.get("tpu") or args.get("use_megatron_lm"):
        what = "a TPU" if args.get("tpu") else "Megatron-LM"
        raise CannotPredict(f"accelerate launch: training with {what} is not modelled")
    if args.get("cpu") or args.get("use_cpu"):
        raise UsageError("accelerate launch: --cpu or the config says that no card is used: nothing to predict")
    nodes = whole("accelerate launch", "num_machines", str(args.get("num_machines") or 1), 1)
    world = whole("accelerate launch", "num_processes", str(args.get("num_processes") or CARDS), 1)
    if args.get("multi_gpu") and "multi_gpu" in options and world < 2 and "num_processes" in options:
        raise UsageError("accelerate launch: --multi_gpu needs at least 2 processes")
    is_multi = any(args.get(name) for name in _MULTI)
    variables = _variables(args, deepspeed_fields, environment, is_multi=is_multi)
    started = replace(
        target,
        launcher="accelerate launch" if path is None else f"accelerate launch (with {path})",
        processes=max(world // nodes, 1),
        nodes=nodes,
        environment={**target.environment, **variables},
    )
    port = str(args.get("main_process_port") or "29500")
    address = str(args.get("main_process_ip") or "127.0.0.1")
    if not is_multi:
        if world > 1:
            pair = {"MASTER_ADDR": address, "MASTER_PORT": port}
            return replace(started, environment={**started.environment, **pair})
        return started
    return with_ranks(
        started,
        address=address,
        port=port,
        role=str(args.get("role") or "default"),
        restarts=str(args.get("max_restarts") or "0"),
        node_rank=whole("accelerate launch", "machine_rank", str(args.get("machine_rank") or 0)),
        environment={**environment, **variables},
    )


def _variables(
    args: Mapping[str, Any], deepspeed_fields: list[str], environment: Mapping[str, str], *, is_multi: bool
) -> dict[str, str]:
    variables: dict[str, str] = {} if is_multi else {"ACCELERATE_USE_CPU": "False"}
    if args.get("debug"):
        variables["ACCELERATE_DEBUG_MODE"] = "true"
    if args.get("gpu_ids") not in (None, "all"):
        variables["CUDA_VISIBLE_DEVICES"] = str(args["gpu_ids"])
    precision = str(args.get("mixed_precision") or "no").lower()
    if precision not in _PRECISIONS:
        raise UsageError(
            f"accelerate launch: mixed_precision {precision[:40]!r} is not one of {', '.join(_PRECISIONS)}"
        )
    variables["ACCELERATE_MIXED_PRECISION"] = precision
    if precision == "fp8":
        for name, default in _FP8.items():
            if args.get(name, default) is not None:
                variables[f"ACCELERATE_{name.upper()}"] = str(args.get(name, default))
    if not args.get("use_deepspeed"):
        variables["ACCELERATE_DYNAMO_BACKEND"] = str(args.get("dynamo_backend") or "no").upper()
        variables["ACCELERATE_DYNAMO_MODE"] = str(args.get("dynamo_mode") or "default")
        for name in ("fullgraph", "dynamic", "regional_compilation"):
            variables[f"ACCELERATE_DYNAMO_USE_{name.upper()}"] = str(bool(args.get(f"dynamo_use_{name}")))
        variables["OMP_NUM_THREADS"] = str(
            args.get("num_cpu_threads_per_process") or environment.get("OMP_NUM_THREADS", "1")
        )
    else:
        variables |= _deepspeed(args, deepspeed_fields, environment)
    if args.get("use_fsdp"):
        variables["ACCELERATE_USE_FSDP"] = "true"
        for variable, (name, default) in _FSDP.items():
            value = args.get(name, default)
            if value is not None:
                variables[variable] = str(value) if name in _FSDP_AS_SPELT else str(value).lower()
    if args.get("enable_cpu_affinity"):
        variables["ACCELERATE_CPU_AFFINITY"] = "1"
    if args.get("use_parallelism_config"):
        variables["ACCELERATE_USE_PARALLELISM_CONFIG"] = "true"
        for name, default in _PARALLELISM.items():
            variables[f"PARALLELISM_CONFIG_{name}"] = str(args.get(f"parallelism_config_{name.lower()}", default))
    return variables


def _deepspeed(args: Mapping[str, Any], fields: list[str], environment: Mapping[str, str]) -> dict[str, str]:
    here = os.path.abspath(".")
    before = environment.get("PYTHONPATH")
    variables = {
        "PYTHONPATH": f"{before}:{here}" if before else here,
        "ACCELERATE_CONFIG_DS_FIELDS": ",".join(fields).lower(),
        "ACCELERATE_USE_DEEPSPEED": "true",
    }
    for variable, name in _DEEPSPEED.items():
        if args.get(name) is not None:
            variables[variable] = str(args[name]) if name in _DEEPSPEED_AS_SPELT else str(args[name]).lower()
    return variables


def _config_path(options: Options, environment: Mapping[str, str]) -> str | None:
    given = options.get("config_file")
    if given is not None:
        if not os.path.isfile(str(given)):
            raise UsageError(f"accelerate launch: --config_file: there is no file {given}")
        return str(given)
    cache = environment.get("XDG_CACHE_HOME", "~/.cache")
    home = os.path.expanduser(environment.get("HF_HOME", os.path.join(cache, "huggingface")))
    places = [os.path.join(home, "accelerate", f"default_config.{kind}") for kind in ("yaml", "json")]
    return next((place for place in places if os.path.isfile(place) and "cpu" not in options), None)


def _with_config(args: dict[str, Any], path: str | None) -> tuple[dict[str, Any], list[str]]:
    """The options, with what the config says where they say nothing; and which of DeepSpeed's fields are its."""
    if path is None:
        return args, []
    config = _read(path)
    if config.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        raise CannotPredict(f"{path}: compute_environment is {config['compute_environment']}: not modelled")
    fields = list(config.get("deepspeed_config") or {})
    if not any(args.get(name) for name in (*_MULTI, "tpu")):
        kind = str(config["distributed_type"])
        if kind in _KINDS:
            args[_KINDS[kind]] = True
        args["tpu"] = kind in ("XLA", "TPU")
        args["use_parallelism_config"] = bool(config.get("parallelism_config"))
    for section in _SECTIONS:
        for key, value in (config.get(section) or {}).items():
            beginning = _PREFIXED.get(section, "")
            name = key if key.startswith(beginning) else f"{beginning.rstrip('_')}_{key}"
            args.setdefault(name, value)
    if config.get("dynamo_backend"):  # as older versions wrote it
        args.setdefault("dynamo_backend", config["dynamo_backend"])
    precision = config.get("mixed_precision", "fp16" if config.get("fp16") else None)
    if args.get("mixed_precision") is None and precision is not None:
        args["mixed_precision"] = "no" if precision is False else precision  # YAML reads a bare no as false
        fields.append("mixed_precision")
    for key in ("num_processes", "num_machines", "machine_rank", "gpu_ids", "main_process_ip", "main_process_port",
                "use_cpu", "debug"):  # fmt: skip
        if args.get(key) is None:
            args[key] = config.get(key)
    if args["num_processes"] is None and config["distributed_type"] not in ("NO", False):
        raise UsageError(f"{path} does not say num_processes: accelerate launch needs --num_processes")
    return args, fields


def _read(path: str) -> dict[str, Any]:
    import json

    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MOST_BYTES)
        config = json.loads(text) if path.endswith(".json") else yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(f"{path} cannot be read as an accelerate config: {str(error).splitlines()[0]}") from None
    if not isinstance(config, dict) or "distributed_type" not in config:
        raise UsageError(f"{path} is no accelerate config: it says no distributed_type")
    for section in _SECTIONS:
        if not isinstance(config.get(section) or {}, dict):
            raise UsageError(f"{path}: {section} needs keys and values below it")
    return {str(key): value for key, value in config.items()}
