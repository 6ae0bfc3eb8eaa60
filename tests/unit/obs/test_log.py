"""Log lines go to standard error, once."""

from __future__ import annotations

import logging

import pytest

from octavo.obs.log import Seldom, configure, get_logger


@pytest.fixture(autouse=True)
def restore() -> object:
    root = logging.getLogger("octavo")
    handlers, level, propagate = list(root.handlers), root.level, root.propagate
    yield
    root.handlers[:], root.propagate = handlers, propagate
    root.setLevel(level)


def test_one_line_to_stderr_after_configuring_twice(capfd: pytest.CaptureFixture[str]) -> None:
    configure("info")
    configure("info", part="engine")
    get_logger("sched").info("hello")
    get_logger("sched").debug("hidden")
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("hello") == 1 and "[engine] hello" in err and "octavo.sched" in err and "hidden" not in err


def test_what_happens_often_is_told_seldom(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    tell = Seldom(logging.getLogger("octavo.often"), logging.INFO, every=60.0, clock=lambda: now)
    with caplog.at_level(logging.INFO, "octavo"):
        for now in (0.0, 1.0, 59.0, 60.0, 119.0, 500.0, 600.0):
            tell("%d seconds in", now)
    assert caplog.messages == [
        "0 seconds in",
        "60 seconds in (and 2 more like it since the last such line)",
        "500 seconds in (and 1 more like it since the last such line)",
        "600 seconds in",
    ]
