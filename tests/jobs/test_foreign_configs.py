"""Configs of Lightning, KAIR, DiffSR and torchtitan: recognised, read rightly, predicted, and refused where wrong."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vramcast.base.access import CodeGate
from vramcast.cli.main import main
from vramcast.errors import CannotPredict, UsageError
from vramcast.jobs.load import LoadedJob, load_job
from vramcast.jobs.readers import Request, recognise, torchtitan
from vramcast.jobs.readers.documents import read_document
from vramcast.prediction.predict import predict

CONFIGS = Path(__file__).parent / "configs"
CLIP, UNET = "tests.jobs.lit:Clip", "tests.jobs.lit:UNet2d"
BATCH = str(CONFIGS / "lightning_inputs.yaml")


def _load(name: str, model: str | None = None, overrides: dict[str, Any] | None = None, **more: Any) -> LoadedJob:
    return load_job(str(CONFIGS / name), overrides, Request(model=model, gate=CodeGate(allowed=True), **more))


def _notes(loaded: LoadedJob) -> str:
    return " ".join(f"{note.topic}: {note.where or ''} {note.text}" for note in loaded.notes)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("lightning.yaml", "Lightning CLI config"),
        ("kair_gopro.json", "KAIR option file"),
        ("diffsr_unet.yaml", "DiffSR config"),
        ("torchtitan_debug.toml", "torchtitan config"),
        ("torchtitan_8b.toml", "torchtitan config"),
        ("lightning_inputs.yaml", "vramcast.yaml"),
        ("training_args.json", "Hugging Face TrainingArguments"),
        ("training_args.yaml", "TRL config"),
        ("llama_factory.yaml", "LLaMA-Factory config"),
        ("run_clm.sh", "command of a Hugging Face training script"),
        ("accelerate_ddp.yaml", "accelerate config"),
        ("accelerate_fsdp.yaml", "accelerate config"),
        ("accelerate_deepspeed.yaml", "accelerate config"),
        ("ds_zero0.json", "DeepSpeed config"),
        ("ds_zero3.json", "DeepSpeed config"),
    ],
)
def test_what_is_recognised(name: str, kind: str) -> None:
    reader = recognise(CONFIGS / name)
    assert reader is not None
    assert kind == reader.NAME


# -- Lightning --------------------------------------------------------------------------------------------------


def test_lightning() -> None:
    loaded = _load("lightning.yaml", parts=(BATCH,))
    job, model = loaded.job, loaded.job.components["model"]
    assert model.factory == "tests.jobs.lit:LitClassifier"
    assert model.arguments == {"width": 128, "classes": 10}
    assert (model.method, model.inputs) == ("training_step", {"batch.0": "x", "batch.1": "y"})
    assert job.sizes == {"batch": 32}
    assert (job.gpus.count, job.gpus.effective_strategy) == (2, "ddp")
    assert job.precision.preset == "bf16"
    assert (job.accumulation, job.gradient_clipping) == (4, 0.5)
    assert (job.optimizer[0].name, job.optimizer[0].arguments["momentum"]) == ("SGD", 0.9)
    assert (job.zero_grad, job.outputs_live_until) == ("before-backward", "forward")
    assert "tests.jobs.lit:LitClassifier is imported and called, because class_path names it" in _notes(loaded)
    assert "trainer.callbacks" in _notes(loaded)
    result = predict(loaded, gpu="rtx-4090", steps=2)
    assert result.parameters.trained_count == result.parameters.count > 0
    alone = predict(
        _load("lightning.yaml", None, {"gpus.count": 1, "gpus.strategy": "none"}, parts=(BATCH,)), gpu="a10"
    )
    assert result.prediction.peak_allocated_bytes > alone.prediction.peak_allocated_bytes, "gradient buckets"


def test_lightning_without_shapes() -> None:
    with pytest.raises(UsageError, match=r"--with inputs\.yaml"):
        _load("lightning.yaml")


def test_lightning_reads_without_importing_the_class(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("raise SystemExit('ran')")
    path = tmp_path / "fit.yaml"
    path.write_text("trainer: {precision: 16-mixed}\nmodel: {class_path: bad.Lit}\n")
    job = load_job(str(path), request=Request(parts=(BATCH,), gate=CodeGate(allowed=True))).job
    assert job.components["model"].factory == "bad:Lit"


@pytest.mark.parametrize(
    ("strategy", "gpus"),
    [
        ("deepspeed_stage_3_offload", {"strategy": "deepspeed", "zero_stage": 3, "offload_parameters": True}),
        ("fsdp", {"strategy": "fsdp"}),
        ("{class_path: lightning.pytorch.strategies.DDPStrategy, init_args: {static_graph: true}}",
         {"strategy": "ddp", "static_graph": True}),
    ],
)  # fmt: skip
def test_lightning_strategies(strategy: str, gpus: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "fit.yaml"
    path.write_text((CONFIGS / "lightning.yaml").read_text().replace("strategy: ddp", f"strategy: {strategy}"))
    found = load_job(str(path), request=Request(parts=(BATCH,), gate=CodeGate(allowed=True))).job.gpus.model_dump()
    assert {key: found[key] for key in gpus} == gpus


# -- KAIR -------------------------------------------------------------------------------------------------------


def test_kair() -> None:
    loaded = _load("kair_gopro.json", CLIP)
    job, network = loaded.job, loaded.job.components["network"]
    assert job.name == "deblur_tiny"
    assert job.gpus.count == 2
    assert job.effective_sizes == {"batch": 2, "frames": 6, "height": 32, "width": 32}, "4 clips over 2 GPUs"
    assert (job.gpus.static_graph, job.gpus.find_unused_parameters) == (True, False)
    assert network.arguments == {"upscale": 1, "depths": [2, 2], "embed_dims": [16, 16]}
    assert (network.freeze, network.freeze_steps) == (["flow"], 20000)
    assert (job.checkpointing.attention, job.checkpointing.feed_forward) == (True, False)
    assert job.checkpointing.skip_attention_blocks == [1]
    assert (job.loss[0].kind, job.loss[0].target) == ("charbonnier", "H")
    assert job.optimizer[0].name == "adam"
    assert job.ema is not None
    assert (job.ema.decay, job.ema.update) == (0.999, "loop")
    assert job.precision.preset == "fp32"
    assert "takes no such argument netG.spynet_path" in _notes(loaded)
    assert predict(loaded, gpu="rtx-4090", steps=2).output_shapes["network"] == (2, 6, 3, 32, 32)


def test_kair_checkpointing_reaches_the_network() -> None:
    def peak(changes: dict[str, Any]) -> int:
        loaded = _load("kair_gopro.json", CLIP, {"sizes.height": 96, "sizes.width": 96, **changes})
        return predict(loaded, gpu="rtx-4090", steps=2).prediction.peak_allocated_bytes

    assert peak({}) < peak({"checkpointing.attention": False})


def test_kair_finds_its_network_beside_the_options(tmp_path: Path) -> None:
    (tmp_path / "vrt").mkdir()
    (tmp_path / "vrt" / "__init__.py").write_text("from tests.jobs.lit import Clip as VRT\n")
    path = Path(shutil.copy(CONFIGS / "kair_gopro.json", tmp_path))
    command = [
        sys.executable,
        "-c",
        "from vramcast.prediction.predict import as_loaded; "
        f"print(as_loaded({str(path)!r}, allow_code=True).recognised_as)",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "KAIR option file (vrt:VRT)"


def test_kair_images_for_super_resolution(tmp_path: Path) -> None:
    path = tmp_path / "sr.json"
    path.write_text(
        '{"model": "plain", "gpu_ids": [0], "scale": 2, "n_channels": 3, "netG": {"net_type": "swinir", "in_chans": 3},'
        '"datasets": {"train": {"H_size": 96, "dataloader_batch_size": 32}}, "train": {"G_lossfn_type": "l1"}}'
    )
    job = load_job(str(path), request=Request(model="tests.jobs.tiny:conv_net")).job
    assert job.inputs["L"].shape == ["batch", 3, "height // 2", "width // 2"]
    assert job.inputs["H"].shape == ["batch", 3, "height", "width"]
    assert job.effective_sizes == {"batch": 32, "height": 96, "width": 96}


def test_kair_gan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gan.json"
    path.write_text((CONFIGS / "kair_gopro.json").read_text().replace('"model": "vrt"', '"model": "gan"'))
    with pytest.raises(CannotPredict, match='model: "gan"'):
        load_job(str(path), request=Request(model=CLIP))


# -- DiffSR -----------------------------------------------------------------------------------------------------


def test_diffsr() -> None:
    loaded = _load("diffsr_unet.yaml", UNET)
    job = loaded.job
    assert job.components["model"].arguments["args"]["init_features"] == 16
    assert job.inputs["coarse"].shape == ["batch", "height // 2", "width // 2", 1]
    assert job.effective_sizes == {"batch": 8, "height": 64, "width": 64}, "of each process"
    assert (job.gpus.count, job.gpus.effective_strategy) == (2, "ddp")
    assert (job.precision.preset, job.accumulation, job.optimizer[0].name) == ("fp16", 4, "adamw")
    assert "assumed:  mean squared error" in _notes(loaded)
    assert predict(loaded, gpu="rtx-4090", steps=2).output_shapes["model"] == (8, 64, 64, 1)


def test_diffsr_without_the_class_is_a_plain_network_of_its_kind() -> None:
    loaded = _load("diffsr_unet.yaml")
    assert loaded.recognised_as == "DiffSR config (plain unet)"
    assert loaded.job.components["model"].arguments["width"] == 16
    assert "--model file.py:UNet2d predicts yours" in _notes(loaded)


def test_diffsr_wants_to_know_a_class_of_no_known_kind(tmp_path: Path) -> None:
    path = tmp_path / "diffsr.yaml"
    path.write_text((CONFIGS / "diffsr_unet.yaml").read_text().replace("UNet2d", "Galerkin2d"))
    with pytest.raises(UsageError, match=r"--model file\.py:Galerkin2d"):
        load_job(str(path))


# -- torchtitan -------------------------------------------------------------------------------------------------


def test_torchtitan() -> None:
    pytest.importorskip("transformers")
    loaded = _load("torchtitan_debug.toml")
    job = loaded.job
    assert job.sizes == {"batch": 4, "sequence": 256}
    assert job.accumulation == 2, "16 samples, 4 on each of 2 GPUs"
    assert (job.gpus.count, job.gpus.effective_strategy) == (2, "ddp")
    assert job.checkpointing.modules == ["model.layers.1", "model.layers.3", "model.layers.5"]
    assert (job.precision.preset, job.gradient_clipping) == ("bf16", 1.0)
    assert (job.optimizer[0].name, job.optimizer[0].arguments) == ("adamw", {"fused": True})
    assert "LlamaForCausalLM of the same sizes" in _notes(loaded)
    assert predict(loaded, gpu="rtx-4090", steps=2).fits


@pytest.mark.parametrize(("flavor", "billions"), [("8B", 8.030261248), ("70B", 70.553706496), ("405B", 405.853388800)])
def test_torchtitan_flavors_have_the_published_sizes(flavor: str, billions: float) -> None:
    config = {**read_document(torchtitan.BASE / "config.json").data, **torchtitan.FLAVORS[flavor]}
    width, heads = config["hidden_size"], config["num_attention_heads"]
    attention = width * width * 2 + 2 * width * (width // heads) * config["num_key_value_heads"]
    layer = attention + 3 * width * config["intermediate_size"] + 2 * width
    assert config["num_hidden_layers"] * layer + 2 * config["vocab_size"] * width + width == round(billions * 1e9)


def test_torchtitan_checkpointing_by_operator() -> None:
    with pytest.raises(CannotPredict, match="selective_ac_option = op"):
        _load("torchtitan_8b.toml")
    loaded = _load("torchtitan_8b.toml", overrides={"checkpointing": "all"})
    assert loaded.job.sizes == {"batch": 1, "sequence": 8192}
    assert "shards over as many as are started" in _notes(loaded)


def test_torchtitan_sharded(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path = tmp_path / "a.toml"
    text = (CONFIGS / "torchtitan_debug.toml").read_text().replace("global_batch_size = 16", "")
    path.write_text(text.replace("data_parallel_shard_degree = 1", "data_parallel_shard_degree = 4"))
    assert main(["predict", str(path), "--gpu", "h100"]) == 0
    job = load_job(str(path)).job
    assert (job.gpus.count, job.gpus.strategy, job.gpus.replicas) == (8, "hsdp", 2)
    path.write_text(text.replace("context_parallel_degree = 1", "context_parallel_degree = 2"))
    with pytest.raises(CannotPredict, match=r"parallelism\.context_parallel_degree above 1 cannot be said by a job"):
        load_job(str(path))


def test_torchtitan_divided(tmp_path: Path) -> None:
    """Tensor and pipeline parallel; of a pipeline, local_batch_size is cut into microbatches."""
    path = tmp_path / "a.toml"
    text = (CONFIGS / "torchtitan_debug.toml").read_text().replace("global_batch_size = 16", "")
    text = text.replace("data_parallel_replicate_degree = 2", "data_parallel_replicate_degree = 1")
    divided = text.replace("tensor_parallel_degree = 1", "tensor_parallel_degree = 2").replace(
        "pipeline_parallel_degree = 1", "pipeline_parallel_degree = 3\npipeline_parallel_microbatch_size = 2"
    )
    path.write_text(divided.replace("data_parallel_shard_degree = 1", "data_parallel_shard_degree = 4"))
    loaded = load_job(str(path))
    gpus = loaded.job.gpus
    assert (gpus.count, gpus.strategy, gpus.tensor, gpus.pipeline, gpus.data) == (24, "fsdp", 2, 3, 4)
    assert loaded.job.sizes["batch"] == 2 and loaded.job.accumulation == load_job(str(_debug())).job.sizes["batch"] // 2
    assert "without torchtitan's sequence and loss parallelism" in _notes(loaded)
    path.write_text(
        divided.replace(
            "pipeline_parallel_degree = 3", 'pipeline_parallel_schedule = "ZBV"\npipeline_parallel_degree = 2'
        )
    )
    with pytest.raises(CannotPredict, match=r"parallelism\.pipeline_parallel_schedule: ZBV is not modelled"):
        load_job(str(path))


def _debug() -> Path:
    return CONFIGS / "torchtitan_debug.toml"


def test_megatron_scripts_are_named_for_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "train_gpt.sh"
    path.write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 8 --micro-batch-size 1 --bf16 "
        "--use-distributed-optimizer\n"
    )
    with pytest.raises(
        CannotPredict, match=r"--use-distributed-optimizer: .* torchrun --nproc-per-node 8 pretrain_gpt"
    ):
        load_job(str(path))


def test_arguments_of_megatron_and_nemo_are_named_for_what_they_are(tmp_path: Path) -> None:
    recipe, config = tmp_path / "model_config.yaml", tmp_path / "gpt.yaml"
    recipe.write_text("MODEL_ARGS:\n  --num-layers: 12\n  --micro-batch-size: 4\n  --bf16: true\n")
    with pytest.raises(CannotPredict, match=r"--bf16: Megatron-LM has .* vramcast run torchrun"):
        load_job(str(recipe))
    config.write_text("trainer: {devices: 8}\nmodel: {micro_batch_size: 4, tensor_model_parallel_size: 2}\n")
    with pytest.raises(CannotPredict, match=r"a config of NeMo: .* vramcast run torchrun"):
        load_job(str(config))
    words = ["torchrun", "pretrain_gpt.py", "--micro-batch-size", "4", "--tensor-model-parallel-size", "2", "--bf16"]
    with pytest.raises(CannotPredict, match=r"the flags: --bf16: Megatron-LM has .* pretrain_gpt\.py"):
        load_job(None, {}, Request(arguments=tuple(words)))


def test_accelerate_degrees(tmp_path: Path) -> None:
    path = tmp_path / "tp_hsdp.yaml"
    text = "distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\nfsdp_config: {fsdp_version: 2}\n"
    prefix = "parallelism_config"
    degrees = f"{prefix}_dp_replicate_size: 2, {prefix}_dp_shard_size: 2, {prefix}_tp_size: 2, {prefix}_cp_size: 1"
    path.write_text(f"{text}{prefix}: {{{degrees}}}\n")
    folder = str(CONFIGS / "llama-tiny")
    gpus = load_job(str(path), {}, Request(model=folder)).job.gpus
    assert (gpus.count, gpus.strategy, gpus.replicas, gpus.tensor, gpus.data) == (8, "hsdp", 2, 2, 4)
    path.write_text(f"{text}{prefix}: {{{prefix}_cp_size: 8}}\n")
    with pytest.raises(CannotPredict, match="parallelism_config_cp_size above 1 cannot be said by a job"):
        load_job(str(path), {}, Request(model=folder))


def test_torchtitan_with_another_model() -> None:
    folder = str(CONFIGS / "llama-tiny")
    job = _load("torchtitan_8b.toml", folder, {"checkpointing": "none"}).job
    assert job.components["model"].transformers == folder


# -- mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "old", "new", "parts"),
    [
        ("lightning.yaml", "accumulate_grad_batches", "accumulate_grad_batch",
         [":10:", "trainer.accumulate_grad_batch", "did you mean 'accumulate_grad_batches'"]),
        ("lightning.yaml", "bf16-mixed", "bf17", ["trainer.precision", "'bf17'", "bf16-mixed"]),
        ("lightning.yaml", "batch_size: 32", "batch_size: many", ["data.init_args.batch_size", "'many'"]),
        ("lightning.yaml", "LitClassifier", "LitClasifier", ["LitClasifier"]),
        ("lightning.yaml", "    width: 128", "    widht: 128", ["widht", "it takes: width, classes"]),
        ("lightning.yaml", "devices: 2", "devices: -3", ["trainer.devices", "-3"]),
        ("kair_gopro.json", '"gt_size": 32', '"gt_sizes": 32', ["gt_size"]),
        ("kair_gopro.json", '"dataloader_batch_size": 4', '"dataloader_batch_size": 5',
         ["datasets.train.dataloader_batch_size", "cannot be divided by the 2"]),
        ("kair_gopro.json", '"num_frame": 6', '"num_frame": "six"', [":20:", "datasets.train.num_frame", "'six'"]),
        ("kair_gopro.json", "charbonnier\"", "charbonier\"", ["train.G_lossfn_type", "'charbonnier'"]),
        ("kair_gopro.json", '"use_checkpoint_attn": true', '"use_checkpoint_attn": "on"', ["use_checkpoint_attn"]),
        ("kair_gopro.json", ", \"dist\": true", "\"dist\": true", ["kair_gopro.json:5", "not JSON"]),
        ("kair_gopro.json", '"scale": 1', '"task": 1', ["task", "twice"]),
        ("diffsr_unet.yaml", "train_batchsize", "train_batchsise", ["train_batchsise", "'train_batchsize'"]),
        ("diffsr_unet.yaml", "shape: [64, 64]", "shape: 64", ["data.shape", "list"]),
        ("diffsr_unet.yaml", "sample_factor: 2", "sample_factor: 3", ["data.sample_factor", "divided by 3"]),
        ("diffsr_unet.yaml", "'AdamW'", "'Adamm'", ["optimize.optimizer", "Adamm"]),
        ("torchtitan_debug.toml", "local_batch_size", "local_batchsize", ["training.local_batchsize", "did you mean"]),
        ("torchtitan_debug.toml", 'flavor = "debugmodel"', 'flavor = "7B"', ["model.flavor", "'7B'", "70B"]),
        ("torchtitan_debug.toml", 'name = "llama3"', 'name = "qwen3"', ["model.name", "--model"]),
        ("torchtitan_debug.toml", "seq_len = 256", 'seq_len = "long"', [":26:", "training.seq_len", "'long'"]),
        ("torchtitan_debug.toml", "global_batch_size = 16", "global_batch_size = 15",
         ["training.global_batch_size", "multiple of 8"]),
        ("torchtitan_debug.toml", "[compile]", "[compile", ["not TOML"]),
    ],
)  # fmt: skip
def test_a_mistake(
    name: str, old: str, new: str, parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (CONFIGS / name).read_text()
    assert old in text
    path = tmp_path / name
    path.write_text(text.replace(old, new, 1))
    model = {"kair_gopro.json": ["--model", CLIP], "diffsr_unet.yaml": ["--model", UNET]}.get(name, [])
    more = ["--with", BATCH] if name == "lightning.yaml" else []
    assert main(["predict", str(path), *model, *more, "--gpu", "rtx-4090", "--allow-code"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err
    for part in [*parts, name]:
        assert part in err


def test_a_comment_sign_inside_a_string(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"url": "http://x//y", // "no": 1,\n "b": "say \\"hi\\" // there" // end\n}')
    assert read_document(path).data == {"url": "http://x//y", "b": 'say "hi" // there'}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"netG": ' + "[" * 3000 + "]" * 3000 + "}"),
        ("a.json", '{"netG": ' + "[" * 300_000 + "]" * 300_000 + "}"),
        ("a.json", '{"netG": ' + "9" * 5000 + "}"),
        ("a.json", '{"netG": "' + "x" * 1_000_001 + '"}'),
        ("a.toml", "a = " + "[" * 5000 + "]" * 5000),
        ("a.yaml", "trainer: &a [*a]"),
        ("a.yaml", "trainer: !!python/object/apply:os.system ['true']"),
        ("a.json", "[1, 2]"),
        ("a.toml", ""),
    ],
)
def test_files_that_mean_harm(name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert main(["predict", str(path)]) == 2
    err = capsys.readouterr().err
    assert name in err
    assert "Traceback" not in err
