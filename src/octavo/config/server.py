"""What a user may wish of the HTTP server. Flag names are vLLM's where the meaning is the same."""

from __future__ import annotations

import ipaddress
from typing import Literal

import msgspec

from octavo.errors import ConfigError


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that shapes the HTTP server and nothing of the engine."""

    host: str = "127.0.0.1"
    """Address to listen on. Any address but loopback needs --api-key or --insecure."""
    port: int = 8000
    """TCP port; 0 takes a free one, which the ready line names."""
    uds: str | None = None
    """Listen on a unix socket (mode 0600) at this path instead of host and port."""
    api_key: tuple[str, ...] = ()
    """Keys that clients must present as `Authorization: Bearer KEY`. Also read from OCTAVO_API_KEY."""
    insecure: bool = False
    """Allow a non-loopback address without a key."""
    allowed_origins: tuple[str, ...] = ()
    """Origins (or *) whose web pages may call this server (CORS). Default: none."""
    root_path: str = ""
    """Path prefix under which a reverse proxy publishes the server."""
    max_body_bytes: int = 8 << 20
    """Largest request body."""
    max_header_bytes: int = 64 << 10
    """Largest request head (request line and headers)."""
    body_timeout: float = 60.0
    """Seconds a client may take to send its head or its body."""
    max_open_requests: int = 8192
    """Requests open at once, waiting or running; one more is a 503 with Retry-After."""
    max_prompts: int = 256
    """Most prompts in one completions request."""
    max_streams: int = 1024
    """Most answers (prompts times n) of one request."""
    max_messages: int = 1024
    """Most messages in a chat request."""
    grace_seconds: float = 30.0
    """After SIGTERM: seconds that open requests have to finish before they are ended with an error."""
    keep_alive_seconds: float = 30.0
    """Seconds an idle connection is kept."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe messages to log. Prompts and answers are never logged."""
    access_log: bool = False
    """One log line a request: method, path, status, seconds."""
    metrics_prefix: str = "octavo:"
    """Prefix of metric names; `vllm:` serves them under the names that vLLM's own Grafana board asks for."""
    isolate_api_keys: bool = False
    """Requests with different API keys never share prefix-cache blocks."""

    def __post_init__(self) -> None:
        def check(ok: bool, name: str, allowed: str) -> None:
            if not ok:
                flag = "--" + name.replace("_", "-")
                raise ConfigError(f"{flag}: got {getattr(self, name)!r}, allowed: {allowed}")

        check(0 <= self.port <= 65535, "port", "0 to 65535")
        check(self.max_body_bytes >= 1024, "max_body_bytes", "1024 or more")
        check(self.max_header_bytes >= 1024, "max_header_bytes", "1024 or more")
        for name in ("max_open_requests", "max_prompts", "max_streams", "max_messages"):
            check(getattr(self, name) >= 1, name, "1 or more")
        check(0 <= self.grace_seconds < 1e6, "grace_seconds", "0 or more seconds")
        for name in ("body_timeout", "keep_alive_seconds"):
            check(0 < getattr(self, name) < 1e6, name, "more than 0 seconds")
        bad_root = self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/"))
        check(not bad_root, "root_path", "empty, or a path that starts with / and does not end with /")
        good = all(c.isascii() and (c.isalnum() or c in "_:") for c in self.metrics_prefix)
        check(good and not self.metrics_prefix[:1].isdigit(), "metrics_prefix", "letters, digits, _ and :")
        # The value of a key never enters a message.
        if any(not key.isprintable() or not key.isascii() or " " in key or not key for key in self.api_key):
            raise ConfigError("--api-key: a key must be printable ASCII without spaces, and not empty")

    def check_exposure(self) -> None:
        """Raises ConfigError where strangers could use the server. Apart from the other checks because keys may still
        come from the environment."""
        if not (self.uds or self.api_key or self.insecure or is_loopback(self.host)):
            raise ConfigError(
                f"--host: got {self.host!r} without a key; anybody who reaches that address could use the server. "
                "Allowed: a loopback address (127.0.0.1), or --api-key KEY, or --insecure if this is meant"
            )


def is_loopback(host: str) -> bool:
    """True for addresses only this machine reaches. Names other than localhost are not resolved: they are not."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
