"""Find the private names of torch that Python code uses, from its syntax trees.

A private name begins with one underscore. Names are reported as they are written after imports and aliases are resolved
(``torch._C._x``), or with their class if it derives from one of torch's (``torch.Tensor._x``). Private names of objects of unknown class
are reported without a class (``._x``), unless the file defines the name itself or ``OTHERS`` says whose it is.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

OTHERS = {
    "_exception_queue": "torch_xla's ParallelLoader",
    "_fields": "a namedtuple",
    "_inheriting": "a process of multiprocessing that is being started",
    "_known_attrs": "accelerate.state.PartialState",
    "_copy_recovery_script": "DeepSpeed's engine",
    "_offload_accumulated_param_ids": "DeepSpeed's optimizer",
    "_path": "a distribution of importlib_metadata",
    "_release_preflattened_grad_buffers": "DeepSpeed's optimizer",
    "_release_process_group_references": "DeepSpeed's groups",
    "_tp_plan": "a model of transformers",
}
"""Private names of other packages' objects, and what has them."""

_HINT = "# type: ignore[attr-defined]"


def private_names(path: Path) -> set[str]:
    """Return the private names of torch that a file uses. A name that type checkers do not know (``attr-defined``) counts as private."""
    text = path.read_text("utf-8")
    return set(_File(ast.parse(text), text.splitlines()).names())


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


class _File:
    def __init__(self, tree: ast.Module, lines: list[str]) -> None:
        self._tree, self._lines = tree, lines
        self._imported = dict(_imports(tree))
        for node in ast.walk(tree):  # names that stand for torch's: _work = dist.Work
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.AnnAssign(target=ast.Name(id=name), value=value):
                    if isinstance(value, ast.Attribute) and (dotted := self._dotted(value)):
                        self._imported.setdefault(name, dotted)
        self._own = set(_definitions(tree))

    def names(self) -> Iterator[str]:
        for name in self._imported.values():
            if _is_torch(name):
                yield from self._of_chain(name, "")
        inside = {id(node.value) for node in ast.walk(self._tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(self._tree):
            match node:
                case ast.Attribute() if dotted := self._dotted(node):
                    if _is_torch(dotted) and id(node) not in inside:
                        yield from self._of_chain(dotted, self._lines[node.lineno - 1])
                case ast.Attribute(value=value, attr=attribute) if is_private(attribute) and not _is_self(value):
                    yield from self._of_unknown(attribute)
                case ast.Call(func=ast.Name(id="getattr" | "hasattr" | "setattr"), args=[owner, ast.Constant(value=str(attribute)), *_]):
                    if is_private(attribute) and not _is_self(owner):
                        yield from self._of_unknown(attribute)
                case ast.ClassDef():
                    yield from self._of_bases(node)

    def _of_chain(self, dotted: str, line: str) -> Iterator[str]:
        """Yield a full name up to its last private part, or the whole of it if type checkers do not know it."""
        parts = dotted.split(".")
        private = [index for index, part in enumerate(parts) if is_private(part)]
        if private:
            yield ".".join(parts[: private[-1] + 1])
        elif _HINT in line:
            yield dotted

    def _of_unknown(self, attribute: str) -> Iterator[str]:
        if attribute not in self._own and attribute not in OTHERS and not attribute.startswith("_accelkit"):
            yield f".{attribute}"

    def _of_bases(self, node: ast.ClassDef) -> Iterator[str]:
        """Yield the private members of torch's base classes that a class defines, or uses on ``self``, ``cls`` or ``super()``."""
        bases = [name for base in node.bases if (name := self._dotted(base)) and _is_torch(name)]
        used = {name for item in node.body for name in _defined_by(item)}
        used |= {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute) and _is_self(one.value)}
        for base in bases:
            yield from (f"{base}.{name}" for name in used & _private_members(base))

    def _dotted(self, node: ast.AST) -> str:
        """Return the full name of a chain of attributes that starts at an imported name, or an empty string."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._imported:
            return ""
        return ".".join([self._imported[node.id], *reversed(parts)])


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each imported name with the full name that it stands for."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
                    yield f"{alias.name} ", alias.name  # no name of Python: an import of a private module counts, whatever is used of it
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield from ((alias.asname or alias.name, f"{module}.{alias.name}") for alias in names)


def _definitions(tree: ast.AST) -> Iterator[str]:
    """Yield the private names that a file defines: functions, classes, variables, and attributes that it sets on ``self``."""
    for node in ast.walk(tree):
        yield from _defined_by(node)
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=value, attr=name, ctx=ast.Store()) if _is_self(value):
                yield name


def _defined_by(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement of a class or module defines."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _is_self(node: ast.AST) -> bool:
    match node:
        case ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super")):
            return True
    return False


def _is_torch(dotted: str) -> bool:
    return dotted.partition(".")[0] == "torch"


@functools.cache
def _private_members(dotted: str) -> frozenset[str]:
    """Return the private members of a class of torch and its bases, with the attributes that their code sets on ``self``."""
    module, _, name = dotted.rpartition(".")
    found: set[str] = set()
    for cls in inspect.getmro(getattr(importlib.import_module(module), name)):
        if cls.__module__.partition(".")[0] == "torch":
            found |= set(vars(cls))
            try:
                found |= set(_definitions(ast.parse(textwrap.dedent(inspect.getsource(cls)))))
            except (OSError, TypeError):  # a class in C++
                continue
    return frozenset(filter(is_private, found))
