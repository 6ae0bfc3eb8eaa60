"""Log lines go to standard error, once."""

from __future__ import annotations

import logging

import pytest

from octavo.obs.log import configure, get_logger


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
