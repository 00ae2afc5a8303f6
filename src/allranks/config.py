"""What the user chose: `[tool.allranks]` of pyproject.toml or allranks.toml, with flags on top."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same module under its old name
    import tomli as tomllib

from .errors import AllranksError
from .faults import GROUPS, catalogue
from .findings import Severity, say

EXCLUDED = (
    ".*",
    "__pycache__",
    "__pypackages__",
    "build",
    "buck-out",
    "dist",
    "env",
    "node_modules",
    "site-packages",
    "venv",
)
"""Names of folders that hold no code of the user's own: passed over unless `exclude` says otherwise."""

PACKAGE_NAMES = ("build", "dist", "env")
"""Those of them that people also use for packages of their own."""

FORMATS = ("text", "json", "sarif", "github")
"""Forms in which `check` and `explain` can print a report."""

FAIL_ON = ("error", "warning", "info", "never")
"""From which severity on findings make the exit status 1."""

LANGUAGES = ("en", "zh")


@dataclass(frozen=True, slots=True)
class Config:
    """The choices of one command. Patterns are gitignore-like and relative to `root`.

    `select` and `ignore` hold slugs, groups or "all"; `per_file_ignores` maps a pattern to slugs or groups.
    `fail_on`, `output_format` and `lang` are None where nothing was chosen: commands have their own defaults.
    """

    root: Path = field(default_factory=Path.cwd)
    select: tuple[str, ...] = ("all",)
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = EXCLUDED
    extend_exclude: tuple[str, ...] = ()
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fail_on: str | None = None
    output_format: str | None = None
    lang: str | None = None

    def wants(self, fault: str, path: Path | None = None) -> bool:
        """True when findings of `fault` are asked for, in the file `path` (absolute) where it is given."""
        if not _covers(self.select, fault) or _covers(self.ignore, fault):
            return False
        return path is None or not any(
            _covers(faults, fault)
            and any(matches(pattern, place, self.root) for place in (path, *path.parents))
            for pattern, faults in self.per_file_ignores.items()
        )

    def excludes(self, path: Path) -> bool:
        """True when the file or folder `path` (absolute) is to be passed over, and all that lies in it."""
        if any(matches(pattern, path, self.root) for pattern in self.extend_exclude):
            return True
        if not any(matches(pattern, path, self.root) for pattern in self.exclude):
            return False
        # `dist` or `build` with an __init__.py is a package of the user's, not what a build left.
        return not (
            path.name in PACKAGE_NAMES and self.exclude is EXCLUDED and (path / "__init__.py").is_file()
        )

    def with_flags(self, **flags: Any) -> Config:
        """This configuration with the flags of a command line over it; None means that a flag was not given.

        Lists replace what the file says, except `extend_exclude`, which adds to it. Raises AllranksError
        `config-invalid` for a slug or value that there is not.
        """
        given = {key: value for key, value in flags.items() if value is not None}
        checked = {key: _value(key.replace("_", "-"), value, "--") for key, value in given.items()}
        for key in {"exclude", "extend_exclude"} & checked.keys():
            # On the command line a path is meant from where the user stands.
            checked[key] = tuple(
                (Path.cwd() / name).as_posix()
                if "/" in name.rstrip("/") and not name.startswith("**")
                else name
                for name in checked[key]
            )
        if "extend_exclude" in checked:
            checked["extend_exclude"] = self.extend_exclude + checked["extend_exclude"]
        return replace(self, **checked)


def load(start: Path) -> Config:
    """The configuration for `start`: of the nearest file upwards that speaks of allranks.

    Without any, the defaults with `start`'s folder as root. Raises AllranksError `config-invalid` for a file
    that cannot be read, an unknown key, slug or value.
    """
    folder = start.resolve()
    if not folder.is_dir():
        folder = folder.parent
    for place in (folder, *folder.parents):
        for name in ("allranks.toml", "pyproject.toml"):
            file = place / name
            if file.is_file():
                table = _table(file)
                if table is not None:
                    return _config(table, file)
    return Config(root=folder)


def read(file: Path) -> Config:
    """The configuration in `file`; a pyproject.toml without `[tool.allranks]` gives the defaults."""
    return _config(_table(file) or {}, file.resolve())


def matches(pattern: str, path: Path, root: Path) -> bool:
    """True when `pattern` means the file or folder `path` (absolute), by gitignore's rules.

    Without a slash it is the name of `path`; with one, the path from `root`, or an absolute path. `*` and `?`
    stop at slashes, `**` does not.
    """
    expression = _expression(pattern)
    if "/" not in pattern.rstrip("/"):
        return expression.fullmatch(path.name) is not None
    if expression.fullmatch(path.as_posix()):
        return True
    if not path.is_relative_to(root):
        return False
    relative = path.relative_to(root).as_posix()
    return bool(expression.fullmatch(relative) or expression.fullmatch(f"/{relative}"))


@lru_cache(maxsize=512)
def _expression(pattern: str) -> re.Pattern[str]:
    """The regular expression of a gitignore-like pattern."""
    special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    out = []
    for part in re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]+\])", pattern.removeprefix("./").rstrip("/")):
        if part in special:
            out.append(special[part])
        elif part.startswith("[") and part.endswith("]"):
            out.append("[^" + part[2:] if part.startswith("[!") else part)
        else:
            out.append(re.escape(part))
    try:
        return re.compile("".join(out), re.DOTALL)
    except re.error:
        return re.compile(re.escape(pattern))


def _covers(names: Iterable[str], fault: str) -> bool:
    known = catalogue().get(fault)
    return any(
        name == "all" or name == fault or (known is not None and name == known.group) for name in names
    )


def _table(file: Path) -> dict[str, Any] | None:
    """The table of allranks in `file`; None when a pyproject.toml has none."""
    try:
        document: dict[str, Any] = tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except (OSError, ValueError) as error:
        if file.name == "pyproject.toml":
            # Someone else's file: a broken one must not stop a check unless it speaks of allranks.
            try:
                if b"tool.allranks" not in file.read_bytes():
                    return None
            except OSError:
                return None
        raise AllranksError(
            "config-invalid",
            say("{file} cannot be read: {error}", file=file, error=error),
            say("it must be a TOML file that can be read"),
        ) from error
    if file.name == "allranks.toml":
        return document
    tool = document.get("tool")
    table = tool.get("allranks") if isinstance(tool, dict) else None
    return table if isinstance(table, dict) else None


KEYS = tuple(name.replace("_", "-") for name in Config.__dataclass_fields__ if name != "root")


def _config(table: Mapping[str, Any], file: Path) -> Config:
    values = {}
    for key, value in table.items():
        name = key.replace("_", "-")
        if name not in KEYS:
            raise _unknown(f"{file}", "key", key, KEYS)
        values[name.replace("-", "_")] = _value(name, value, f"{file}: ")
    return Config(root=file.parent, **values)


def _value(key: str, value: Any, where: str) -> Any:
    """The checked value of `key`; `where` says in which file or that it was a flag."""
    if key in ("select", "ignore"):
        return _slugs(value, key, where)
    if key in ("exclude", "extend-exclude"):
        return _strings(value, key, where)
    if key == "per-file-ignores":
        if not isinstance(value, Mapping):
            raise _wrong(where, key, say("a table of patterns"))
        return {str(pattern): _slugs(slugs, key, where) for pattern, slugs in value.items()}
    choices = {"fail-on": FAIL_ON, "output-format": FORMATS, "lang": LANGUAGES}[key]
    if value not in choices:
        raise _unknown(f"{where}{key}", "value", str(value), choices)
    return value


def _strings(value: Any, key: str, where: str) -> tuple[str, ...]:
    if (
        isinstance(value, str)
        or not isinstance(value, Iterable)
        or not all(isinstance(v, str) for v in value)
    ):
        raise _wrong(where, key, say("a list of strings"))
    return tuple(value)


def _slugs(value: Any, key: str, where: str) -> tuple[str, ...]:
    names = _strings(value, key, where)
    known = ("all", *GROUPS, *catalogue())
    for name in names:
        if name not in known:
            raise _unknown(f"{where}{key}", "fault", name, known)
    return names


def _wrong(where: str, key: str, wanted: Any) -> AllranksError:
    return AllranksError(
        "config-invalid",
        say("{place} must be {wanted}", place=f"{where}{key}", wanted=wanted),
        say('for example: exclude = ["old/"], per-file-ignores = {"tests/**" = ["launch"]}'),
    )


def _unknown(where: str, what: str, name: str, known: Iterable[str]) -> AllranksError:
    """The error for a name that there is not, with the nearest one that there is."""
    names = list(known)
    sentence = {
        "key": say('{place}: there is no key "{name}"', place=where, name=name),
        "value": say(
            '{place}: "{name}" is not one of {known}', place=where, name=name, known=", ".join(names)
        ),
        "fault": say('{place}: there is no fault or group "{name}"', place=where, name=name),
    }[what]
    near = difflib.get_close_matches(name.replace("_", "-").lower(), names, 1, 0.5)
    advice = (
        say('did you mean "{name}"?', name=near[0]) if near else say("see `allranks faults` for their names")
    )
    if what != "fault" and not near:
        advice = say("choose from {known}", known=", ".join(names))
    return AllranksError("config-invalid", sentence, advice)


def severity_at_or_above(severity: Severity | None, fail_on: str) -> bool:
    """True when a report whose worst finding has `severity` must end with status 1 under `fail_on`."""
    return severity is not None and fail_on != "never" and severity.weight >= Severity(fail_on).weight
