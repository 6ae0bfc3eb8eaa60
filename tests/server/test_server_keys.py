"""Keys: which routes need one, how it is compared, who may listen without; and settings that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.config.server import ServerConfig
from octavo.errors import ConfigError
from octavo.server.app import build_app
from octavo.server.auth import Keys
from octavo.server.routes import ROUTES
from tests.fakes import FakeAsyncLLM
from tests.server.harness import call, error_of

TEXT = "/v1/completions"

STRANGE_HOSTS = ["x/y?", "a@b", "a b", "localhost/health", "health", "", "x:99999", "[::1", "127.0.0.1/health?"]
STRANGE_PATHS = [
    "/v1/models", "//v1/models", "/v1//models", "/v1/models/", "/health/", "//health", "/health/../v1/models",
    "/%2e/health",
    "/ping/", "/health?x", "/health;x", "/Health", "/health\x00", "/v1/models/fake", "/./health",
    "/metrics", "/", "/version", "/openapi.json", "", "health", "/healthz", "/health%2f..%2fv1%2fmodels", "\\health",
]  # fmt: skip


def test_every_route_but_health_needs_a_key() -> None:
    llm = FakeAsyncLLM()
    app = build_app(llm, ServerConfig(api_key=("one", "two")))
    for path in [*(route.path for route in ROUTES), *STRANGE_PATHS]:
        for method in ("GET", "POST", "HEAD", "OPTIONS"):
            for host in STRANGE_HOSTS if path in STRANGE_PATHS[:4] else ["x"]:
                reply = call(app, method, path, raw=b'{"prompt":"a"}', headers={"host": host})
                if path in ("/health", "/ping"):
                    assert reply.status in (200, 405)
                else:
                    assert error_of(reply, 401)["code"] == "invalid_api_key", path
    assert not llm.seen


@pytest.mark.parametrize(
    ("given", "good"),
    [
        ("Bearer one", True),
        ("bearer two", True),
        ("Bearer  two ", True),
        ("Basic OnR3bw==", True),  # :two
        ("Basic eDp0d28=", True),  # x:two
        ("Bearer three", False),
        ("Bearer", False),
        ("Bearer onetwo", False),
        ("one", False),
        ("Basic one", False),
        ("Basic dHdv", False),
        ("Token one", False),
        ("Bearer \u00e9", False),
        ("", False),
    ],
)
def test_keys(given: str, good: bool) -> None:
    app = build_app(FakeAsyncLLM(), ServerConfig(api_key=("one", "two")))
    reply = call(app, "GET", "/v1/models", headers={"authorization": given})
    assert reply.status == (200 if good else 401)
    if not good:
        assert given not in reply.body.decode() or len(given) < 7
        assert "www-authenticate" in reply.headers


def test_comparison_is_constant_time_over_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    import hmac

    seen = []
    real = hmac.compare_digest

    def compare(a: bytes, b: bytes) -> bool:
        seen.append((len(a), len(b)))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    Keys(["a", "b" * 500, "c"]).check(b"Bearer a")
    assert seen == [(32, 32)] * 3


def test_keys_can_be_kept_apart_in_the_cache() -> None:
    salts = []
    for isolate in (False, True):
        for key in ("one", "two"):
            for salt in (None, "s"):
                llm = FakeAsyncLLM()
                app = build_app(llm, ServerConfig(api_key=("one", "two"), isolate_api_keys=isolate))
                call(app, "POST", TEXT, {"prompt": "x", "cache_salt": salt}, headers={"authorization": f"Bearer {key}"})
                salts.append(llm.seen[0][3])
    assert salts[:4] == [None, "s", None, "s"]
    assert len(set(salts[4:])) == 4 and None not in salts[4:] and not any("one" in (s or "") for s in salts)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com", ""])
def test_open_addresses_need_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match="--insecure"):
        ServerConfig(host=host).check_exposure()
    ServerConfig(host=host, insecure=True).check_exposure()
    ServerConfig(host=host, api_key=("k",)).check_exposure()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    ServerConfig(host=host).check_exposure()


@pytest.mark.parametrize(
    "bad",
    [{"port": -1}, {"port": 70000}, {"root_path": "x"}, {"root_path": "/x/"}, {"metrics_prefix": "a b"},
     {"api_key": ("",)}, {"api_key": ("a b",)}, {"max_body_bytes": 0}, {"body_timeout": 0}, {"grace_seconds": -1}],
)  # fmt: skip
def test_bad_settings(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--"):
        ServerConfig(**bad)
