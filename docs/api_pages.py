"""API pages out of the packages' `__all__`: a table of the names, then each of them."""

import importlib
import inspect
import pkgutil
from types import ModuleType

import softbeam

ROOT = ("types", "errors", "schedules", "exact")  # modules beside the packages that users import


def doors() -> list[str]:
    """Return the packages that list public names: softbeam itself first."""
    found = pkgutil.iter_modules(softbeam.__path__)
    packages = [f"softbeam.{module.name}" for module in found if module.ispkg]
    return ["softbeam", *(name for name in packages if public(importlib.import_module(name)))]


def public(module: ModuleType) -> list[str]:
    """Return the names that a package lists in `__all__`, without modules (they have pages)."""
    names = getattr(module, "__all__", [])
    return [name for name in names if not inspect.ismodule(getattr(module, name))]


def defined(module: ModuleType) -> list[str]:
    """Return the public classes and functions that a module defines, in its order."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]


def pages() -> dict[str, str]:
    """Return the generated part of each API page, by the name of its file."""
    pages = {file(door): page(door) for door in doors()}
    return pages | {"api-types.md": "\n".join(module_section(f"softbeam.{x}") for x in ROOT)}


def file(door: str) -> str:
    return f"api-{door.removeprefix('softbeam.')}.md"


def page(door: str) -> str:
    """Return a table of a package's names, and what each of them is unless another page says it."""
    lines = [*table(door, public(importlib.import_module(door))), ""]
    return block([*lines, f".. currentmodule:: {door}", "", *entries(door, described(door))])


def described(door: str) -> list[str]:
    """Return the names that the package's own page describes."""
    return [name for name in public(importlib.import_module(door)) if home(door, name) == door]


def module_section(module: str) -> str:
    names = defined(importlib.import_module(module))
    heading = f"## `{module}`\n\n"
    return heading + block([f".. currentmodule:: {module}", "", *entries(module, names)])


def home(door: str, name: str) -> str:
    """Return the page that describes a name: a name of the front door may be a package's."""
    if door != "softbeam":
        return door
    thing = getattr(softbeam, name)
    homes = [x for x in doors()[1:] if name in public(importlib.import_module(x))]
    homes += [f"softbeam.{x}" for x in ROOT]
    modules = [importlib.import_module(x) for x in homes]
    return next((x.__name__ for x in modules if getattr(x, name, None) is thing), door)


def table(door: str, names: list[str]) -> list[str]:
    lines = [".. list-table::", "   :widths: auto", ""]
    for name in names:
        lines.append(f"   * - :py:obj:`{name} <{home(door, name)}.{name}>`")
        lines.append(f"     - {first_line(getattr(importlib.import_module(door), name))}")
    return lines


def first_line(thing: object) -> str:
    """Return the first line of a docstring, with what RST takes for markup escaped."""
    documented = inspect.isclass(thing) or inspect.isroutine(thing)
    text = (inspect.getdoc(thing) or "").split("\n")[0] if documented else ""
    return text.replace("\\", "\\\\").replace("*", "\\*").replace("|", "\\|").replace("`", "``")


def entries(module: str, names: list[str]) -> list[str]:
    lines = []
    for name in names:
        thing = getattr(importlib.import_module(module), name)
        if inspect.isclass(thing):
            lines += [f".. autoclass:: {name}", "   :members:"]
            protocol = getattr(thing, "_is_protocol", False)
            lines += [*(["   :undoc-members:", "   :special-members: __call__"] * protocol), ""]
        else:
            kind = "autofunction" if inspect.isroutine(thing) else "autodata"
            lines += [f".. {kind}:: {name}", *(["   :no-value:"] * (kind == "autodata")), ""]
    return lines


def block(lines: list[str]) -> str:
    text = "\n".join(lines)
    return f"```{{eval-rst}}\n{text}\n```\n"
