"""Tests do not read the settings file of whoever runs them."""

from __future__ import annotations

import os


def pytest_configure() -> None:
    os.environ["OCTAVO_CONFIG"] = os.devnull
