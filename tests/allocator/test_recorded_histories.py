"""The allocator against recordings of PyTorch's own: reserved bytes after every event, and where every block lies.

histories/ holds runs on a real GPU (lab/measuring/record_histories.py); histories_standin/ holds runs of the allocators
of several torch versions on a stand-in for the driver (lab/measuring/standin_cuda).
"""

from pathlib import Path

import pytest

from vramcast.allocator import History, load_history, replay_history

HERE = Path(__file__).parent
ON_GPU = sorted((HERE / "histories").glob("*.json.gz"))
STANDIN = sorted((HERE / "histories_standin").glob("*.json.gz"))


@pytest.mark.parametrize("path", [*ON_GPU, *STANDIN], ids=lambda path: path.name.removesuffix(".json.gz"))
def test_replay_is_exact(path: Path) -> None:
    history = load_history(path)
    report = replay_history(history)
    assert report.mismatch is None, f"{path.name}: {report.mismatch}"
    assert report.stat_differences == {}
    assert report.events == len(history.events)


def test_standins_cover_every_torch_version() -> None:
    versions = {load_history(path).header.torch.rsplit(".", 1)[0] for path in STANDIN}
    assert versions == {"2.11", "2.12", "2.13", "2.14"}


@pytest.mark.parametrize(
    ("recorded", "assumed"), [("2.11", "2.12"), ("2.12", "2.13"), ("2.13", "2.11"), ("2.14", "2.11"), ("2.14", "2.12")]
)
def test_another_versions_tie_rule_is_noticed(recorded: str, assumed: str) -> None:
    history = load_history(HERE / "histories_standin" / f"torch_{recorded}_plain.json.gz")
    mismatch = replay_history(history, torch_version=assumed).mismatch
    assert mismatch is not None
    assert mismatch.what == "the block lies elsewhere"


@pytest.mark.skipif(not ON_GPU, reason="no recordings from a GPU here")
def test_recordings_from_a_gpu_cover_what_matters() -> None:
    histories = [load_history(path) for path in ON_GPU]
    assert len(histories) >= 5
    assert sum(len(history.events) for history in histories) >= 50_000
    assert any("expandable_segments:True" in history.header.conf for history in histories)
    assert any(_ran_into_the_limit(history) for history in histories)


def _ran_into_the_limit(history: History) -> bool:
    stats = history.header.final_stats
    return stats["num_alloc_retries"] > 0 and any(event.action == "oom" for event in history.events)
