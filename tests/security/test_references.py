"""References take fields and numbers, expressions are arithmetic: neither reaches anything else."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
import torch

from vramcast.errors import UsageError
from vramcast.jobs.expressions import check, evaluate
from vramcast.jobs.training.references import look_up
from vramcast.jobs.validation import make_job

JOB: dict[str, Any] = {
    "components": {"model": {"transformers": "x", "inputs": {"input_ids": "ids"}}},
    "inputs": {"ids": {"shape": ["batch"]}},
}


class Object:
    """What a model might return that is no output: asking it for anything is seen."""

    asked = False

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            type(self).asked = True
        return super().__getattribute__(name)

    def run(self) -> None:
        type(self).asked = True


@dataclasses.dataclass
class Output:
    logits: torch.Tensor

    @property
    def hidden(self) -> torch.Tensor:
        raise AssertionError("a property is no field")


Named = collections.namedtuple("Named", ["out", "aux"])
TENSOR = torch.arange(6.0).reshape(1, 6)
VALUES = {
    "x": TENSOR,
    "object": Object(),
    "output": Output(TENSOR),
    "named": Named(TENSOR, [TENSOR, TENSOR + 1]),
    "mapping": {"last_hidden_state": TENSOR, "3": TENSOR},
}


@pytest.mark.parametrize(
    "reference", ["x", "x.0", "output.logits", "named.out", "named.aux.1", "mapping.last_hidden_state", "mapping.3"]
)
def test_fields_are_found(reference: str) -> None:
    assert isinstance(look_up(reference, VALUES, "key"), torch.Tensor)


def test_conversions_are_found() -> None:
    assert look_up("x.half().float().mean()", VALUES, "key") == TENSOR.mean()
    assert look_up("x.detach()", VALUES, "key").shape == TENSOR.shape


@pytest.mark.parametrize(
    "reference",
    [
        "x.data", "x.grad_fn", "x.numpy()", "x.storage()", "x.__class__", "x.__class__.__mro__", "x.save()",
        "x.share_memory_()", "object.run", "object.run()", "object.0", "object.__init__.__globals__", "output.hidden",
        "output.__init__",
        "named._make", "named._asdict()", "named.count", "named.9", "mapping.keys()", "mapping.items",
        "mapping.__class__",
        "x.sample()", "x.kl()", f"named.{'9' * 5000}", "x.99999999999999999999",
    ],
)  # fmt: skip
def test_nothing_else_is(reference: str) -> None:
    with pytest.raises(UsageError, match="has no"):
        look_up(reference, VALUES, "key")
    assert not Object.asked


@pytest.mark.parametrize(
    "reference",
    ["ids.__repr__", "ids.__class__.__mro__", "ids._x", "ids.numpy()", "ids.a()", "ids.exec()", "ids[0]", "ids."],
)  # fmt: skip
@pytest.mark.parametrize("where", ["inputs", "loss", "diffusion"])
def test_a_job_cannot_even_say_it(reference: str, where: str) -> None:
    job = {**JOB, "components": {"model": dict(JOB["components"]["model"])}}
    if where == "inputs":
        job["components"]["model"]["inputs"] = [reference]
    else:
        job |= {"loss": {"kind": "mean", "prediction": reference}} if where == "loss" else {
            "diffusion": {"clean": reference}
        }  # fmt: skip
    with pytest.raises(UsageError, match="is not a reference"):
        make_job(job, "job")


@pytest.mark.parametrize("name", ["__class__", "a.__class__", "a.b.c", "a b", "", "a-b", "a()"])
def test_names_of_arguments(name: str) -> None:
    job = {**JOB, "components": {"model": {"transformers": "x", "inputs": {name: "ids"}}}}
    with pytest.raises(UsageError, match="is not the name of an argument"):
        make_job(job, "job")


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "batch.real", "(lambda: 1)()", "[1][0]", "'a' * 9", "1.5", "max(*[1])", "max(a=1)",
     "batch if 1 else 2", "max", "True", "f'{batch}'", "batch := 1", "1 << 99", "~1", "()", "{}", "max()", "print(1)",
     "batch(1)", "b''"],
)  # fmt: skip
def test_what_is_no_expression(text: str) -> None:
    with pytest.raises(UsageError):
        check(text)
        evaluate(text, {"batch": 2}, "key")


@pytest.mark.parametrize(
    "text",
    [
        "((((9**64)**64)**64)**64)**64",
        "(((((1/9223372036854775807)**64)**64)**64)**64)**64",
        "2**63*2**63*2**63",
        "(1/3)**64 * 3**40 * 3**24",
        "((2/3)**64)**64",
    ],
)
def test_numbers_stay_small(text: str) -> None:
    """Also those that are less than one, whose parts grow."""
    with pytest.raises(UsageError, match="far too large"):
        evaluate(text, {}, "key")
