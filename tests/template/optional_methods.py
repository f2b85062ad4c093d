"""The optional part of each specification as comments, made of the specification itself, so that the template cannot say anything else.

``python tests/template/optional_methods.py`` writes them anew.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from pathlib import Path

import accelkit
from accelkit.capabilities import CAPABILITY_KEYS
from accelkit.specs.hooks import HOOK_SPECIFICATIONS

INCLUDED = Path(__file__).parents[2] / "templates" / "accelerator_plugin" / "templates"
WIDTH = 140
BY_HAND = {
    "accelerator": ((accelkit.Accelerator,), {"device_type", "torch_package", "declared_capabilities", "is_simulated", "probe"}),
    "precision": ((accelkit.Precision,), {"required_capabilities", "setup", "convert_output", "forward_context"}),
    "cluster": (
        (accelkit.ClusterEnvironment,),
        {
            *("processes_flag", "nodes_flag", "detect_cluster", "creates_processes_externally", "world_size", "global_rank", "local_rank"),
            *("local_world_size", "node_rank", "num_nodes", "main_address", "main_port"),
        },
    ),
    "strategy": ((accelkit.Strategy,), {"is_distributed", "wrap_module", "unwrap_module", "no_sync", "join"}),
    "hooks": (HOOK_SPECIFICATIONS, {"setup_device", "checkpoint_saved"}),
}
"""The classes of each component, and what its file in the template writes out."""
SET_BY_LOADING = {"name", "plugin"}
OF_THE_SPECIFICATION = {"placement", "exchanged_value", "known", "needs_placement_exchange", "place", "resolve_placement"}
"""What a plugin calls and need not define: how processes tell each other on which machine they are."""


def tree_of(cls: type) -> ast.ClassDef:
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(found, ast.ClassDef)
    return found


def public_names(*classes: type) -> list[str]:
    """Methods and attributes that a plugin may define, in the order of the specification."""
    left_out = SET_BY_LOADING | OF_THE_SPECIFICATION
    names = [_name(node) for cls in classes for node in tree_of(cls).body]
    return [name for name in names if name and not name.startswith("_") and name not in left_out]


def optional_part(component: str) -> str:
    """Everything of the specification that the template leaves out, as comments for the body of a class."""
    classes, written = BY_HAND[component]
    attributes, methods = [], []
    for cls in classes:
        source = textwrap.dedent(inspect.getsource(cls)).splitlines()
        for node in tree_of(cls).body:
            if _name(node) not in {*public_names(cls)} - written:
                continue
            if isinstance(node, ast.AnnAssign):
                attributes += [*_wrapped(f"{_name(node)}: {_meaning(cls, _name(node))}"), *source[node.lineno - 1 : node.end_lineno], ""]
            elif isinstance(node, ast.FunctionDef):
                methods += [*_method(node, source), ""]
    return "\n".join(_commented(line) for line in [*attributes, *methods][:-1]) + "\n"


def capability_keys() -> str:
    """What an accelerator may declare, as comments."""
    keys = {**CAPABILITY_KEYS, "dtype.<name>": "storage and arithmetic, as dtype.bfloat16", "autocast.<name>": "as autocast.bfloat16"}
    return "".join(f"    #     {key}: {meaning}\n" for key, meaning in keys.items())


def files() -> dict[Path, str]:
    made = {INCLUDED / f"{component}_options.txt": optional_part(component) for component in BY_HAND}
    return {**made, INCLUDED / "capability_keys.txt": capability_keys()}


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.FunctionDef):
        return node.name
    return node.target.id if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else ""


def _method(node: ast.FunctionDef, source: list[str]) -> list[str]:
    """The source of a method: its signature, the first paragraph of its docstring, and its body, which is the default.

    Of a specification of hooks: an implementation without a body.
    """
    written = [ast.unparse(one) for one in node.decorator_list]
    decorators = [f"    @{'hookimpl' if one.startswith('hookspec') else one}" for one in written if "hookimpl" not in one]
    docstring = node.body[0]
    signature = [re.sub(r"  # type: ignore.*", "", line) for line in source[node.lineno - 1 : docstring.lineno - 1]]
    lines = [*decorators, *signature]
    first = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
    lines += textwrap.wrap(f'"""{first}"""', WIDTH - 8, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return lines + source[(docstring.end_lineno or 0) : node.end_lineno]


def _meaning(cls: type, name: str) -> str:
    """What the class's docstring says of an attribute."""
    text = " ".join((inspect.getdoc(cls) or "").split("Attributes:")[-1].split())
    found = re.search(rf"\b{name}(?:, \w+)?: (.*?)(?= \w+(?:, \w+)?: [A-Z`]|$)", text)
    found = found or re.search(rf"\b\w+, {name}: (.*?)(?= \w+: [A-Z`]|$)", text)
    assert found, f"{cls.__name__} does not say what {name} is"
    return found[1].partition(" ``name`` and ``plugin``")[0]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH - 8, initial_indent="    # ", subsequent_indent="    # ")


def _commented(line: str) -> str:
    return f"    # {line[4:]}".rstrip() if line.strip() else "    #"


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, "utf-8")
        sys.stdout.write(f"{path.name}: {text.count(chr(10))} lines\n")
