"""Two languages from one catalogue: nothing is missing, nothing left over, and lines are as wide as they look."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.messages import messages
from tests.samples import transformer
from vramcast.base.language import LANGUAGES, catalogue, language, say, sentence, spoken, usual_language
from vramcast.base.units import GIB
from vramcast.cli.main import main
from vramcast.cli.options import LANGUAGES as OFFERED
from vramcast.features.guard.wording import in_the_users_language
from vramcast.memory import Prediction, predict
from vramcast.report.documents import prediction_document
from vramcast.report.html_report import prediction_report
from vramcast.report.names import cell
from vramcast.report.screens import prediction_screen
from vramcast.report.wording import verdict
from vramcast.report.wrapping import wrap

OTHERS = [one for one in LANGUAGES if one != "en"]
_VALUE = re.compile(r"\{\w+\}")


@pytest.fixture
def prediction() -> Prediction:
    return predict(transformer(layers=12))


@pytest.mark.parametrize("chosen", OTHERS)
def test_no_message_is_missing_or_left_over(chosen: str) -> None:
    known = set(catalogue(chosen))
    assert not messages() - known, "messages without a translation"
    assert not known - messages(), "translations that nothing asks for"


@pytest.mark.parametrize("chosen", OTHERS)
def test_the_same_values_are_put_in(chosen: str) -> None:
    for english, other in catalogue(chosen).items():
        assert sorted(_VALUE.findall(english)) == sorted(_VALUE.findall(other)), english


def test_the_options_offer_what_there_is() -> None:
    assert OFFERED == LANGUAGES


def test_verdicts_in_chinese(prediction: Prediction) -> None:
    with spoken("zh"):
        assert verdict(prediction) == "RTX 4090 放得下：需要 5.0 GiB，可用 23.5 GiB，富余 18.6 GiB"
        small = predict(transformer(layers=12), capacity_bytes=GIB)
        assert verdict(small).startswith("RTX 4090 放不下：需要 5.0 GiB")
    assert verdict(prediction).startswith("Fits an RTX 4090")


@pytest.mark.parametrize("width", [60, 80, 120, 160])
def test_no_line_is_wider_than_the_terminal(prediction: Prediction, width: int) -> None:
    with spoken("zh"):
        lines = [line.text for line in prediction_screen(prediction, width)]
    assert any("权重" in line for line in lines) and len(lines) <= 25
    assert max(map(cell_len, lines)) <= width
    bars = [line for line in lines if re.search(r"^\S+ +[\d.]+ GiB +[\d.]+ %  █", line)]
    columns = {cell_len(line.partition(" GiB")[0]) for line in bars}
    assert len(bars) > 3 and len(columns) == 1, "figures stand one below the other"


def test_chinese_is_broken_anywhere_and_words_stay_whole() -> None:
    lines = wrap("峰值位于第 2 步，反向，model.layers.11.mlp 中的 aten.mm", 24, 5)
    assert max(map(cell_len, lines)) <= 24 and "".join(lines).replace(" ", "").endswith("aten.mm")
    assert any("model.layers.11.mlp" in line for line in lines)
    assert not any(line.startswith("，") for line in lines)
    assert wrap("显存" * 40, 20, 2)[1].endswith(" …")
    assert wrap("one two three", 8, 3) == ["one two", "three"]


def test_json_stays_english(prediction: Prediction) -> None:
    with spoken("zh"):
        assert prediction_document(prediction)["verdict"].startswith("Fits an RTX 4090")


def test_a_report_in_chinese(prediction: Prediction) -> None:
    with spoken("zh"):
        html = prediction_report(prediction).to_html()
    assert '<html lang="zh">' in html and "一步之内的显存" in html and "回到峰值" in html
    texts = json.loads(re.search(r'id="data">(.*?)</script>', html, re.S)[1])["texts"]  # type: ignore[index]
    assert texts["saved activations"] == "保存的激活" and texts["At the peak"] == "峰值时刻"
    assert '"texts":{}' in prediction_report(prediction).to_html()


def test_the_option_and_the_locale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "run.trace"
    transformer().save(saved)
    assert main(["show", str(saved), "--lang", "zh"]) == 0
    assert "RTX 4090 放得下" in capsys.readouterr().out
    for variable in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(variable, raising=False)
    assert usual_language() == "en"
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert usual_language() == "zh"
    assert main(["show", str(saved), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"].startswith("Fits an RTX 4090")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert usual_language() == "en"


def test_errors_notes_and_suggestions_are_found_by_their_template() -> None:
    with spoken("zh"):
        assert sentence("no such file or folder: a.yaml") == "没有这个文件或文件夹：a.yaml"
        assert sentence("needs 1.13 GiB, with a margin of 1.7 % 1.15 GiB; 0.13 GiB short") == (
            "需要 1.13 GiB，含 1.7 % 的余量：1.15 GiB；还差 0.13 GiB"
        )
        assert sentence("  bf16 autocast + 8-bit Adam") == "  bf16 自动混合精度 + 8 位 Adam"
        assert sentence("my_model.layers.0") == "my_model.layers.0"
        assert sentence("allocator configuration: 'backend' is native or cudaMallocAsync, not 'x{y}'").endswith(
            "'x{y}'"
        )
    assert sentence("does not fit") == "does not fit"


def test_names_of_modules_stay_as_they_are() -> None:
    with spoken("zh"):
        assert [cell(text) for text in ("model", "  norm", "loss", "gradients", "on the device")] == [
            *("model", "  norm", "loss", "梯度", "设备上")
        ]


def test_errors_and_help_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "nowhere.yaml", "--lang", "zh"]) == 2
    assert capsys.readouterr().err == "vramcast: 没有这个文件或文件夹：nowhere.yaml\n"
    assert main(["predict", "nowhere.yaml", "--lang=zh", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == "no such file or folder: nowhere.yaml"
    with pytest.raises(SystemExit):
        main(["--lang", "zh", "--help"])
    assert "训练任务在一张显卡上占用多少" in capsys.readouterr().out
    for verb in ("predict", "advise", "serve", "sweep"):
        with pytest.raises(SystemExit):
            main([verb, "--lang", "zh", "--help"])
        shown = capsys.readouterr().out
        assert not re.search(r"[a-z]+ (?:the|a|of|which|is) [a-z]+", shown), "English is left"
        options = shown[shown.index("选项") :].splitlines()
        assert max(map(cell_len, options)) <= 80
    with pytest.raises(SystemExit):
        main(["predict", "--gup", "x", "--lang", "zh"])
    assert "无法识别的参数：--gup；是不是想写 --gpu？" in capsys.readouterr().err


def test_the_language_of_a_script_is_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--steps", "2", str(tmp_path / "nowhere.py"), "--lang", "zh"]) == 2
    assert "no such script" in capsys.readouterr().err


def test_what_nobody_translated_stays_as_it_is() -> None:
    with spoken("zh"):
        assert language() == "zh" and say("no such {thing}", thing="message") == "no such message"


def test_what_is_added_to_a_sentence_is_found_too() -> None:
    with spoken("zh"):
        assert (
            sentence("at step 950 of 8,880: 13.2 h left of 14.8 h") == "在 8,880 步中的第 950 步：14.8 h 中还剩 13.2 h"
        )
        assert sentence("at step 950 of 8,880") == "在 8,880 步中的第 950 步"
        assert sentence("in the computer's memory 1.29 GiB: weights 1.29 GiB") == (
            "在主机内存中 1.29 GiB：权重 1.29 GiB"
        )
        assert sentence("batch 16: fewer and larger steps: choose the learning rate anew") == (
            "批大小 16：步数更少、每步更大：请重新选择学习率"
        )
        assert sentence("backward, gradient sync and optimizer") == "反向、梯度同步、优化器"
        assert sentence("job.yaml: sizes.batch: a whole number is needed, not 'x'") == (
            "job.yaml：sizes.batch：需要整数，而不是 'x'"
        )


def test_a_long_text_is_looked_up_clause_by_clause() -> None:
    with spoken("zh"):
        assert sentence("; ".join(["does not fit"] * 400)) == "；".join(["放不下"] * 400)


def test_a_guard_speaks_the_language_of_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    text = "vramcast: train does not fit: needs 30.00 GiB, 23.00 GiB free on RTX 4090 (device 0)\n  weights 20.00 GiB"
    shown = in_the_users_language(text)
    assert shown.startswith("vramcast: train 放不下：需要 30.00 GiB，23.00 GiB 在 RTX 4090 上空闲")
    assert shown.endswith("\n  权重 20.00 GiB")
    monkeypatch.setenv("LC_ALL", "C")
    assert in_the_users_language(text) == text
