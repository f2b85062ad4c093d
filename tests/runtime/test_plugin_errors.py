"""Each method of a precision, a strategy and an accelerator in turn raises, or returns nonsense: the error names the plugin."""

from __future__ import annotations

import gc
import itertools
import traceback

import pytest
import torch
from accelkit_fake_xpu.accelerator import FakeXPUAccelerator
from torch import nn

import accelkit

SOURCE = """
import accelkit
class Hostile(accelkit.{base}):
    def {method}(self, *args, **kwargs):
        {body}
"""
ENGINE = """
    def wrap_training(self, module, optimizer, settings):
        self.module = module
        return module
    def backward(self, loss, **kwargs):
        loss.backward(**kwargs)
    def step(self, optimizer):
        optimizer.step()
        return True
    def zero_grad(self, optimizer):
        self.module.zero_grad()
"""
ACCELERATOR = """
    device_type = "cpu"
    def auto_device_count(self):
        return 1
    @classmethod
    def probe(cls):
        return accelkit.Availability.usable()
"""
RAISES, NONSENSE, NOTHING = "raise ValueError('42 is not 43')", "return 3", "return None"
OUTSIDE_OF_STEPS = {
    "precision": ["setup", "teardown", "convert_module", "check_optimizer", "state_dict", "load_state_dict"],
    "strategy": [
        "check",
        "setup",
        "num_processes",
        "root_device",
        "place_module",
        "wrap_module",
        "unwrap_module",
        "whole_parameters",
        "check_state",
    ],
    "engine": ["wrap_training"],
    "accelerator": ["parse_devices", "auto_device_count", "capabilities"],
}
IN_STEPS = {
    "precision": [
        "convert_input",
        "convert_output",
        "forward_context",
        "pre_backward",
        "backward",
        "post_backward",
        "unscale_gradients",
        "optimizer_step",
    ],
    "strategy": ["place_batch", "no_sync", "clip_grad_norm_", "clip_grad_value_"],
    "engine": ["backward", "step", "zero_grad"],
}
RETURNED = [
    ("precision", "convert_module", NONSENSE, "instead of a module"),
    ("precision", "convert_input", NOTHING, "instead of a tuple"),
    ("precision", "convert_input", "return args[0] if type(args[0]) is tuple else 3", "instead of a dict"),
    ("precision", "convert_output", NOTHING, "instead of the result in another precision"),
    ("precision", "forward_context", NONSENSE, "instead of a context manager"),
    ("precision", "pre_backward", NOTHING, "instead of a tensor"),
    ("precision", "state_dict", NONSENSE, "instead of a dict"),
    ("strategy", "num_processes", "return '2'", "instead of a positive int"),
    ("strategy", "root_device", "return 'cpu'", "instead of a torch.device"),
    ("strategy", "place_module", NOTHING, "instead of a module"),
    ("strategy", "place_batch", NOTHING, "instead of the batch"),
    ("strategy", "wrap_module", NOTHING, "instead of a module"),
    ("strategy", "unwrap_module", NOTHING, "instead of a module"),
    ("strategy", "whole_parameters", NOTHING, "instead of a context manager"),
    ("strategy", "no_sync", NOTHING, "instead of a context manager"),
    ("strategy", "join", NONSENSE, "a context manager, or None"),
    ("strategy", "clip_grad_norm_", NOTHING, "a tensor with the norm before clipping"),
    ("engine", "wrap_training", NOTHING, "instead of a module"),
    ("engine", "step", NOTHING, "instead of True or False"),
    ("accelerator", "parse_devices", "return '0'", "a list of device indices"),
    ("accelerator", "parse_devices", "return ['0']", "a list of device indices"),
    ("accelerator", "parse_devices", "return []", "a list of device indices"),
    ("accelerator", "capabilities", "return {'process_group': 'none'}", "instead of accelkit.Capabilities"),
]


def source_of(kind, method, body):
    """The module of a plugin of this kind, one method of which is wrong."""
    base = "EngineStrategy" if kind == "engine" else kind.capitalize()
    rest = {"engine": ENGINE, "accelerator": ACCELERATOR}.get(kind, "")
    head, _, wrong = SOURCE.format(base=base, method=method, body=body).partition(f"    def {method}(self")
    return f"{head}{rest}    def {method}(self{wrong}"


@pytest.fixture
def raised_by(tmp_path):
    """The error of a program with a plugin of this kind, which says that it is of ``hostile==1.0``, and one method of which is wrong."""

    def run(kind, method, body):
        module = {}
        exec(source_of(kind, method, body), module)
        plugin = module["Hostile"]()
        plugin.name, plugin.plugin = "hostile", "hostile==1.0"
        try:
            program(tmp_path, **{"accelerator": "cpu", "strategy" if kind == "engine" else kind: plugin})
        except Exception as error:
            return error
        return None

    return run


def program(folder, **arguments):
    """Calls everything."""
    rt = accelkit.Runtime(**arguments)
    model, data = nn.Linear(2, 1), torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2)
    model, optimizer, data = rt.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
    for batch in data:
        with rt.no_sync(model):
            loss = model(rt.to_device(batch)).sum()
        rt.backward(loss)
        rt.clip_grad_norm_(model.parameters(), 1.0)
        rt.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    with rt.join_uneven_inputs([model]), rt.autocast():
        rt.unwrap_model(model)
    rt.get_state_dict(model)
    rt.save_state(folder / "checkpoint")
    rt.load_state(folder / "checkpoint")
    rt.teardown()


@pytest.mark.parametrize("kind", OUTSIDE_OF_STEPS)
def test_a_plugin_whose_methods_are_right_trains(raised_by, kind):
    assert raised_by(kind, "method_of_its_own", NOTHING) is None


@pytest.mark.parametrize(("kind", "method"), [(kind, method) for kind, methods in OUTSIDE_OF_STEPS.items() for method in methods])
def test_a_method_that_raises_is_the_plugins_fault(raised_by, kind, method):
    error = raised_by(kind, method, RAISES)
    assert type(error) is accelkit.BrokenPluginError, error
    assert (error.plugin, error.why) == ("hostile==1.0", "ValueError: 42 is not 43")
    assert "hostile" in error.what
    assert "the vendor of hostile" in error.hint
    assert isinstance(error.__cause__, ValueError)


@pytest.mark.parametrize(("kind", "method"), [(kind, method) for kind, methods in IN_STEPS.items() for method in methods])
def test_an_error_of_a_step_keeps_its_type_and_gets_a_note(raised_by, kind, method):
    error = raised_by(kind, method, RAISES)
    assert (type(error), str(error)) == (ValueError, "42 is not 43")
    (note,) = error.__notes__
    for words in (
        f"{method} of the {'strategy' if kind == 'engine' else kind} hostile failed",
        "plugin: hostile==1.0",
        "the vendor of hostile",
    ):
        assert words in note, note
    assert note in "".join(traceback.format_exception(error))


@pytest.mark.parametrize(("kind", "method", "body", "expected"), RETURNED)
def test_what_a_method_returns_is_named(raised_by, kind, method, body, expected):
    error = raised_by(kind, method, body)
    assert type(error) is accelkit.BrokenPluginError, error
    assert error.plugin == "hostile==1.0"
    assert error.what.startswith(method)
    assert expected in error.why
    assert f".{method}" in error.hint
    assert "see the docstring of accelkit." in error.hint


@pytest.mark.parametrize(
    ("group", "kind", "method"), [("precisions", "precision", "convert_module"), ("strategies", "strategy", "wrap_module")]
)
def test_an_installed_plugin_is_named_with_its_version(plugin_site, tmp_path, group, kind, method):
    plugin_site.install("hostile", source_of(kind, method, NONSENSE), entry_points=f"[accelkit.{group}]\nhostile = hostile:Hostile\n")
    with pytest.raises(accelkit.BrokenPluginError) as caught:
        program(tmp_path, **{"accelerator": "cpu", kind: "hostile"})
    assert (caught.value.plugin, caught.value.why) == ("hostile==1.0", "it returned 3 (int) instead of a module")


def test_a_device_that_is_out_of_memory_is_no_fault_of_the_plugins(raised_by):
    error = raised_by("precision", "convert_module", "import torch; raise torch.OutOfMemoryError('out of memory')")
    assert type(error) is torch.OutOfMemoryError


def test_an_error_of_the_model_or_the_optimizer_gets_no_note(raised_by, tmp_path):
    class Fine(accelkit.Precision):
        def convert_output(self, data):
            return data

        def optimizer_step(self, optimizer, step, closure=None):
            return step(closure)

    class Wrong(nn.Linear):
        def forward(self, x):
            raise ValueError("the model's")

    def closure():
        raise ValueError("the closure's")

    rt = accelkit.Runtime(accelerator="cpu", precision=Fine())
    model = Wrong(1, 1)
    model, optimizer = rt.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for failing in (lambda: model(torch.ones(1)), lambda: optimizer.step(closure), lambda: model(1, 2, 3)):
        with pytest.raises((ValueError, TypeError)) as caught:
            failing()
        assert not hasattr(caught.value, "__notes__")


def test_the_text(raised_by, error_text):
    assert raised_by("precision", "pre_backward", NOTHING) == error_text


def test_the_note(raised_by, error_text):
    assert raised_by("strategy", "place_batch", RAISES).__notes__ == error_text


def test_an_upload_that_returns_nothing_is_the_plugins_fault():
    class Hostile(FakeXPUAccelerator):
        def upload(self, batches, device):
            return None

    accelerator = Hostile()
    accelerator.name, accelerator.plugin = "hostile", "hostile==1.0"
    loader = accelkit.Runtime(accelerator).prepare(torch.utils.data.DataLoader(torch.ones(2, 2)))
    with pytest.raises(accelkit.BrokenPluginError, match="returned None .NoneType. instead of an iterable of lists") as raised:
        next(iter(loader))
    assert raised.value.plugin == "hostile==1.0"


def test_the_iterator_of_an_upload_is_closed_if_the_loop_ends_early():
    class Uploads:
        num_closed = 0

        def __init__(self, batches):
            self.batches = batches

        def __iter__(self):
            return self

        def __next__(self):
            return next(self.batches)

        def close(self):
            Uploads.num_closed += 1

    class Uploading(FakeXPUAccelerator):
        def upload(self, batches, device):
            return Uploads([tensor.to(device) for tensor in batch] for batch in batches)

    for _ in accelkit.Runtime(Uploading()).prepare(torch.utils.data.DataLoader(torch.ones(3, 2))):
        break
    gc.collect()
    assert Uploads.num_closed == 1


def too_few_tensors(batches):
    return (batch[:1] for batch in batches)


def too_few_batches(batches):
    yield from itertools.islice(batches, 2)


def too_many_batches(batches):
    for batch in batches:
        yield batch
        yield batch


@pytest.mark.parametrize("upload", [too_few_tensors, too_few_batches, too_many_batches])
def test_an_upload_that_loses_or_repeats_data_is_the_plugins_fault(upload, error_text):
    class Hostile(FakeXPUAccelerator):
        def upload(self, batches, device):
            return upload([tensor.to(device) for tensor in batch] for batch in batches)

    accelerator = Hostile()
    accelerator.name, accelerator.plugin = "hostile", "hostile==1.0"
    data = torch.utils.data.TensorDataset(torch.ones(3, 2), torch.ones(3))
    loader = accelkit.Runtime(accelerator).prepare(torch.utils.data.DataLoader(data))
    with pytest.raises(accelkit.BrokenPluginError) as raised:
        list(loader)
    assert raised.value == error_text


def test_running_out_of_memory_is_not_the_plugins_fault():
    class Large(accelkit.Precision):
        def pre_backward(self, loss):
            raise torch.OutOfMemoryError("out of memory")

    precision = Large()
    precision.name, precision.plugin = "large", "hostile==1.0"
    rt = accelkit.Runtime("cpu", precision=precision)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        rt.backward(rt.prepare(nn.Linear(1, 1))(torch.ones(1)).sum())
    assert not hasattr(caught.value, "__notes__")
