"""Mistakes that vendors make in a plugin: one source each, and what the finding or error must say.

To add a mistake, add an entry to ``MISTAKES``.
"""

from __future__ import annotations

import dataclasses
import textwrap

ACCELERATOR = """
class Plugin(Accelerator):
    "An accelerator."
    device_type = "cpu"
    is_simulated = True

    @classmethod
    def probe(cls):
        return Availability.usable()
"""


def accelerator(body: str) -> str:
    return ACCELERATOR + textwrap.indent(textwrap.dedent(body), "    ")


def plugin(base: str, body: str) -> str:
    return f'class Plugin({base}):\n    "A plugin."\n' + textwrap.indent(textwrap.dedent(body), "    ")


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A mistake of a vendor.

    Attributes:
        name: The name of the plugin; its distribution is ``vendor-<name>``.
        kind: The kind of the plugin.
        source: The module of the plugin, below imports of accelkit's public names.
        says: What the finding or error must say about the mistake.
        hint: What it must advise.
        group, value: The entry point's group and value, if they are not the ordinary ones.
    """

    name: str
    kind: str
    source: str
    says: str
    hint: str
    group: str = ""
    value: str = ""


GROUPS = {
    "accelerator": "accelkit.accelerators",
    "precision": "accelkit.precisions",
    "cluster": "accelkit.clusters",
    "strategy": "accelkit.strategies",
    "hooks": "accelkit.hooks",
}

MISTAKES = [
    # -- accelerators -------------------------------------------------------------------------------------------------
    Mistake(
        "misspelt", "accelerator", accelerator("def setup_devices(self, device): pass"), "Plugin.setup_devices is unknown", "'setup_device'"
    ),
    Mistake(
        "memmory",
        "accelerator",
        accelerator("def memmory_stats(self, device): return {}"),
        "Plugin.memmory_stats is unknown",
        "'memory_stats'",
    ),
    Mistake("attribute", "accelerator", accelerator("torch_pakage = 'torch_acme'"), "Plugin.torch_pakage is unknown", "'torch_package'"),
    Mistake(
        "lightnings",
        "accelerator",
        plugin("Accelerator", "device_type = 'cpu'\n@staticmethod\ndef is_available(): return True"),
        "Plugin.is_available is unknown",
        "'probe'",
    ),
    Mistake(
        "instance_probe",
        "accelerator",
        plugin("Accelerator", "device_type = 'cpu'\ndef probe(self): return Availability.usable()"),
        "Plugin.probe is not a classmethod",
        "@classmethod",
    ),
    Mistake(
        "coroutine", "accelerator", accelerator("async def load(self): pass"), "Plugin.load is a coroutine", "instead of async def load"
    ),
    Mistake(
        "no_device_type",
        "accelerator",
        plugin("Accelerator", "is_simulated = True"),
        "Plugin.device_type is not set",
        'device_type = "acme"',
    ),
    Mistake("upper_case", "accelerator", plugin("Accelerator", "device_type = 'ACME'"), "Plugin.device_type is 'ACME'", "device_type"),
    Mistake("dtype_object", "accelerator", plugin("Accelerator", "device_type = 3"), "Plugin.device_type is 3 (int)", "str"),
    Mistake("bool_text", "accelerator", accelerator("is_simulated = 'no'"), "Plugin.is_simulated is 'no' (str)", "bool"),
    Mistake(
        "flag_method",
        "accelerator",
        accelerator("def process_group_backend(self): return 'accl'"),
        "Plugin.process_group_backend is a method",
        "process_group_backend = ",
    ),
    Mistake(
        "capability",
        "accelerator",
        accelerator("declared_capabilities = Capabilities.declare(native=['steams'])"),
        "unknown capability 'steams'",
        "'streams'",
    ),
    Mistake(
        "dtype_name",
        "accelerator",
        accelerator("declared_capabilities = Capabilities.declare(native=['dtype.bf16'])"),
        "unknown capability 'dtype.bf16'",
        "'dtype.bfloat16'",
    ),
    Mistake(
        "capability_list",
        "accelerator",
        accelerator("declared_capabilities = ['dtype.float32']"),
        "declared_capabilities is a list",
        "docs/plugins.md",
    ),
    Mistake(
        "device_count",
        "accelerator",
        accelerator("def auto_device_count(self): return '2'"),
        "Plugin.auto_device_count returns a str",
        "int",
    ),
    Mistake(
        "no_answer",
        "accelerator",
        plugin("Accelerator", "device_type = 'cpu'\n@classmethod\ndef probe(cls):\n    Availability.usable()"),
        "Plugin.probe returns None",
        "Availability",
    ),
    Mistake("constructor", "accelerator", accelerator("def __init__(self, board): pass"), "Plugin.__init__ needs arguments", "default"),
    Mistake("imports_torch", "accelerator", "import torch\n" + accelerator(""), "importing the plugin imports torch", "move import torch"),
    Mistake(
        "library",
        "accelerator",
        "import ctypes; ctypes.CDLL('libacme.so.7')",
        "libacme.so.7: cannot open shared object file",
        "install the missing library libacme.so.7",
    ),
    Mistake(
        "symbol",
        "accelerator",
        "raise ImportError('torch_acme.so: undefined symbol: _ZN3c10')",
        "undefined symbol",
        "another version of torch",
    ),
    Mistake(
        "server",
        "accelerator",
        "import socket; socket.create_connection(('127.0.0.1', 9), 1)",
        "Connection refused",
        "a server that the device needs does not respond",
    ),
    Mistake("package", "accelerator", "import torch_acme_sdk", "No module named 'torch_acme_sdk'", "provides the module torch_acme_sdk"),
    Mistake("wrong_class", "accelerator", "class Plugins(Accelerator): pass", "has no attribute 'Plugin'", "did you mean 'Plugins'?"),
    Mistake(
        "not_a_plugin",
        "accelerator",
        "class Plugin: pass",
        "Plugin is a class whose bases are builtins.object",
        "must refer to a subclass of accelkit.Accelerator",
    ),
    # -- precisions ---------------------------------------------------------------------------------------------------
    Mistake(
        "nothing",
        "precision",
        plugin("Precision", "def convert_module(self, module):\n    module.half()"),
        "Plugin.convert_module returns None",
        "return the module",
    ),
    Mistake(
        "inputs",
        "precision",
        plugin("Precision", "def convert_inputs(self, data): return data"),
        "Plugin.convert_inputs is unknown",
        "'convert_input'",
    ),
    Mistake(
        "step",
        "precision",
        plugin("Precision", "def optimizer_step(self, optimizer, closure=None): return closure()"),
        "Plugin.optimizer_step has no argument 'step'",
        "take step too",
    ),
    Mistake(
        "keyword_only",
        "precision",
        plugin("Precision", "def optimizer_step(self, optimizer, *, step, closure=None): return step()"),
        "Plugin.optimizer_step takes 'step' only as a keyword argument",
        "remove the *",
    ),
    Mistake(
        "generator",
        "precision",
        plugin("Precision", "def forward_context(self):\n    yield"),
        "Plugin.forward_context is a generator",
        "@contextlib.contextmanager",
    ),
    Mistake(
        "required",
        "precision",
        plugin("Precision", "required_capabilities = ('autocast.bf16',)"),
        "unknown capability 'autocast.bf16'",
        "'autocast.bfloat16'",
    ),
    Mistake("required_text", "precision", plugin("Precision", "required_capabilities = 'fp8'"), "'fp8' is a string", "docs/plugins.md"),
    # -- cluster environments -----------------------------------------------------------------------------------------
    Mistake(
        "text_rank",
        "cluster",
        "import os\n" + plugin("ClusterEnvironment", "@property\ndef global_rank(self): return os.environ['ACME_RANK']"),
        "Plugin.global_rank returns a str",
        'self.number("VARIABLE")',
    ),
    Mistake(
        "annotated_rank",
        "cluster",
        plugin("ClusterEnvironment", "@property\ndef local_rank(self) -> str: return f(self)"),
        "Plugin.local_rank returns str",
        "int",
    ),
    Mistake(
        "methods", "cluster", plugin("ClusterEnvironment", "def world_size(self): return 2"), "Plugin.world_size is a method", "@property"
    ),
    Mistake("constant", "cluster", plugin("ClusterEnvironment", "node_rank = '0'"), "Plugin.node_rank is '0' (str)", "int"),
    Mistake(
        "detect",
        "cluster",
        plugin("ClusterEnvironment", "@staticmethod\ndef detect(): return True"),
        "Plugin.detect is unknown",
        "'detect_cluster'",
    ),
    # -- strategies ---------------------------------------------------------------------------------------------------
    Mistake(
        "wrapper",
        "strategy",
        plugin("Strategy", "def wrap_module(self, module, device):\n    self.module = module"),
        "Plugin.wrap_module returns None",
        "return the module",
    ),
    Mistake(
        "order",
        "strategy",
        plugin("Strategy", "def wrap_module(self, device, module): return module"),
        "takes its arguments in the order device, module",
        "module, device",
    ),
    Mistake(
        "engine",
        "strategy",
        plugin("EngineStrategy", "def step(self, optimizer): return True"),
        "Plugin.backward is missing",
        "write def backward",
    ),
    # -- hooks --------------------------------------------------------------------------------------------------------
    Mistake(
        "unmarked",
        "hooks",
        plugin("object", "def checkpoint_saved(self, path): pass"),
        "Plugin.checkpoint_saved is not marked",
        "@hookimpl",
    ),
    Mistake(
        "hook_name",
        "hooks",
        plugin("object", "@hookimpl\ndef checkpoint_savd(self, path): pass"),
        "implements an unknown hook",
        "'checkpoint_saved'",
    ),
    Mistake(
        "hook_argument", "hooks", plugin("object", "@hookimpl\ndef checkpoint_saved(self, pth): pass"), "unknown argument 'pth'", "'path'"
    ),
    Mistake(
        "hook_wrapper",
        "hooks",
        plugin("object", "@hookimpl(wrapper=True)\ndef teardown(self): pass"),
        "is a wrapper that does not yield",
        "yield once",
    ),
    # -- metadata -----------------------------------------------------------------------------------------------------
    Mistake(
        "near_group",
        "accelerator",
        accelerator(""),
        "in the group 'accelkit.accelerator'",
        "'accelkit.accelerators'",
        group="accelkit.accelerator",
    ),
    Mistake("malformed", "strategy", plugin("Strategy", "pass"), "is malformed", "pip install", value="vendor_malformed.Plugin"),
]
