"""`octavo serve`: the OpenAI-compatible server."""

from __future__ import annotations

from octavo.cli.errors import OK
from octavo.cli.flags import parse
from octavo.cli.spec import Positional, Spec
from octavo.config.args import EngineArgs
from octavo.config.server import ServerConfig

NOTES = """\
example: octavo serve smollm2 --port 8080 --max-num-seqs 32
         curl http://127.0.0.1:8080/v1/models
SIGTERM or Ctrl-C drains: open requests finish within --grace-seconds.
"""


SPEC = Spec(
    "serve",
    "Serve a model over an OpenAI-compatible HTTP API.",
    (ServerConfig, EngineArgs),
    (Positional("model"),),
    NOTES,
)


def run(argv: list[str]) -> int:
    parsed = parse(SPEC, argv)
    if parsed is None:
        return OK
    from octavo.engine.spawn import Spawned
    from octavo.kernels.affinity import keep_to

    args, config = parsed[EngineArgs], parsed[ServerConfig]
    keep_to(args.cpus)  # the front half too: servers on different CPUs leave each other alone
    with Spawned(args.executor, args.cpus) as engine:  # before our own half is imported: the engine takes longest
        from octavo.obs.log import configure
        from octavo.server.run import serve

        configure(config.log_level)
        serve(args, config, engine=engine)
    return OK
