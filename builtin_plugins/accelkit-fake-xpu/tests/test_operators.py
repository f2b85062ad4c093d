"""Properties of operators that the conformance suite, which runs all of torch's op_db, does not test."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F


def both(function, device, *shapes, dtype=torch.float32):
    """Return the result and the gradients of ``function`` for the same inputs, first on the CPU and then on the device."""
    torch.manual_seed(0)
    inputs = [torch.randn(shape, dtype=dtype) for shape in shapes]
    found = []
    for place in ("cpu", device):
        leaves = [value.detach().to(place).requires_grad_() for value in inputs]
        result = function(*leaves)
        gradients = torch.autograd.grad(result.abs().sum(), leaves)
        assert all(value.device == torch.device(place) for value in (result, *gradients))
        found.append((result.detach().cpu(), *(gradient.cpu() for gradient in gradients)))
    return found


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("has_bias", [False, True])
def test_convolutions(transposed, groups, dimensions, has_bias, device):
    convolve = getattr(F, f"conv{'_transpose' if transposed else ''}{dimensions}d")
    out_channels = 4 * groups if transposed else 4
    shapes = [(2, 4, *[5] * dimensions), (4, 4 if transposed else 4 // groups, *[3] * dimensions), *[(out_channels,)] * has_bias]
    cpu, ours = both(lambda x, w, *bias: convolve(x, w, *bias, stride=2, padding=1, groups=groups), device, *shapes)
    torch.testing.assert_close(ours, cpu)


def test_views_of_normal_tensors_in_inference_mode(device):
    x = torch.arange(80.0, device=device).view(2, 5, 8)
    z = torch.view_as_complex(torch.ones(3, 2, device=device))
    with torch.inference_mode():
        assert (x.transpose(0, 1) @ torch.ones(8, 3, device=device)).shape == (5, 2, 3)
        assert not torch.view_as_real(z).is_inference()
        assert not x.transpose(0, 1).unfold(0, 3, 1).is_inference()
        assert not torch.view_as_complex(x[..., :2]).is_inference()


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention(is_causal, device):
    cpu, ours = both(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal), device, *[(2, 3, 8, 4)] * 3)
    torch.testing.assert_close(ours, cpu)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.BatchNorm2d(4),
        lambda: nn.LayerNorm((4, 6, 6)),
        lambda: nn.GroupNorm(2, 4),
        lambda: nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 2)),
        lambda: nn.Sequential(nn.Flatten(2), nn.TransformerEncoderLayer(36, 4, dropout=0.0, batch_first=True)),
        lambda: nn.Sequential(nn.Flatten(2), nn.LSTM(36, 5, batch_first=True), First()),
        lambda: nn.Sequential(nn.Flatten(2), nn.GRU(36, 5, num_layers=2, bidirectional=True, batch_first=True), First()),
    ],
    ids=["batch_norm", "layer_norm", "group_norm", "convolutional", "transformer", "lstm", "gru"],
)
def test_modules_train_as_on_the_cpu(make, device):
    torch.manual_seed(0)
    module, x = make(), torch.randn(3, 4, 6, 6)
    import copy

    ours = copy.deepcopy(module).to(device)
    for _ in range(2):
        expected, found = module(x), ours(x.to(device))
        expected.square().mean().backward()
        found.square().mean().backward()
        torch.testing.assert_close(found.cpu(), expected)
    for (name, theirs), mine in zip(module.named_parameters(), ours.parameters(), strict=True):
        assert mine.device == device
        assert mine.grad.device == device, name
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad)
    for theirs, mine in zip(module.buffers(), ours.buffers(), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs)


class First(nn.Module):
    def forward(self, outputs):
        return outputs[0]


OPTIONS = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "loop": {"foreach": False},
    "default": {},
    "maximize": {"maximize": True},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("optimizer_class", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad])
def test_optimizers_step_as_on_the_cpu(optimizer_class, options, device):
    found = []
    for place in ("cpu", device):
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(3, 2).to(place)) for _ in range(3)]
        optimizer = optimizer_class(parameters, lr=0.1, **OPTIONS[options])
        for _ in range(3):
            sum((parameter**2).sum() for parameter in parameters).backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append([parameter.detach().cpu() for parameter in parameters])
        state = [
            value for values in optimizer.state.values() for value in values.values() if isinstance(value, torch.Tensor) and value.dim()
        ]
        assert all(value.device == torch.device(place) for value in state)
    torch.testing.assert_close(*found)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_torch_func(device):
    from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap

    def f(x):
        return (x.sin() * x).sum()

    x = torch.randn(3)
    ours = x.to(device)
    for transform in (grad, jacrev, hessian, lambda f: vmap(grad(f)), lambda f: vmap(hessian(f))):
        given = (x.expand(2, 3), ours.expand(2, 3)) if transform not in (grad, jacrev, hessian) else (x, ours)
        torch.testing.assert_close(transform(f)(given[1]).cpu(), transform(f)(given[0]))
    torch.testing.assert_close(jvp(f, (ours,), (torch.ones_like(ours),))[1].cpu(), jvp(f, (x,), (torch.ones(3),))[1])
    layer = nn.Linear(3, 2).to(device)
    weights = dict(layer.named_parameters())
    per_sample = vmap(grad(lambda w, v: functional_call(layer, w, v).sum()), in_dims=(None, 0))(weights, torch.ones(4, 3, device=device))
    assert per_sample["weight"].shape == (4, 2, 3)
    assert per_sample["weight"].device == device


def test_channels_last_stays(device):
    x = torch.randn(2, 3, 8, 8).to(device, memory_format=torch.channels_last)
    assert x.is_contiguous(memory_format=torch.channels_last)
    convolved = nn.Conv2d(3, 4, 3).to(device, memory_format=torch.channels_last)(x)
    assert convolved.is_contiguous(memory_format=torch.channels_last)
    assert (x + 1).is_contiguous(memory_format=torch.channels_last)


def test_conjugated_and_negated_views(device):
    x = torch.randn(3, 3, dtype=torch.complex64)
    ours = x.to(device)
    assert ours.conj().is_conj()
    for use in (
        lambda t: t.conj() @ t,
        lambda t: t.mH @ t,
        lambda t: t.conj().imag + 1,
        lambda t: t.conj().clone(),
        lambda t: t.real.neg(),
    ):
        torch.testing.assert_close(use(ours).cpu(), use(x))
    assert torch.equal(ours.conj().cpu(), x.conj())


def test_results_that_are_views_share_memory(device):
    x = torch.arange(6.0, device=device)
    for view in (x.view(2, 3), x[1:], x.unfold(0, 2, 2), x.expand(2, 6), x.detach(), torch.diagonal(x.view(2, 3)), x.chunk(2)[0]):
        assert view.untyped_storage()._cdata == x.untyped_storage()._cdata
    x.view(2, 3)[1].zero_()
    assert x.tolist() == [0, 1, 2, 0, 0, 0]


def test_out_is_written_resized_and_returned(device):
    a, out = torch.ones(3, 3, device=device), torch.zeros(3, 3, device=device)
    assert torch.mm(a, a, out=out) is out
    assert out.sum().item() == 27
    values, indices = torch.empty(0, device=device), torch.empty(0, dtype=torch.int64, device=device)
    torch.sort(a[0], out=(values, indices))
    assert values.tolist() == [1, 1, 1]
    assert indices.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("use", "error", "text"),
    [
        (lambda x: x.to_sparse(), NotImplementedError, "returns a Sparse tensor, which fake_xpu does not support"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), NotImplementedError, "fake_xpu"),
        (lambda x: x[torch.tensor([9])], IndexError, "index 9 is out of bounds for dimension 0 with size 4"),
        (lambda x: F.embedding(torch.tensor([9], device=x.device), x), IndexError, "index out of range"),
        (lambda x: torch.ops.aten._fused_dropout(x, 0.5), NotImplementedError, "'aten::_fused_dropout' is not implemented for fake_xpu"),
        (lambda x: x.to("fake_xpu", dtype="float99"), TypeError, "dtype"),
        (lambda x: x @ torch.ones(3, 3, device=x.device), RuntimeError, "cannot be multiplied"),
        (lambda x: torch.empty(2, device="fake_xpu", layout=torch.sparse_coo), NotImplementedError, "Sparsefake_xpu"),
    ],
    ids=["to_sparse", "quantize", "index", "embedding", "missing", "dtype", "shapes", "sparse"],
)
def test_what_cannot_be_done_is_said(use, error, text, device):
    with pytest.raises(error, match=text):
        use(torch.ones(4, 2, device=device))
    assert torch.ones(2, device=device).sum().item() == 2, "the device goes on"


@pytest.mark.parametrize("name", [name for name in dir(torch) if name.endswith("_window")])
def test_windows(name, device):
    window = getattr(torch, name)
    for periodic in (True, False):
        torch.testing.assert_close(window(9, periodic, device=device).cpu(), window(9, periodic))
    torch.testing.assert_close(torch.kaiser_window(9, True, 5.0, device=device).cpu(), torch.kaiser_window(9, True, 5.0))
