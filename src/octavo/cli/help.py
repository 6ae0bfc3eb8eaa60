"""The help page of one command, from its Structs: field docstrings are read from the source, once, when asked."""

from __future__ import annotations

import ast
import inspect
import shutil
import textwrap

import msgspec

from octavo.cli.spec import Flag, Spec

TITLES = {"EngineArgs": "engine", "ServerConfig": "server"}
"""Headings for Structs whose docstring speaks to developers; the others speak for themselves."""


def help_text(spec: Spec, flags: dict[str, Flag]) -> str:
    """The whole page, wrapped to the terminal (72 to 110 columns). A switch that is on by default is shown as what
    turns it off: its docstring begins with a verb."""
    width = min(110, max(72, shutil.get_terminal_size().columns))
    taken = {p.name for p in spec.positionals}
    words = ["usage: octavo", spec.command]
    for p in spec.positionals:
        name = p.shown + ("..." if p.many else "")
        words.append(name if p.required else f"[{name}]")
    parts = [f"{' '.join(words)} [options]", spec.summary]
    docs = {s: field_docs(s) for s in spec.all_structs}
    if spec.positionals:
        rows = [(p.shown, docs[flags[p.name].struct].get(p.name, "")) for p in spec.positionals]
        parts.append(_rows("arguments", rows, width))
    for struct in spec.all_structs:
        own = [f for f in flags.values() if f.struct is struct and f.name not in taken]
        if own:
            title = TITLES.get(struct.__name__) or (inspect.getdoc(struct) or "options").splitlines()[0].rstrip(".")
            parts.append(_rows(title, [(_left(f), _right(f, docs[struct])) for f in own], width))
    if spec.notes:
        parts.append(spec.notes.strip())
    return "\n\n".join(parts) + "\n"


def field_docs(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Field name -> the docstring under it."""
    found: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if base in (object, msgspec.Struct) or not issubclass(base, msgspec.Struct):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        name = None
        for node in body.body if isinstance(body, ast.ClassDef) else []:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name = node.target.id
            elif name and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                found[name] = " ".join(str(node.value.value).split())
                name = None
            else:
                name = None
    return found


def _left(flag: Flag) -> str:
    if flag.type is bool:
        return f"--no-{flag.text[2:]}" if flag.default is True else flag.text
    return f"{flag.text} {flag.placeholder}"


def _right(flag: Flag, docs: dict[str, str]) -> str:
    text = docs.get(flag.name, "")
    if flag.type is bool:
        return f"Do not {text[:1].lower()}{text[1:]}" if flag.default is True else text
    if flag.many:
        text += " (may be repeated)"
    if flag.default is msgspec.NODEFAULT:
        return text + " (required)"
    if flag.default not in (None, (), [], "") and "efault:" not in text:
        text += f" (default: {flag.default})"
    return text


def _rows(title: str, rows: list[tuple[str, str]], width: int) -> str:
    column = min(34, 4 + max(len(left) for left, _ in rows))
    lines = [f"{title}:"]
    for left, right in rows:
        wrapped = textwrap.wrap(right, width - column, break_on_hyphens=False) or [""]
        head = f"  {left}"
        if len(head) + 2 > column:
            lines.append(head)
        else:
            lines.append(f"{head:<{column}}{wrapped.pop(0)}".rstrip())
        lines.extend(" " * column + line for line in wrapped)
    return "\n".join(lines)
