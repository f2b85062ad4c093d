"""Random state. Each device has its own generator."""

import pytest
import torch
from torch import fake_xpu


def draw(device, **options):
    return torch.randn(4, device=device, **options).tolist()


def test_the_same_seed_gives_the_same_numbers_and_draws_differ(device):
    torch.manual_seed(7)
    first, second = draw(device), draw(device)
    assert first != second
    torch.manual_seed(7)
    assert draw(device) == first
    fake_xpu.manual_seed_all(7)
    assert draw(device) == first
    with fake_xpu.device(device):
        fake_xpu.manual_seed(7)
        assert fake_xpu.initial_seed() == 7
    assert draw(device) == first
    with fake_xpu.device(device):
        fake_xpu.seed()
        assert fake_xpu.initial_seed() != 7
    fake_xpu.seed_all()
    assert draw(device) != first


@pytest.mark.parametrize("seed", [0, 2**63, 2**64 - 1, -1])
def test_seeds_are_64_bits(seed, device):
    with fake_xpu.device(device):
        torch.manual_seed(seed)
        assert fake_xpu.initial_seed() == seed % 2**64


def test_devices_and_the_cpu_draw_independently(device):
    torch.manual_seed(0)
    expected = draw(device)
    torch.manual_seed(0)
    draw("cpu")
    draw("fake_xpu:0")
    assert draw(device) == expected


def test_state_is_read_and_restored(device):
    state = fake_xpu.get_rng_state(device)
    assert state.dtype == torch.uint8
    assert state.device.type == "cpu"
    first = draw(device)
    fake_xpu.set_rng_state(state, device)
    assert draw(device) == first
    states = fake_xpu.get_rng_state_all()
    assert len(states) == 2
    both = [draw(index) for index in ("fake_xpu:0", "fake_xpu:1")]
    fake_xpu.set_rng_state_all(states)
    assert [draw(index) for index in ("fake_xpu:0", "fake_xpu:1")] == both


def test_fork_rng_restores_all_devices(device):
    states = fake_xpu.get_rng_state_all()
    with torch.random.fork_rng(devices=[0, 1], device_type="fake_xpu"):
        draw(device)
        draw("fake_xpu:0")
    assert all(torch.equal(before, after) for before, after in zip(states, fake_xpu.get_rng_state_all(), strict=True))


def test_a_generator_of_ones_own(device):
    generator = torch.Generator(device=device)
    assert generator.device == device
    generator.manual_seed(3)
    state = generator.get_state()
    copy = generator.clone_state() if hasattr(generator, "clone_state") else None
    first = draw(device, generator=generator)
    generator.set_state(state)
    assert draw(device, generator=generator) == first
    if copy is not None:
        assert draw(device, generator=copy) == first
    assert generator.initial_seed() == 3
    before = fake_xpu.get_rng_state(device)
    draw(device, generator=generator)
    assert torch.equal(before, fake_xpu.get_rng_state(device)), "the default generator was not used"


def test_another_devices_generator_is_refused(device):
    with pytest.raises(RuntimeError, match="Expected a 'fake_xpu' device type for generator but found 'cpu'"):
        torch.randn(2, device=device, generator=torch.Generator())
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device.*fake_xpu:0 and cpu"):
        torch.randn(2, generator=torch.Generator(device=device))


@pytest.mark.parametrize("train", [True, None])
def test_dropout_draws_from_the_device(train, device):
    x = torch.ones(2000, device=device)
    cpu_state = torch.get_rng_state()
    dropped, mask = torch.native_dropout(x, 0.25, train)
    assert torch.equal(torch.get_rng_state(), cpu_state)
    assert 0.7 < mask.float().mean().item() < 0.8
    torch.testing.assert_close(dropped, mask / 0.75)


def test_the_recomputed_forward_of_a_checkpoint_drops_the_same(device):
    from torch.utils.checkpoint import checkpoint

    masks = []

    def layer(x):
        y = torch.nn.functional.dropout(x, 0.5)
        masks.append((y != 0).cpu())
        return y

    x = torch.ones(64, device=device, requires_grad=True)
    checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert torch.equal((x.grad != 0).cpu(), masks[0])
    assert 0 < masks[0].sum() < 64


def test_the_default_generators_are_those_that_are_used(device):
    _, generator = fake_xpu.default_generators
    assert generator.device == device
    generator.manual_seed(5)
    first = draw(device)
    torch.manual_seed(5)
    assert draw(device) == first


def test_the_state_is_seed_and_offset_as_cudas(device):
    generator = torch.Generator(device=device).manual_seed(3)
    assert generator.get_state().tolist() == [3] + [0] * 15
    first, second = draw(device, generator=generator), draw(device, generator=generator)
    assert first != second
    assert generator.get_offset() == 8
    generator.set_offset(4)
    assert draw(device, generator=generator) == second
    generator.set_offset(0)
    assert draw(device, generator=generator) == first
    with pytest.raises(RuntimeError, match="offset must be a multiple of 4"):
        generator.set_offset(3)
    with pytest.raises(RuntimeError, match="RNG state is wrong size: 7 bytes, not 16"):
        generator.set_state(torch.zeros(7, dtype=torch.uint8))


def test_numbers_are_uniform_whatever_the_offset(device):
    torch.manual_seed(0)
    sample = torch.cat([torch.rand(10, device=device) for _ in range(1000)]).sort().values.cpu()
    ideal = (torch.arange(10_000) + 0.5) / 10_000
    assert (sample - ideal).abs().max() < 1.95 / 100, "Kolmogorov-Smirnov, p = 0.001"
