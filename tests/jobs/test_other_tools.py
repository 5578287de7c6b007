"""Configs of tools that are not read: the answer says which command to predict."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramcast.errors import CannotPredict, UsageError
from vramcast.jobs.load import load_job

LITGPT = "checkpoint_dir: checkpoints/x\nout_dir: out\nlora_r: 8\ndata: {}\ntrain: {}\neval: {}\n"
TAGGED = "seed: 1\nencoder: !new:speechbrain.lobes.models.CRDNN\n  blocks: 2\n"
OPENMMLAB = "_base_ = ['../_base_/models/faster.py']\noptim_wrapper = dict(type='OptimWrapper')\n"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("lora.yaml", LITGPT, "a config of LitGPT.* vramcast run litgpt finetune_lora --config lora.yaml$"),
        ("config.json", '{"--model_type": "lora", "--model_family": "flux", "--data_backend_config": "x"}',
         "SimpleTuner.* vramcast run simpletuner train$"),
        ("a b.yaml", "MODEL: {META_ARCHITECTURE: RetinaNet}\nSOLVER: {}\n", "train_net.py .* 'a b.yaml'$"),
        ("train.yaml", TAGGED, "SpeechBrain.* vramcast run python train.py train.yaml$"),
        ("rcnn.py", OPENMMLAB, "OpenMMLab.* vramcast run python tools/train.py rcnn.py$"),
        ("sft.sh", "deepspeed --module openrlhf.cli.train_dpo --zero_stage 2\n",
         r"OpenRLHF.* vramcast run deepspeed --module openrlhf.cli.train_dpo \.\.\.$"),
        ("grpo.sh", "python3 -m verl.trainer.main_ppo data.train_batch_size=8\n", "verl trains in processes of Ray"),
        ("asr.yaml", "trainer: {}\nmodel: {optim: {}}\nexp_manager: {}\n", "NeMo.* --config-name asr$"),
    ],
)  # fmt: skip
def test_which_command_is_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    with pytest.raises(CannotPredict, match=said):
        load_job(name)


def test_a_script_that_does_not_train(tmp_path: Path) -> None:
    script = tmp_path / "merge.sh"
    script.write_text("CUDA_VISIBLE_DEVICES=0 \\\nswift export --adapters output/x --merge_lora true\n")
    with pytest.raises(UsageError, match="`swift export` does not train"):
        load_job(str(script))
