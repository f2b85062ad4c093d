"""Rules about declarations: attributes of the wrong type, invalid device types, unknown capabilities and dtypes, and missing docstrings."""

from __future__ import annotations

import difflib
import inspect
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Union, get_args, get_origin

from accelkit.capabilities import Capabilities
from accelkit.specs.static_checks.plugin_class import PluginClass, is_method, is_property

_DTYPES = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex128", "complex64", "complex32",
    "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool",
)  # fmt: skip
"""Names of torch's dtypes. Other names are not reported unless they resemble a name in this tuple."""
_ABBREVIATIONS: Mapping[str, str] = {
    "bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32", "fp64": "float64", "double": "float64",
    "long": "int64", "int": "int32", "short": "int16", "i8": "int8", "u8": "uint8", "fp8": "float8_e4m3fn",
}  # fmt: skip
_OF_DTYPES = ("dtype", "autocast")


def wrong_attributes(plugin: PluginClass) -> Iterator[tuple[str, str, str]]:
    """Find attributes of the plugin whose values have the wrong type.

    The right type is that of the attribute or property of the same name in the specification.

    Yields:
        The ``what``, ``why`` and ``hint`` of a ``Finding`` for each mistake. All rules in this package yield such tuples.
    """
    for name, value in plugin.own.items():
        if name not in plugin.specified or is_method(value) or is_property(value) or hasattr(type(value), "__get__"):
            continue
        theirs = plugin.specified[name]
        if is_method(theirs):
            continue
        expected = _type_of(plugin, name)
        if expected is not None and not _is(value, expected):
            shown = _spelt(expected)
            yield f"{plugin.spell(name)} is {value!r:.80} ({type(value).__name__})", f"it must be {shown}", f"write a value of type {shown}"


def wrong_device_type(plugin: PluginClass) -> Iterator[tuple[str, str, str]]:
    """Find an accelerator whose ``device_type`` is not set or is not valid.

    A valid device type is an identifier in lower case, such as ``cuda``.
    """
    found = getattr(plugin.cls, "device_type", None)
    if plugin.kind != "accelerator" or not isinstance(found, str) or (found.isidentifier() and found == found.lower()):
        return
    problem = f"is {found!r}" if found else "is not set"
    hint = 'write the device type of torch.device("acme", 0), such as device_type = "acme"'
    yield f"{plugin.spell('device_type')} {problem}", "torch's device types are identifiers in lower case", hint


def unknown_capabilities(plugin: PluginClass) -> Iterator[tuple[str, str, str]]:
    """Find declared or required capabilities in which the prefix or the dtype is misspelt, such as ``dtype.bf16``.

    Capabilities without a prefix are not examined: if such a capability is unknown, defining or loading the class raises an error.
    """
    for attribute in ("declared_capabilities", "required_capabilities"):
        keys = getattr(plugin.cls, attribute, ())
        for key in keys if isinstance(keys, Capabilities | tuple | list) else ():
            if isinstance(key, str) and (meant := _meant(key)):
                why = "torch has no dtype of that name, or accelkit has no capabilities with that prefix"
                yield f"{plugin.spell(attribute)} contains the unknown capability {key!r}", why, f"did you mean {meant!r}?"


def missing_docstring(plugin: PluginClass) -> Iterator[tuple[str, str, str]]:
    """Find a class without a docstring of its own."""
    if not (vars(plugin.cls).get("__doc__") or "").strip():
        why = "accelkit list shows its first line as the description of the plugin"
        yield f"{plugin.cls.__name__} has no docstring", why, "write one line below the class statement"


def _meant(key: str) -> str:
    prefix, dot, name = key.partition(".")
    if not dot:
        return ""
    if prefix in _OF_DTYPES:
        near = [_ABBREVIATIONS[name]] if name in _ABBREVIATIONS else difflib.get_close_matches(name, _DTYPES, n=1, cutoff=0.8)
        is_known = name in _DTYPES or name.startswith(("float8_", "float4_", "quint", "qint", "bits", "uint", "int"))
        return f"{prefix}.{near[0]}" if near and not is_known else ""
    near = difflib.get_close_matches(prefix, _OF_DTYPES, n=1, cutoff=0.8)
    return f"{near[0]}.{name}" if near else ""


def _type_of(plugin: PluginClass, name: str) -> Any:
    """Return the type that the specification declares for an attribute or property.

    Return None if the type cannot be determined without torch.
    """
    theirs = plugin.specified[name]
    if is_property(theirs):
        return _PROPERTY_TYPES.get(str(inspect.signature(theirs.fget).return_annotation))
    for specification in plugin.specifications:
        if name in inspect.get_annotations(specification):
            try:
                annotation = typing.get_type_hints(specification)[name]
            except NameError:
                return None
            return get_args(annotation)[0] if get_origin(annotation) is ClassVar else annotation
    return None


_PROPERTY_TYPES: Mapping[str, Any] = {"int": int, "bool": bool, "str": str, "str | None": str | None}


def _is(value: object, expected: Any) -> bool:
    origin, arguments = get_origin(expected), get_args(expected)
    if origin in (Union, types.UnionType):
        return any(_is(value, one) for one in arguments)
    if origin is tuple:
        return isinstance(value, tuple | list) and all(_is(one, arguments[0]) for one in value)
    if expected is int and isinstance(value, bool):
        return False
    return isinstance(value, expected) if isinstance(expected, type) else True


def _spelt(expected: Any) -> str:
    return " or ".join(_names(expected))


def _names(expected: Any) -> Iterable[str]:
    if get_origin(expected) in (Union, types.UnionType):
        return [name for one in get_args(expected) for name in _names(one)]
    return ["None" if expected is type(None) else str(expected) if get_origin(expected) else expected.__name__]
