"""nnU-Net's plans, compared with the networks that dynamic_network_architectures builds from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import vramcast
from vramcast.errors import CannotPredict, UsageError
from vramcast.jobs.load import load_job
from vramcast.jobs.networks.nnunet import NnUNet

THREE, ONE, TWO = [3, 3, 3], [1, 1, 1], [2, 2, 2]


def older(**more: Any) -> dict[str, Any]:
    """A configuration as nnU-Net before 2.4 wrote it."""
    return {
        "batch_size": 2, "patch_size": [128, 128, 128], "UNet_class_name": "PlainConvUNet",
        "UNet_base_num_features": 32, "unet_max_num_features": 320, "n_conv_per_stage_encoder": [2] * 6,
        "n_conv_per_stage_decoder": [2] * 5, "pool_op_kernel_sizes": [ONE] + [TWO] * 5,
        "conv_kernel_sizes": [THREE] * 6, "num_pool_per_axis": [5, 5, 5], "batch_dice": True,
        "normalization_schemes": ["CTNormalization", "ZScoreNormalization"], **more,
    }  # fmt: skip


def newer(stages: int = 3, patch: int = 32, **more: Any) -> dict[str, Any]:
    kwargs = {
        "n_stages": stages, "features_per_stage": [8 * 2**i for i in range(stages)],
        "conv_op": "torch.nn.modules.conv.Conv2d", "kernel_sizes": [[3, 3]] * stages,
        "strides": [[1, 1]] + [[2, 2]] * (stages - 1), "n_conv_per_stage": [2] * stages,
        "n_conv_per_stage_decoder": [2] * (stages - 1), "conv_bias": True,
        "norm_op": "torch.nn.modules.instancenorm.InstanceNorm2d", "norm_op_kwargs": {"eps": 1e-5, "affine": True},
        "dropout_op": None, "nonlin": "torch.nn.LeakyReLU", "nonlin_kwargs": {"inplace": True}, **more,
    }  # fmt: skip
    name = "dynamic_network_architectures.architectures.unet.PlainConvUNet"
    return {
        "batch_size": 4, "patch_size": [patch, patch],
        "architecture": {"network_class_name": name, "arch_kwargs": kwargs, "_kw_requires_import": ["conv_op"]},
    }  # fmt: skip


def plans(folder: Path, configurations: dict[str, Any], labels: dict[str, Any] | None = None) -> str:
    path = folder / "nnUNetPlans.json"
    path.write_text(json.dumps({"dataset_name": "Dataset001_Test", "configurations": configurations}))
    if labels is not None:
        dataset = {"channel_names": {"0": "CT", "1": "PET"}, "labels": labels, "file_ending": ".nii.gz"}
        (folder / "dataset.json").write_text(json.dumps(dataset))
    return str(path)


def count(**arguments: Any) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in NnUNet(**arguments).parameters())


def test_the_network_has_the_parameters_of_the_original(tmp_path: Path) -> None:
    loaded = load_job(plans(tmp_path, {"3d_fullres": older()}, {"background": 0, "tumour": 1}))
    assert count(**loaded.job.components["model"].arguments) == 31_196_458
    kernels, strides = [[1, 3, 3]] + [THREE] * 5, [ONE, [1, 2, 2], TWO, TWO, TWO, [1, 2, 2]]
    residual = count(
        channels=1, classes=3, features=[32, 64, 128, 256, 320, 320], kernels=kernels, strides=strides,
        encoder=[1, 3, 4, 6, 6, 6], decoder=[1] * 5, residual=True,
    )  # fmt: skip
    assert residual == 101_858_479


def test_a_plan(tmp_path: Path) -> None:
    configurations = {
        "2d": newer(), "3d_fullres": older(), "3d_lowres": older(batch_size=3),
        "3d_cascade_fullres": {"inherits_from": "3d_fullres", "previous_stage": "3d_lowres"},
    }  # fmt: skip
    path = plans(tmp_path, configurations, {"background": 0, "kidney": 1, "tumour": 2})
    loaded = load_job(path)
    job = loaded.job
    assert loaded.recognised_as == "nnU-Net plans (3d_fullres)"
    assert job.sizes == {"batch": 2, "depth": 128, "height": 128, "width": 128}
    assert job.components["model"].arguments["features"] == [32, 64, 128, 256, 320, 320]
    assert (job.inputs["data"].shape[1], job.inputs["target_0"].below) == (2, 3), "dataset.json"
    assert job.inputs["target_2"].shape == ["batch", 1, "depth // 4", "height // 4", "width // 4"]
    assert [term.weight for term in job.loss] == [1.0, 0.5, 0.25, 0.125], "the smallest of five outputs has none"
    assert (job.precision.preset, job.optimizer[0].name, job.gradient_clipping) == ("fp16", "sgd", 12.0)
    assert list(job.scenarios) == ["2d", "3d_lowres", "3d_cascade_fullres"]
    assert load_job(f"{path}#2d").job.sizes == {"batch": 4, "height": 32, "width": 32}
    assert load_job(f"{path}#3d_cascade_fullres").job.inputs["data"].shape[1] == 4, (
        "and two classes of the stage before"
    )


def test_a_plan_is_predicted(tmp_path: Path) -> None:
    path = plans(tmp_path, {"2d": newer()})
    loaded = load_job(path, {"torch_compile": False})  # compiling takes a minute
    assert "background and one class" in str(loaded.notes[0].text)
    prediction = vramcast.predict(loaded, gpu="rtx-4090")
    assert prediction.fits
    larger = vramcast.predict(load_job(path, {"torch_compile": False, "sizes.batch": 64}), gpu="rtx-4090")
    assert larger.peak_allocated_bytes > 8 * prediction.peak_allocated_bytes


def test_what_is_not_modelled(tmp_path: Path) -> None:
    for kwargs, key in (({"dropout_op": "torch.nn.Dropout2d"}, "dropout_op"), ({"squeeze": True}, "squeeze")):
        with pytest.raises(CannotPredict, match=key):
            load_job(plans(tmp_path, {"2d": newer(**kwargs)}))
    other = newer()
    other["architecture"]["network_class_name"] = "my_package.SwinUNETR"
    with pytest.raises(CannotPredict, match=r"my_package.SwinUNETR: this network is not known"):
        load_job(plans(tmp_path, {"2d": other}))
    with pytest.raises(CannotPredict, match="regions"):
        load_job(plans(tmp_path, {"2d": newer()}, {"background": 0, "whole": [1, 2]}))
    with pytest.raises(UsageError, match="strides: 3 lists of 2 whole numbers"):
        load_job(plans(tmp_path, {"2d": newer(strides=[[1, 1], [2, 2]])}))
