"""Opening the listening socket, first of all, so that a busy port is told before a model is loaded."""

from __future__ import annotations

import errno
import os
import socket
import stat

from octavo.config.server import ServerConfig
from octavo.errors import ConfigError

BACKLOG = 2048


def bind(config: ServerConfig) -> socket.socket:
    """A bound socket, not listening yet and not inherited by child processes. Raises: ConfigError."""
    if config.uds is not None:
        return _bind_unix(config.uds)
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"--host: {config.host!r} is no address of this machine: {error}") from None
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        # Two sockets may be bound to one port; only one may listen. So listen now, and learn now.
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"--port: {config.port} on {config.host} is in use already; allowed: a free one (0 finds it)"
            ) from None
        raise ConfigError(
            f"--host, --port: cannot listen on {config.host} port {config.port}: {error.strerror}"
        ) from None
    return sock


def _bind_unix(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        before = os.umask(0o177)  # only this user may connect
        try:
            sock.bind(path)
        finally:
            os.umask(before)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(f"--uds: cannot listen on {path!r}: {error.strerror or error}") from None
    return sock


def _remove_stale(path: str) -> None:
    """A socket that a dead server left behind is removed; a living one, or anything else, is not."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)


def url(sock: socket.socket, config: ServerConfig) -> str:
    """How to reach it, for people."""
    if config.uds is not None:
        return f"unix:{config.uds}"
    host, port = sock.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{config.root_path}"
