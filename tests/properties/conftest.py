"""How many cases: `--hypothesis-profile=thorough` for more, `mutants` for fewer."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

_COMMON = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("usual", max_examples=3000, **_COMMON)
# A mutant only has to fail: nobody reads its smallest example.
settings.register_profile("mutants", max_examples=1000, phases=[Phase.generate], **_COMMON)
settings.register_profile("thorough", max_examples=30000, **{**_COMMON, "derandomize": False})


def pytest_configure(config: object) -> None:
    if not getattr(config, "getoption")("--hypothesis-profile", None):  # noqa: B009 - pytest's Config has no public type
        settings.load_profile("usual")
