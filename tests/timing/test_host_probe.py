"""The single calls that say how fast a host is, on the virtual card."""

from __future__ import annotations

import pytest

from vramcast.timing.host import host_factor, packaged_calls


def test_a_hosts_factor_is_the_geometric_mean_over_the_kinds_that_are_known() -> None:
    calls = packaged_calls()
    assert host_factor(calls) == pytest.approx(1.0)
    assert host_factor({"view": 2 * calls["view"], "module": 8 * calls["module"], "no such": 1.0}) == pytest.approx(4.0)
    slower, faster = ({kind: by * seconds for kind, seconds in calls.items()} for by in (1.8, 0.8))
    assert host_factor(slower, faster) == pytest.approx(1.2)
    assert host_factor() is None and host_factor({}) is None and host_factor({}, slower) == pytest.approx(1.8)


def test_every_kind_is_timed_and_nothing_stays_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    import vramcast
    from vramcast.measure.calibration import host

    monkeypatch.setattr(host, "_REPEATS", 1)
    with vramcast.virtual_gpu("h200"):
        every = host.host_costs()
        workspaces = torch.cuda.memory_allocated()
        quick = host.quick_host_costs()
        assert torch.cuda.memory_allocated() == workspaces
    assert set(quick) == set(host.QUICK_KINDS) and all(seconds > 0 for seconds in quick.values())
    assert set(every) == set(packaged_calls())
