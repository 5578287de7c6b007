"""Runs of torchtitan, published by its authors, by Trainy and by torchao: its own trainer at the revision they name."""

from __future__ import annotations

from pathlib import Path

from lab.published import adam, checkouts
from lab.published.recipe import NoRecipe, Recipe

TITAN = "pytorch/torchtitan"
SCRIPT = Path(__file__).with_name("titan_script.py")
DECEMBER_2024, JUNE_2025 = "9dec370", "e7c0cae"
"""Weights gathered in float8 are of torchao's own class, which PyTorch differentiates only where there is a card; the
kernels of asynchronous tensor parallelism need one too. Such runs are predicted without, and say so.
`benchmarks/llama3_h100_202412_torchtitan.md` names the one, `llama3-8b_h200_202506_trainy-whitefiber.md` the other.
The runs with asynchronous tensor parallelism are of the same day as the second, those of torchao some weeks before."""
AT_500_WATTS = 0.6 / 0.716
"""Of the clock that an H100 keeps at 700 W under large products, which are taken to reach 71.6 % of its peak. torchao's
roofline of "NVIDIA H100" (`testing/float8/roofline_utils.py` at c788ee7, of the months of these runs) puts them at 60 %
on "Meta's H100 variant"."""
H100_OF_META = {
    "bandwidth_bytes_per_second": 2.4e12,
    "fp16_tflops": 989 * AT_500_WATTS,
    "bf16_tflops": 989 * AT_500_WATTS,
    "fp8_tflops": 1979 * AT_500_WATTS,
}
"""HBM2e at 2.4 TB/s (the same file, and torchtitan's page); tensor cores at the clock that 500 W allow."""
CARDS = {
    "H100 96GB HBM2e 500W": ("h100", H100_OF_META),
    "H100": ("h100", H100_OF_META),
    "H200": ("h200", {}),
    "A100 80GB": ("a100-sxm4-80gb", {}),
    "B200 power limited": ("b200", {"sustained_bf16_tflops": 1088.0}),
}
"""The last: cuBLAS, 8192 x 8192 x 8192 on a B200 at 750 W, facebookexperimental/triton pull request 854."""
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
"""Set by torchtitan's `run_train.sh` and before it `run_llama_train.sh`; Trainy's page calls torchrun itself."""
SIZES = {"405B": "405B", "70B": "70B", "13B": "13B", "8B": "8B"}


def recipe(row: dict[str, str]) -> Recipe:
    if row["source"].endswith("optim/README.md"):
        return adam.recipe(row)
    if row["gpu"] not in CARDS:
        raise NoRecipe(f"{row['gpu']}: not a card that is known")
    old = "202412" in row["source"] or "performance.md" in row["source"] or "titan 0.0.2" in row["notes"]
    revision = DECEMBER_2024 if old else JUNE_2025
    source = checkouts.checkout(TITAN, revision)
    options = _old_options(row, source) if old else _options(row, source)
    gpu, changes = CARDS[row["gpu"]]
    cards = int(row["n_gpus"])
    stages = int(row["pp"] or 1)
    return Recipe(
        program=str(SCRIPT),
        arguments=[str(source), *options],
        gpu=gpu,
        card_changes=changes,
        cards=cards,
        cards_per_node=8,
        ranks=tuple(sorted({0, cards // stages * (stages - 1)})),
        assumed=_assumed(row),
        environment={} if "trainy" in row["source"] else EXPANDABLE,
        steps=3,
    )


def _assumed(row: dict[str, str]) -> str:
    found = []
    if "fp8" in row["precision"] and "rowwise" not in row["precision"]:
        found.append("weights are gathered in bf16")
    if "rowwise" in row["precision"] and "titan 0.0.2" in row["notes"]:
        found.append("one scale for each tensor")
    if "async" in row["notes"].lower():
        found.append("tensor parallelism waits for its messages")
    return "; ".join(found)


def _model(row: dict[str, str]) -> tuple[str, str]:
    size = next((size for size in SIZES if size in row["model"]), "")
    if not size:
        raise NoRecipe(f"{row['model']} is not a model of the recipe")
    return ("llama2" if "Llama 2" in row["model"] else "llama3"), size


def _old_options(row: dict[str, str], source: Path) -> list[str]:
    name, size = _model(row)
    config = source / "train_configs" / f"{name}_{size.lower()}.toml"
    if not config.exists():
        raise NoRecipe(f"{row['model']} is not in torchtitan at {DECEMBER_2024}")
    words = ["--job.config_file", str(config)]
    words += ["--metrics.log_freq", "1000", "--training.batch_size", row["micro_batch"]]
    words += ["--training.seq_len", row["seq"] or "8192", "--training.tensor_parallel_degree", row["tp"] or "1"]
    words += ["--training.data_parallel_shard_degree", row["fsdp"]]
    words += ["--experimental.pipeline_parallel_degree", row["pp"] or "1"]
    words += ["--experimental.context_parallel_degree", row["cp"] or "1"]
    words += _checkpointing(row["recompute"])
    if row["compile"] == "yes":
        words += ["--training.compile"]
    if "fp8" in row["precision"]:
        words += ["--float8.enable_float8_linear"]
    if int(row["pp"] or 1) > 1:
        schedule = "Interleaved1F1B" if "Interleaved" in row["notes"] else "1F1B"
        words += ["--experimental.pipeline_parallel_schedule", schedule]
        words += ["--experimental.pipeline_parallel_microbatches", row["micro_batch"]]
        if schedule == "Interleaved1F1B":
            words += ["--experimental.pipeline_parallel_split_points", _split_points(126, 16)]
    return words


def _split_points(layers: int, parts: int) -> str:
    """The first layer of each part but the first; embedding and output count as a layer each."""
    each, more = divmod(layers + 2, parts)
    sizes = [each + (part < more) for part in range(parts)]
    sizes[0] -= 1
    return ",".join(f"layers.{sum(sizes[: part + 1])}" for part in range(parts - 1))


def _options(row: dict[str, str], source: Path) -> list[str]:
    name, size = _model(row)
    config = source / "torchtitan" / "models" / name / "train_configs" / f"{name}_{size.lower()}.toml"
    words = ["--job.config_file", str(config), "--metrics.log_freq", "1000", "--training.local_batch_size"]
    words += [row["micro_batch"], "--training.seq_len", row["seq"] or "8192"]
    words += ["--parallelism.tensor_parallel_degree", row["tp"] or "1"]
    words += ["--parallelism.data_parallel_shard_degree", row["fsdp"]]
    words += _checkpointing(row["recompute"] or "selective op")
    if row["compile"] == "yes":
        words += ["--training.compile"]
    if "fp8" in row["precision"]:
        words += ["--model.converters", "float8"]
        if "rowwise" in row["precision"]:
            words += ["--float8.recipe_name", "rowwise"]
    elif row["precision"] != "bf16":
        raise NoRecipe(f"{row['precision']} is not in torchtitan at {JUNE_2025}")
    words += ["--parallelism.context_parallel_degree", row["cp"] or "1"]
    if int(row["pp"] or 1) > 1:
        schedule = "Interleaved1F1B" if "Interleaved" in row["notes"] else "1F1B"
        words += [
            "--parallelism.pipeline_parallel_degree",
            row["pp"],
            "--parallelism.pipeline_parallel_schedule",
            schedule,
        ]
    return words


def _checkpointing(text: str) -> list[str]:
    mode = {"selective op": "selective", "selective layer": "selective"}.get(text, text)
    words = ["--activation_checkpoint.mode", mode]
    if mode == "selective":
        words += ["--activation_checkpoint.selective_ac_option", "2" if "layer" in text else "op"]
    return words
