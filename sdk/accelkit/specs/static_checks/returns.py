"""The rule about the values that methods return.

The rule reads the return annotation and the source of the method, and does not run the method. It reports a method in two cases: the return
annotation is a built-in type that the specification does not allow, or a returned value certainly has such a type, as in ``return None`` in
a method that has to return a module.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from accelkit.specs.static_checks.hook_methods import specified_hooks
from accelkit.specs.static_checks.plugin_class import PluginClass, function_of

_TRANSPARENT = ("property", "cached_property", "classmethod", "staticmethod", "hookimpl", "override", "abstractmethod", "no_type_check")
"""The decorators that do not change what a function returns."""
_BUILTIN = ("str", "int", "bool", "float", "dict", "list", "tuple", "set", "bytes", "None")
_ALSO: Mapping[str, tuple[str, ...]] = {
    "int": ("int", "bool"),
    "float": ("float", "int"),
    "list": ("list", "tuple"),
    "Sequence": ("list", "tuple"),
    "Mapping": ("dict",),
}
"""The built-in types that are accepted for a type of the specification. For a type that is not listed, only the type itself is accepted."""
_DISPLAYS: Mapping[type[ast.expr], str] = {
    ast.JoinedStr: "str", ast.Dict: "dict", ast.DictComp: "dict", ast.List: "list", ast.ListComp: "list", ast.Tuple: "tuple",
    ast.Set: "set", ast.SetComp: "set",
}  # fmt: skip
_READING = ("os.environ.get", "os.getenv", "self.environ.get", "environ.get")
_READ = ("os.environ", "self.environ", "environ")


def wrong_results(plugin: PluginClass) -> Iterator[tuple[str, str, str]]:
    """Find methods and properties whose results have a built-in type that the specification does not allow.

    A result is reported only if its type is certain. If the plugin annotates a method with a built-in return type that the specification
    does not allow, only this annotation is reported, and the ``return`` statements are not examined.
    """
    for name, mine in plugin.own.items():
        theirs = plugin.specified.get(name, specified_hooks().get(name))
        specified, function = function_of(theirs), function_of(mine)
        if not inspect.isfunction(specified) or not inspect.isfunction(function):
            continue
        expected = inspect.signature(specified).return_annotation
        if not isinstance(expected, str) or expected in ("None", "Any"):
            continue
        accepted = _accepted(expected)
        annotated = inspect.signature(function).return_annotation
        annotated = annotated if isinstance(annotated, str) else getattr(annotated, "__name__", "")
        if annotated in _BUILTIN and annotated not in accepted:
            why = f"its annotation says that it returns {annotated}, and the specification has {expected}"
            yield f"{plugin.spell(name)} returns {annotated}", why, _hint(expected, annotated)
        elif node := _definition(function):
            for returned in sorted(_returned_types(node, plugin.cls) - accepted):
                shown = "None" if returned == "None" else f"a {returned}"
                where = f"line {node.lineno} of {function.__code__.co_filename.replace(chr(92), '/').rpartition('/')[2]}"
                yield f"{plugin.spell(name)} returns {shown}", f"the specification has {expected} ({where})", _hint(expected, returned)


def _hint(expected: str, returned: str) -> str:
    if returned == "None":
        what = {"T": "the data", "torch.nn.Module": "the module"}.get(expected, f"a value of type {expected}")
        return f"return {what} in every case"
    if expected.startswith("int") and returned == "str":
        return 'convert it: int(...), or self.number("VARIABLE"), whose error names the variable'
    return f"return a value of type {expected}"


def _accepted(expected: str) -> set[str]:
    """Return the names of the types that a result may have if the return annotation in the specification is ``expected``."""
    if expected == "T":
        return set(_BUILTIN) - {"None"}
    found: set[str] = set()
    for part in expected.split("|"):
        name = part.strip().partition("[")[0].rpartition(".")[2]
        found |= set(_ALSO.get(name, (name,)))
    return found


def _returned_types(node: ast.FunctionDef, cls: type) -> set[str]:
    """Return the names of the built-in types of the values that the function returns. Types that are not certain are left out."""
    statements = list(_own_statements(node.body))
    if any(isinstance(one, ast.Yield | ast.YieldFrom) for one in statements):
        return set()
    returns = [one for one in statements if isinstance(one, ast.Return)]
    found = {name for one in returns for name in _types_of(one.value)}
    if not any(one.value is not None for one in returns) and _can_reach_the_end(node.body, cls):
        found.add("None")
    return found


def _types_of(value: ast.expr | None) -> set[str]:
    """Return the names of the known built-in types of an expression's value. The set is empty if no type is known.

    Reading an environment variable with ``get`` or ``getenv`` gives two types: ``str`` if the variable is set, and otherwise the default's
    type. If there is no default, only ``str`` is returned, because the plugin may know that the variable is set.
    """
    if value is None:
        return {"None"}
    if isinstance(value, ast.Constant):
        return {"None" if value.value is None else type(value.value).__name__}
    if isinstance(value, ast.Subscript):
        return {"str"} if ast.unparse(value.value) in _READ else set()
    if isinstance(value, ast.Call):
        called = ast.unparse(value.func)
        if called in _READING:
            defaults = [*value.args[1:2], *(keyword.value for keyword in value.keywords if keyword.arg == "default")]
            return {"str"}.union(*map(_types_of, defaults))
        return {called} & set(_BUILTIN)
    found = _DISPLAYS.get(type(value))
    return {found} if found else set()


def _own_statements(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield all nodes of a function's body, except those of functions and classes inside it."""
    for node in nodes:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _own_statements(ast.iter_child_nodes(node))


def _can_reach_the_end(body: list[ast.stmt], cls: type) -> bool:
    """Return whether execution can run past the last statement of a block. If this is uncertain, return False.

    Statements before the last one are not examined.
    """
    last = body[-1]
    if isinstance(last, ast.Raise | ast.While | ast.Assert | ast.Try | ast.TryStar | ast.Match | ast.Return | ast.Continue | ast.Break):
        return False
    if isinstance(last, ast.If):
        return not last.orelse or _can_reach_the_end(last.body, cls) or _can_reach_the_end(last.orelse, cls)
    if isinstance(last, ast.For | ast.AsyncFor):
        return not last.orelse or _can_reach_the_end(last.orelse, cls)
    if isinstance(last, ast.With):
        return _can_reach_the_end(last.body, cls)
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return not _never_returns(ast.unparse(last.value.func), cls)
    return True


def _never_returns(called: str, cls: type) -> bool:
    function = getattr(cls, called.removeprefix("self."), None) if called.startswith("self.") else None
    annotation = str(getattr(function, "__annotations__", {}).get("return", ""))
    return called in ("sys.exit", "exit", "os._exit", "os.abort") or annotation.endswith(("NoReturn", "Never"))


def _definition(function: Any) -> ast.FunctionDef | None:
    """Return the syntax tree of a function's definition.

    The result is None if the source is missing, or if the function is abstract or has a decorator that may change what a call returns.
    """
    code = function.__code__
    node = _definitions(code.co_filename).get((code.co_firstlineno, function.__name__))
    if node is None or hasattr(function, "__wrapped__") or getattr(function, "__isabstractmethod__", False):
        return None
    names = [ast.unparse(one).partition("(")[0].rpartition(".")[2] for one in node.decorator_list]
    return node if all(name in _TRANSPARENT for name in names) else None


@functools.cache
def _definitions(filename: str) -> Mapping[tuple[int, str], ast.FunctionDef]:
    """Return the syntax trees of the functions in a file.

    The key of a function is its first line (the line of the first decorator, if there is one) and its name.
    """
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return {(min([node.lineno, *(one.lineno for one in node.decorator_list)]), node.name): node for node in found}
