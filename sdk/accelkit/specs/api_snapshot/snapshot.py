"""Record of a version of accelkit: signatures, types and default values in the classes that plugins implement, receive or create.

``python -m accelkit.specs.api_snapshot.snapshot`` writes the record of this version to the folder of this file. A test compares it with
the code, so that no specification changes unnoticed. The record of a released version never changes: to record changed specifications,
increase the version first. With the option ``--released 2027-01-31``, the command also marks the version as released on that day.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from packaging.version import InvalidVersion, Version

from accelkit import __version__, untrusted_json
from accelkit.capabilities import Capabilities
from accelkit.errors import UsageError
from accelkit.job_types import ClusterDetection, RuntimeState
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.cluster import ClusterEnvironment
from accelkit.specs.engine_strategy import EngineSettings, EngineStrategy
from accelkit.specs.hooks import HOOK_SPECIFICATIONS
from accelkit.specs.precision import Precision
from accelkit.specs.strategy import Strategy
from accelkit.types import Availability

SCHEMA = "accelkit.spec/1"
FOLDER = Path(__file__).parent

Role = Literal["accelerator", "precision", "cluster", "strategy", "hooks", "made", "given"]
"""How a plugin uses a specification: it subclasses the specification (the role is then the plugin's kind), implements its hooks, creates
instances of the class (``made``), or receives such instances from accelkit (``given``)."""

Record = dict[str, Any]
"""A dict with ``schema``, ``version``, ``released`` (a date, empty before the release) and ``specifications``.

``specifications`` maps names to a ``role`` and ``members``. Each member has a ``form``. Callables also have ``parameters`` and
``returns``; attributes and fields have a ``type``. Members without a default have no key ``default``, and false values are left out.
"""

SPECIFICATIONS: Mapping[type, Role] = {
    Accelerator: "accelerator",
    Precision: "precision",
    ClusterEnvironment: "cluster",
    Strategy: "strategy",
    EngineStrategy: "strategy",
    **dict.fromkeys(HOOK_SPECIFICATIONS, "hooks"),
    Availability: "made",
    Capabilities: "made",
    ClusterDetection: "made",
    EngineSettings: "given",
    RuntimeState: "given",
}

_OWN_PACKAGE = "accelkit."
_WRAPPERS: Mapping[type, str] = {classmethod: "classmethod", staticmethod: "staticmethod", property: "property"}


def record(specifications: Mapping[type, Role] = SPECIFICATIONS, version: str = __version__, released: str = "") -> Record:
    """Create the record of a version. Does not import torch.

    Args:
        specifications: The classes to record, with their roles. The default is all specifications of the running version of accelkit.
        version: The version. Only its base version is recorded, such as ``1.2.0`` for ``1.2.0.dev3``.
        released: The release date, as ``YYYY-MM-DD``. Empty before the release.
    """
    found = {
        cls.__name__: {"role": role, "members": members([one for one in cls.__mro__ if one is cls or _is_unrecorded(one)])}
        for cls, role in specifications.items()
    }
    return {"schema": SCHEMA, "version": Version(version).base_version, "released": released, "specifications": found}


def _is_unrecorded(base: type) -> bool:
    """Return whether a base class belongs to accelkit but has no record of its own.

    The members of such a base class are included in the record of its subclass.
    """
    return base.__module__.startswith(_OWN_PACKAGE) and base not in SPECIFICATIONS


def definitions(cls: type, specification: type) -> dict[str, Any]:
    """Return what a plugin's class adds or overrides. What the class only inherits from its specification is left out.

    Returns:
        A dict with the class's ``members``, the names that its code ``mentions``, and the names of the ``specifications`` that it
        subclasses.
    """
    own = [one for one in cls.__mro__ if one not in (object, *specification.__mro__, *SPECIFICATIONS)]
    return {
        "members": members(own, cls.__mro__),
        "mentions": sorted({name for one in own for name in _mentioned(one)}),
        "specifications": [one.__name__ for one in cls.__mro__ if one in SPECIFICATIONS],
    }


def members(classes: list[type], inherited: tuple[type, ...] = ()) -> dict[str, Any]:
    """Return the public members of a class, by name. ``__init__`` is included too, unless the class is a dataclass with fields.

    Args:
        classes: The class and those of its bases whose members are included, in the order of ``__mro__``.
        inherited: Further bases. A method also counts as a hook if the method of the same name in one of these bases is marked as a hook.
    """
    found: dict[str, Any] = {}
    for cls in reversed(classes):
        fields = {field.name: field for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}
        annotations = inspect.get_annotations(cls)
        for name in dict.fromkeys([*annotations, *vars(cls)]):
            if name in fields:
                found[name] = _field(fields[name])
            elif not name.startswith("_") or (name == "__init__" and not fields):
                is_hook = any(hasattr(_function(vars(one).get(name)), "accelkit_impl") for one in (cls, *inherited))
                found[name] = _member(vars(cls).get(name, inspect.Parameter.empty), annotations.get(name, inspect.Parameter.empty)) | _if(
                    is_hook=is_hook
                )
    return found


def _member(value: Any, annotation: object) -> dict[str, Any]:
    function = _function(value)
    if not inspect.isfunction(function):
        return {"form": "attribute", **_if(type=_spelled(annotation)), **_default(value)}
    specified = getattr(function, "accelkit_spec", None)
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[0 if isinstance(value, staticmethod) else 1 :]
    return {
        "form": "hook" if specified is not None else next((form for kind, form in _WRAPPERS.items() if isinstance(value, kind)), "method"),
        "parameters": [_parameter(one) for one in parameters],
        "returns": _spelled(signature.return_annotation),
        **_if(
            is_required=getattr(function, "__isabstractmethod__", False), is_first_result=specified is not None and specified["firstresult"]
        ),
    }


def _parameter(parameter: inspect.Parameter) -> dict[str, Any]:
    is_plain = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    kind = "" if is_plain else parameter.kind.name.lower()
    return {"name": parameter.name, **_if(kind=kind, type=_spelled(parameter.annotation)), **_default(parameter.default)}


def _field(field: dataclasses.Field[Any]) -> dict[str, Any]:
    if field.default_factory is not dataclasses.MISSING:
        return {"form": "field", "type": _spelled(field.type), **_default(field.default_factory())}
    value = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
    return {"form": "field", "type": _spelled(field.type), **_default(value)}


def _spelled(annotation: object) -> str:
    """Return an annotation as it is written in the code, such as ``ClassVar[str]``, or "" if there is none.

    In a module without ``from __future__ import annotations``, annotations are not strings, and ``inspect.formatannotation`` formats them.
    """
    if annotation is inspect.Parameter.empty:
        return ""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(value: Any) -> dict[str, str]:
    return {} if value is inspect.Parameter.empty else {"default": repr(value)}


def _if(**entries: Any) -> dict[str, Any]:
    return {name: value for name, value in entries.items() if value}


def _function(value: Any) -> Any:
    return value.fget if isinstance(value, property) else getattr(value, "__func__", value)


def _mentioned(cls: type) -> Iterator[str]:
    codes = [function.__code__ for value in vars(cls).values() if inspect.isfunction(function := _function(value))]
    while codes:
        code = codes.pop()
        yield from code.co_names
        codes += [constant for constant in code.co_consts if inspect.iscode(constant)]


def write(path: Path, released: str = "") -> None:
    """Write the record of the running version of accelkit.

    Args:
        path: The file. If it contains the record of a released version, its release date is kept.
        released: The release date, as ``YYYY-MM-DD``. Empty before the release.

    Raises:
        UsageError: If the file contains the record of a released version, and the record would change.
    """
    before = json.loads(path.read_text("utf-8")) if path.exists() else {"released": ""}
    made = record(released=before["released"] or released)
    if before["released"] and before != made:
        raise UsageError(
            f"accelkit {before['version']} was released on {before['released']}, and the specifications have changed since",
            why="the record of a released version stays as it is",
            hint="raise the version first, in pyproject.toml and accelkit/__init__.py",
        )
    path.write_text(json.dumps(made, indent=1) + "\n", "utf-8")


def read(old: str) -> Record:
    """Read a record of the specifications, either one that accelkit includes or one in a JSON file.

    Args:
        old: The version of an included record (``0.1.0``, ``0.1``), or the path of the JSON file.

    Raises:
        UsageError: If there is no such record, or if the record cannot be read.
    """
    path = Path(old) if old.endswith(".json") else _path_of(old)
    try:
        found: Record = untrusted_json.parse(path.read_text("utf-8"))
        if found["schema"] != SCHEMA:
            raise ValueError(f"its schema is {found['schema']!r}, not {SCHEMA!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} is not a record of specifications", why=f"{type(error).__name__}: {error}", hint=_what_there_is()
        ) from error
    return found


def _path_of(version: str) -> Path:
    """Return the path of the record that accelkit includes for a version. ``1.2.0.dev3`` has the same record as ``1.2.0``.

    Raises:
        UsageError: If accelkit includes no record for the version, or if ``version`` is not a valid version.
    """
    try:
        return next(path for path in _carried() if Version(path.stem) == Version(Version(version).base_version))
    except (StopIteration, InvalidVersion):
        what = f"no specifications of accelkit {version!r} are recorded"
        raise UsageError(what, why="accelkit has no record of this version", hint=_what_there_is()) from None


def _carried() -> list[Path]:
    return sorted(FOLDER.glob("*.json"), key=lambda path: Version(path.stem))


def _what_there_is() -> str:
    return f"give {', '.join(path.stem for path in _carried())}, or the .json file of one"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m accelkit.specs.api_snapshot.snapshot")
    parser.add_argument(
        "--released", default="", metavar="DATE", help="mark the version as released on this date; its record is then final"
    )
    parser.add_argument(
        "path", nargs="?", type=Path, default=FOLDER / f"{Version(__version__).base_version}.json", help="the file to write"
    )
    arguments = parser.parse_args()
    write(arguments.path, arguments.released)
    sys.stdout.write(f"{arguments.path.name}\n")
