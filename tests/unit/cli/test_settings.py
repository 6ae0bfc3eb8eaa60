"""Options from a TOML file: what wins over what, and errors that name file, section and key."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from octavo.cli import flags as cli_flags
from octavo.cli import main as entry
from octavo.cli.commands import COMMANDS, spec_of
from octavo.cli.errors import OK, USAGE, UsageError
from octavo.cli.flags import parse
from octavo.cli.spec import Positional, Spec
from octavo.errors import ConfigError
from tests import homes


class Some(msgspec.Struct, frozen=True, kw_only=True):
    """Options."""

    model: str
    level: Literal["low", "high"] = "low"
    width: Literal[8, 16] = 8
    count: int | None = None
    cache_bytes: int = 0
    rate: float = 1.0
    on: bool = True
    name: tuple[str, ...] = ()
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise ConfigError(f"--count: got {self.count}, allowed: 1 or more")


SPEC = Spec("run", "Runs.", (Some,), (Positional("model"),))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default file of a home of the test's own."""
    home = homes.make_home(tmp_path / "home", monkeypatch)
    path = home / ".config/octavo/config.toml"
    path.parent.mkdir(parents=True)
    return path


def read(*words: str) -> Some:
    parsed = parse(SPEC, list(words))
    assert parsed is not None
    found = parsed[Some]
    assert isinstance(found, Some)
    return found


def test_the_command_line_wins_over_the_file_over_all_over_defaults(file: Path) -> None:
    file.write_text(
        '[all]\nthreads = 2\nrate = 3\n[run]\nmodel = "m"\nlevel = "high"\nthreads = 4\n[serve]\nport = 1\n'
    )
    assert read() == Some(model="m", level="high", threads=4, rate=3.0)
    assert read("other", "--level", "low", "--threads=None") == Some(model="other", rate=3.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("width = 16", {"width": 16}),
        ("count = 3", {"count": 3}),
        ('cache-bytes = "2GiB"', {"cache_bytes": 2 << 30}),
        ("cache_bytes = 77", {"cache_bytes": 77}),
        ("rate = 2", {"rate": 2.0}),
        ("on = false", {"on": False}),
        ('name = ["a", "b"]', {"name": ("a", "b")}),
        ('name = "a"', {"name": ("a",)}),
    ],
)
def test_values(text: str, expected: dict[str, Any], file: Path) -> None:
    file.write_text(f"[run]\n{text}\n")
    assert read("m") == Some(model="m", **expected)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[run]\nlevle = 'low'", "[run]: unknown key 'levle'; did you mean level?"),
        ("[run]\nfrobnicate = 1", "[run]: unknown key 'frobnicate'; allowed: model, level"),
        ("[all]\nthraeds = 2", "[all]: unknown key 'thraeds'; did you mean threads?"),
        ("[rnu]\nlevel = 'low'", "got the section [rnu]; did you mean [run]?"),
        ("zzz = 'low'", "got 'zzz' outside a section; allowed: [all], [serve]"),
        ("[run]\nlevel = 'middle'", "[run] level: got 'middle', allowed: low | high"),
        ("[run]\nwidth = '8'", "[run] width: got '8', allowed: 8 | 16"),
        ("[run]\ncount = '3'", "[run] count: got '3', allowed: an integer"),
        ("[run]\ncount = true", "[run] count: got True, allowed: an integer"),
        ("[run]\ncount = 1.5", "[run] count: got 1.5, allowed: an integer"),
        ("[run]\ncount = [1]", "[run] count: got [1], allowed: an integer"),
        ("[run]\ncache-bytes = 'much'", "allowed: a number of bytes"),
        ("[run]\non = 1", "[run] on: got 1, allowed: true or false"),
        ("[run]\nname = [1]", "[run] name: got 1, allowed: a text"),
        ("[run]\nmodel = 3", "[run] model: got 3, allowed: a text"),
        ("[run]\nrate = 1979-05-27", "allowed: a number"),
        ("[run]\nconfig = 'x'", "unknown key 'config'"),
        ("[run\n", "is not TOML"),
        ("[run]\ncount = 0", "--count: got 0, allowed: 1 or more (from "),
    ],
)
def test_mistakes_name_file_section_and_key(text: str, says: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        read("m")
    assert says in str(error.value) and str(file) in str(error.value)


def test_a_range_error_of_the_command_line_does_not_blame_the_file(file: Path) -> None:
    file.write_text("[run]\ncount = 5\n")
    with pytest.raises(ConfigError) as error:
        read("m", "--count", "0")
    assert "from" not in str(error.value)


def test_which_file(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read("m").count is None, "no file is no error"
    file.write_text("[run]\ncount = 1\n")
    assert read("m").count == 1
    (tmp_path / "xdg/octavo").mkdir(parents=True)
    (tmp_path / "xdg/octavo/config.toml").write_text("[run]\ncount = 2\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert read("m").count == 2
    (tmp_path / "own.toml").write_text("[run]\ncount = 3\n")
    monkeypatch.setenv("OCTAVO_CONFIG", str(tmp_path / "own.toml"))
    assert read("m").count == 3
    (tmp_path / "flag.toml").write_text("[run]\ncount = 4\n")
    assert read("m", "--config", str(tmp_path / "flag.toml")).count == 4
    assert read("m", "--config", os.devnull).count is None
    for missing in (["--config", "nothing.toml"], [f"--config={tmp_path}"]):
        with pytest.raises(UsageError, match=r"nothing\.toml: No such file|directory"):
            read("m", *missing)
    monkeypatch.setenv("OCTAVO_CONFIG", str(tmp_path / "gone.toml"))
    with pytest.raises(UsageError, match=r"gone\.toml: No such file"):
        read("m")


def test_a_key_of_another_command_is_said_to_be_its(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("[run]\nmax-queue = 8\n")
    assert entry.main(["run", "m", "hi"]) == USAGE
    assert "[run]: unknown key 'max-queue'; it is an option of octavo serve" in capsys.readouterr().err


def test_all_may_hold_what_other_commands_have(file: Path) -> None:
    file.write_text("[all]\nport = 8080\nthreads = 2\nmax-num-seqs = 8\n")
    assert read("m").threads == 2


def test_forms_of_a_command_share_its_section(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("[bench]\nurl = 'http://x'\nthreads = 3\n")
    assert entry.main(["bench", "kernels", "--print-config"]) == OK
    assert "threads = 3" in capsys.readouterr().out
    file.write_text("[bench]\nulr = 'http://x'\n")
    assert entry.main(["bench", "kernels", "--print-config"]) == USAGE
    assert "did you mean url?" in capsys.readouterr().err


def test_print_config_says_where_each_value_came_from_and_can_be_read_back(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text('[all]\nthreads = 2\n[serve]\nmodel = "a \\"b\\" é"\nport = 8081\napi-key = ["hidden-key"]\n')
    assert entry.main(["serve", "--host", "::1", "--print-config"]) == OK
    text = capsys.readouterr().out
    lines = {line.split()[0]: line for line in text.splitlines()[2:]}
    assert lines["host"].endswith("# command line")
    assert lines["port"].endswith(f"# {file} [serve]")
    assert lines["threads"].endswith(f"# {file} [all]")
    assert lines["block-size"].endswith("# default")
    assert "hidden-key" not in text and "# api-key: set, not shown" in text
    again = tomllib.loads(text)["serve"]
    assert (again["model"], again["port"], again["threads"], again["host"]) == ('a "b" é', 8081, 2, "::1")
    file.unlink()
    (tmp_path / "printed.toml").write_text(text)
    assert entry.main(["serve", "--config", str(tmp_path / "printed.toml"), "--print-config"]) == OK
    assert tomllib.loads(capsys.readouterr().out)["serve"] == {**again, "api-key": []}, "keys are not printed"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_a_file(name: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [name, *{"eval": ["perplexity"], "bench": ["kernels"]}.get(name, [])]
    file.write_text(f"[{name}]\nno-such-key = 1\n")
    assert entry.main(words) == USAGE
    assert f"{file} [{name}]: unknown key 'no-such-key'" in capsys.readouterr().err
    file.write_text(f"[{name}]\n")
    assert entry.main([*words, "--print-config"]) == OK
    assert capsys.readouterr().out.startswith(f"# octavo {name}")
    assert spec_of(name).command.startswith(name)


def test_a_model_in_the_file_stands_for_the_missing_argument(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text('[pull]\nmodel = "no such model"\n')
    assert entry.main(["pull"]) != OK
    assert "'no such model': no such file, directory or model" in capsys.readouterr().err
    assert cli_flags.parse(SPEC, ["m"]) is not None
