"""What the house rules say of the code, held against the code."""

from __future__ import annotations

import ast
import collections
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import accelkit
from accelkit import errors
from accelkit.bridges import deepspeed as deepspeed_bridge
from accelkit.capabilities import CAPABILITY_KEYS
from accelkit.discovery import device_table
from accelkit.specs.hooks import HOOK_SPECIFICATIONS

ROOT = Path(__file__).parents[2]
SDK, BUILTIN = ROOT / "sdk" / "accelkit", ROOT / "builtin_plugins" / "accelkit_builtin"
FAKE_XPU = ROOT / "builtin_plugins" / "accelkit-fake-xpu" / "src"
PYTHON = sorted([*SDK.rglob("*.py"), *BUILTIN.rglob("*.py")])
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()

LAYERS = [
    {"errors", "gc_pause", "peer_names", "types"},
    {"pytree", "specs"},
    {"discovery", "plugin_manager"},
    {"selection"},
    {"cluster"},
    {"launching", "tracking"},
    {"runtime"},
    {"bridges"},
    {"cli", "__main__"},
]
FACADE = "sdk/accelkit/runtime/runtime.py"
OBJECTS_OF_TORCH = {"_gloo", "loader"}  # attributes that hold an object of torch's
CONFORMANCE = ROOT / "conformance" / "accelkit_conformance"


def layer_of(module: str) -> int | None:
    """Which layer ``accelkit.x.y`` stands in; None for the package itself."""
    part = module.split(".")[1] if "." in module else ""
    return next((number for number, names in enumerate(LAYERS) if part in names), None)


def imports_of(path: Path, *, at_module_level: bool = False) -> set[str]:
    """Modules imported anywhere in a file, or at module level outside ``if TYPE_CHECKING``."""
    tree = ast.parse(path.read_text("utf-8"))
    nodes = ast.walk(tree) if not at_module_level else tree.body
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def relative(paths):
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.mark.parametrize("path", relative(SDK.rglob("*.py")))
def test_imports_point_one_way(path):
    name = "accelkit." + ".".join((ROOT / path).relative_to(SDK).with_suffix("").parts)
    own = layer_of(name)
    for imported in imports_of(ROOT / path):
        other = layer_of(imported) if imported.startswith("accelkit.") else None
        if own is not None and other is not None:
            assert other <= own, f"{path} imports {imported}, which stands above it"
        assert not imported.startswith("accelkit_builtin"), f"{path} imports a built-in plugin"


@pytest.mark.parametrize("path", relative([*SDK.rglob("*.py"), *BUILTIN.rglob("*.py"), *CONFORMANCE.rglob("*.py")]))
def test_child_processes_import_nothing_from_the_current_directory(path):
    for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8"))):
        if isinstance(node, ast.List) and [ast.unparse(item) for item in node.elts[:1]] == ["sys.executable"]:
            option = ast.unparse(node.elts[1])
            assert option not in ("'-m'", "'-c'"), f"{path}:{node.lineno} starts Python with {option}: use children.command, or -P"


@pytest.mark.parametrize("path", relative([*BUILTIN.rglob("*.py"), *FAKE_XPU.rglob("*.py")]))
def test_builtins_import_public_names_only(path):
    bridge = "accelkit.bridges.deepspeed"
    public = {*(f"accelkit.{name}" for name in accelkit.__all__), bridge, *(f"{bridge}.{name}" for name in deepspeed_bridge.__all__)}
    for imported in imports_of(ROOT / path):
        if imported.startswith("accelkit."):
            assert imported in public, f"{path} imports {imported}"


@pytest.mark.parametrize("path", relative(PYTHON))
def test_only_runtime_and_bridges_import_torch_at_module_level(path):
    own = {
        "agent.py",
        "elastic.py",
        "elastic_agent.py",
        "membership.py",
        "rendezvous.py",
    }  # imported when a job is started, on torch's own classes
    divided = {f"builtin_plugins/accelkit_builtin/strategies/{name}.py" for name in ("context_parallel", "context_parallel_attention")}
    if path in divided:  # imported by programs that divide sequences, on torch's own classes
        return
    if not path.startswith(("sdk/accelkit/runtime/", "sdk/accelkit/bridges/")) and not (
        path.startswith("sdk/accelkit/launching/") and Path(path).name in own
    ):
        assert not {name for name in imports_of(ROOT / path, at_module_level=True) if name.partition(".")[0] == "torch"}


def test_the_core_knows_of_conformance_in_one_file_only():
    users = [path for path in SDK.rglob("*.py") if any(name.startswith("accelkit_conformance") for name in imports_of(path))]
    assert relative(users) == ["sdk/accelkit/cli/conformance.py"]


@pytest.mark.parametrize("path", relative(CONFORMANCE.rglob("*.py")))
def test_the_conformance_runner_imports_no_torch(path):
    """The process that runs the suite imports neither torch nor a plugin: only what runs in workers may, and checks do it inside.

    The mutants are subclasses of built-in plugins, which do not import torch.
    """
    folder = path.split("/")[2]
    if folder not in ("oracle", "coverage.py"):
        found = {name.partition(".")[0] for name in imports_of(ROOT / path, at_module_level=True)}
        assert not found & {"torch", "numpy", *(["accelkit_builtin"] if folder != "mutants" else [])}, f"{path} imports {found}"


@pytest.mark.parametrize("path", relative(SDK.rglob("*.py")))
def test_the_core_names_no_device(path):
    devices = device_table.reserved_names() - {"auto", "torch"} | set(device_table.vendors()) | {"ipu", "hip", "rocm"}
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body and isinstance(node.body[0], ast.Expr)
    }
    host_only = {
        "sdk/accelkit/runtime/checkpoints/mapped_tensors.py",  # loads into main memory: torch's word for that is "cpu"
        "sdk/accelkit/bridges/accelerate/accelerator_class.py",  # Accelerator has an argument of that name
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings and node.value in devices:
            assert path in host_only, f"{path}:{node.lineno} names {node.value!r}"
            assert node.value == "cpu"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
            assert node.attr not in devices, f"{path}:{node.lineno} uses torch.{node.attr}"


@pytest.mark.parametrize("path", [path for path in TRACKED if path.endswith((".py", ".c", ".cpp", ".h", ".toml"))])
def test_files_are_small(path):
    if Path(path).name.startswith("expected_failures"):
        return  # a table of facts is as long as they are many
    text = (ROOT / path).read_text("utf-8")
    length = len(text.splitlines())
    if path.endswith(".py") and "{{" not in path:
        length -= lines_of_docstrings(ast.parse(text))  # documentation is not cut to make a file short
    limit = 542 if path == FACADE else 400 if "tests/" in path else 295
    assert length <= limit, f"{path} is long: split it by concept"


def lines_of_docstrings(tree):
    """Return how many lines the docstrings of a module, its classes and its functions have."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    owners = [node for node in ast.walk(tree) if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None]
    return sum(owner.body[0].end_lineno - owner.body[0].lineno + 1 for owner in owners)


def test_no_two_files_of_the_tests_have_the_same_name():
    """pytest imports each as a top-level module, and cannot collect a second one of the same name in one run."""
    names = [Path(path).name for path in TRACKED if path.startswith("tests/") and path.endswith(".py")]
    assert [name for name, count in collections.Counter(names).items() if count > 1] == ["conftest.py"]


@pytest.mark.parametrize("path", relative(SDK.joinpath("runtime").rglob("*.py")))
def test_parts_of_the_runtime_have_no_access_to_each_others_private_attributes(path):
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            owner = node.value
            is_part = isinstance(owner, ast.Attribute) and owner.attr not in OBJECTS_OF_TORCH and ast.unparse(owner.value) == "self"
            assert not is_part, f"{path}:{node.lineno} reads {ast.unparse(node)}"
    for class_ in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        stubs = [node for node in class_.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        assert not stubs, f"{path}: {class_.name} declares methods that another class defines"


def test_the_runtime_only_passes_arguments_on():
    """The facade may be long, because it holds the documentation of every method. Its methods are short."""
    tree = ast.parse((ROOT / FACADE).read_text("utf-8"))
    (runtime,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    for method in runtime.body:
        if isinstance(method, ast.FunctionDef) and method.name != "__init__":
            code = method.body[1:] if ast.get_docstring(method) else method.body
            lines = code[-1].end_lineno - code[0].lineno + 1 if code else 0
            assert lines <= 12, f"Runtime.{method.name} has {lines} lines of code: move them to one of the parts"


def test_every_public_name_is_there_and_documented():
    for name in accelkit.__all__:
        value = getattr(accelkit, name)
        if name != "__version__":
            assert inspect.getdoc(value), f"accelkit.{name} has no docstring"
    assert set(errors.__all__) - {"printable"} <= set(accelkit.__all__), "every error is public"
    assert dir(accelkit) == sorted(accelkit.__all__), "a completion shows names that are imported only when they are used"
    with pytest.raises(AttributeError, match="has no attribute 'nope'"):
        _ = accelkit.nope


def test_every_public_method_is_documented():
    for name in ("Accelerator", "Precision", "ClusterEnvironment", "Strategy", "Runtime", "Capabilities"):
        cls = getattr(accelkit, name)
        for attribute, value in inspect.getmembers(cls):
            if not attribute.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                own = inspect.getdoc(value)
                assert own or attribute in vars(accelkit.Availability), f"{name}.{attribute} has no docstring"


def test_every_error_is_raised_in_a_test():
    tests = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py"))
    for name in errors.__all__:
        if name not in ("printable", "AccelkitError", "PluginError"):
            assert f"raises(accelkit.{name}" in tests or f"raises({name}" in tests, f"no test raises {name}"


def arguments_of_hooks():
    """Every hook's arguments, by its name."""
    functions = [item for specification in HOOK_SPECIFICATIONS for item in vars(specification).items()]
    return {name: list(inspect.signature(one).parameters)[1:] for name, one in functions if hasattr(one, "accelkit_spec")}


def test_every_hook_is_documented_with_its_signature_and_an_example():
    page = (ROOT / "docs" / "vendors" / "hooks.md").read_text("utf-8")
    shown = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        methods = [node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.FunctionDef) and node.decorator_list]
        shown |= {method.name: [argument.arg for argument in method.args.args][1:] for method in methods}
    assert shown == arguments_of_hooks(), "docs/vendors/hooks.md has one example of each hook, with all of its arguments"
    for name, arguments in shown.items():
        assert f"| `{name}({', '.join(arguments)})` |" in page, f"docs/vendors/hooks.md does not describe {name}({', '.join(arguments)})"


def test_importing_accelkit_imports_no_torch_and_no_plugin():
    code = (
        "import sys, accelkit; from accelkit import Accelerator, Availability, Capabilities, Precision, Strategy, hookimpl, register;"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'accelkit_builtin', 'click', 'rich', 'numpy'}))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_list_imports_no_torch_and_no_plugin():
    code = (
        "import sys\nfrom accelkit.cli import main\ntry:\n    main(['list'])\nexcept SystemExit:\n    pass\n"
        "print(sorted(name for name in sys.modules if name.startswith(('torch', 'numpy', 'accelkit_builtin.'))))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "['accelkit_builtin.known_devices']", "the table of devices, which is no plugin"


def test_the_changelog_and_the_package_agree_on_the_version():
    assert f"## {accelkit.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f'version = "{accelkit.__version__}"' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_the_readme_is_true_about_commands():
    readme, makefile = (ROOT / "README.md").read_text("utf-8"), (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"(?:`|\$ )make ([a-z]+)", readme):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"README names make {target}"
    from accelkit.cli import _COMMANDS

    for command in re.findall(r"\$ accelkit ([a-z]+)", readme):
        assert command in _COMMANDS
    for link in re.findall(r"\]\(([a-zA-Z/.-]+)\)", readme):
        assert (ROOT / link).exists(), f"README links to {link}"


def variables_in(sources):
    """Every variable of ours that the code names; a prefix alone is none."""
    code = "\n".join(path.read_text("utf-8") for path in sources)
    return set(re.findall(r"\b(?:ACCELKIT|FAKE_XPU)_[A-Z_]*[A-Z]\b", code))


def variables_on(page):
    """Those in the first cells of its tables."""
    cells = re.findall(r"^\| ((?:`[A-Z_]+`(?:, )?)+) \|", (ROOT / page).read_text("utf-8"), re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`((?:ACCELKIT|FAKE_XPU)_[A-Z_]+)`", cell)}


@pytest.mark.parametrize(
    ("page", "sources"),
    [
        ("docs/cli.md", [*SDK.rglob("*.py"), *BUILTIN.rglob("*.py"), *CONFORMANCE.rglob("*.py")]),
        ("builtin_plugins/accelkit-fake-xpu/README.md", [*FAKE_XPU.rglob("*.py"), *FAKE_XPU.rglob("*.cpp")]),
    ],
)
def test_every_environment_variable_is_documented_and_every_documented_one_is_read(page, sources):
    prefix = "ACCELKIT_" if page == "docs/cli.md" else "FAKE_XPU_"
    assert variables_on(page) == {name for name in variables_in(sources) if name.startswith(prefix)}


def test_every_capability_is_on_a_page_of_the_reference():
    page = (ROOT / "docs" / "reference" / "specifications.md").read_text("utf-8")
    assert [name for name in CAPABILITY_KEYS if f"| `{name}` |" not in page] == []


def test_every_public_name_is_on_a_page_of_the_reference():
    pages = "\n".join(path.read_text("utf-8") for path in (ROOT / "docs" / "reference").glob("*.md"))
    shown = re.findall(r"^\.\. auto(?!module)\w+:: accelkit\.(\w+)$", pages, re.MULTILINE)
    assert sorted(shown) == sorted(accelkit.__all__), "each public name is documented once"
    for bridge in ("lightning", "accelerate"):
        tree = ast.parse((SDK / "bridges" / bridge / "__init__.py").read_text("utf-8"))
        (names,) = [ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)]
        shown = re.findall(rf"^\.\. auto\w+:: accelkit\.bridges\.{bridge}\.(\w+)$", pages, re.MULTILINE)
        assert sorted(shown) == sorted(names)


def test_every_error_is_on_its_page_with_its_exit_code_and_what_to_do():
    page = (ROOT / "docs" / "reference" / "errors.md").read_text("utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")]
    assert sorted((row[0].strip("`"), int(row[1])) for row in rows) == sorted(
        (name, getattr(accelkit, name).exit_code) for name in errors.__all__ if name != "printable"
    )
    assert all(len(row) == 4 and row[2] and row[3] for row in rows)


def test_nothing_refers_to_a_path_outside():
    here = Path(__file__).resolve().relative_to(ROOT)
    for path in TRACKED:
        if path != str(here):
            text = (ROOT / path).read_text("utf-8", "replace")
            assert not re.search(r"(?<![\w./])/(work|root|home|Users)/", text), f"{path} holds a path of some machine"


def test_every_entry_point_is_a_file_of_its_name():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for group, entries in project["entry-points"].items():
        for name, value in entries.items():
            module, _, attribute = value.partition(":")
            if group == "accelkit.conformance":
                assert (Path(importlib.import_module(module).__file__).parent / attribute).exists(), f"{group}: {name} = {value}"
                continue
            assert hasattr(importlib.import_module(module), attribute), f"{group}: {name} = {value}"
            folder = module.split(".")[1]
            assert group == f"accelkit.{folder}"


def test_every_security_test_holds_a_promise_of_the_page_on_security():
    named = re.findall(r"`(test_\w+\.py)`", (ROOT / "docs" / "guides" / "security.md").read_text("utf-8"))
    assert set(named) == {path.name for path in (ROOT / "tests" / "security").glob("test_*.py")}


@pytest.mark.parametrize("path", sorted(BUILTIN.rglob("*.py")), ids=lambda path: str(path.relative_to(BUILTIN)))
def test_errors_about_what_cannot_be_used_name_the_plugin(path):
    """Conformance recognises by the plugin that a package is missing, and does not count it as a failure."""
    calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
    for call in calls:
        if isinstance(call.func, ast.Name) and call.func.id in ("UnavailableError", "UnsupportedError"):
            assert "plugin" in {keyword.arg for keyword in call.keywords}, f"{path.name}:{call.lineno} has no plugin="
