"""What each rank does in test_parallel.py: ``parallel_program.py ACCELERATOR FOLDER CASE...``.

A case is a function below and its arguments, such as ``"trains shard=2 tensor=2"``. A checkpoint has the name of the sizes that saved it.
"""

from __future__ import annotations

import copy
import math
import sys
from pathlib import Path

import parallel_model
import pytest
import torch
from parallel_model import Transformer, loss_sum, sized
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

import accelkit
from accelkit_builtin.strategies.parallel import ParallelStrategy

ACCELERATOR, FOLDER = sys.argv[1], Path(sys.argv[2])


def runtime(options=None, **sizes):
    strategy = ParallelStrategy(parallel_model.options(**sizes))
    settings = {"precision": "64-true", "even_batches": False, "gradient_accumulation_steps": 2} | (options or {})
    return accelkit.Runtime(ACCELERATOR, strategy=strategy, **settings)


def loader(texts, shares=1):
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(texts), batch_size=16 // shares, shuffle=True)


def whole(tensor):
    full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach().cpu().clone()


def same(tensors, others):
    """Compare to 1e-10, and return the largest difference."""
    largest = 0.0
    for number, pair in enumerate(zip(tensors, others, strict=True)):
        one, other = map(whole, pair)
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10, msg=lambda text, number=number: f"{number}: {text}")
        largest = max(largest, (one - other).abs().max().item())
    return largest


def on_one_process():
    """Five steps of the model on one process: the gradients and the norm of each step, and the model and optimizer afterwards."""
    model, texts = parallel_model.made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.default_generator.manual_seed(5)
    steps = []
    for number, (batch,) in enumerate(loader(texts)):
        (loss_sum(model, batch) / len(batch) / 2).backward()
        if number % 2:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            steps.append((norm, [parameter.grad.clone() for parameter in model.parameters()]))
            optimizer.step()
            optimizer.zero_grad()
    return model, optimizer, steps


def trains(**sizes):
    """Five steps with accumulation, clipping and an uneven last batch: gradients, norms and weights of one process; then a checkpoint."""
    rt = runtime(**sizes)
    _ = rt.device  # before the first backward pass of the process
    reference, _, steps = on_one_process()
    shares, context, tensor = rt.data_parallel_size, rt.mesh["context"].size(), rt.mesh["tensor"].size()
    assert rt.mesh.mesh_dim_names == ("replicate", "shard", "context", "tensor")
    assert rt.data_parallel_index == rt.process_index // (context * tensor)
    model, texts = parallel_model.made()
    if not rt.is_main_process:
        torch.nn.init.zeros_(model.head.weight)  # all processes get the weights of rank 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, batches = rt.prepare(model, optimizer, loader(texts, shares))
    assert len(batches) == 10
    parameters = list(model.parameters())
    rows = model.layers[0].query.weight.to_local().shape[0]
    assert rows == parallel_model.WIDTH // (rt.mesh["shard"].size() * context * tensor), "a layer is divided over all three"
    assert ("forward" in vars(model.layers[0])) == (context > 1), "attention is intercepted only if sequences are divided"
    rt.seed_everything(5, per_process=True)
    generators_agree_within_shares(rt)
    rt.seed_everything(5, per_process=True)
    seen, expected, of_gradients = [], iter(steps), []
    for (batch,) in batches:
        with rt.accumulate(model):
            seen += rt.gather_for_metrics([text.tolist() for text in batch])
            count = rt.reduce(torch.tensor(float(len(batch)), device=rt.device, dtype=torch.float64))
            rt.backward(loss_sum(model, batch, rt.mesh) / count * shares)
            if rt.sync_gradients:
                norm, gradients = next(expected)
                torch.testing.assert_close(rt.clip_grad_norm_(parameters, 0.3).cpu(), norm, rtol=1e-10, atol=1e-10)
                of_gradients.append(same([parameter.grad for parameter in parameters], gradients))
            optimizer.step()
            optimizer.zero_grad()
    assert next(expected, None) is None
    assert sorted(seen) == sorted(texts.tolist()), "each sample once"
    of_weights = same(parameters, reference.parameters())
    print(f"LARGEST DIFFERENCE of gradients {max(of_gradients):.1e}, of weights {of_weights:.1e}", flush=True)
    rt.save_state(FOLDER / named(sizes))
    rt.teardown()


def loads(saved, **sizes):
    """A checkpoint in the layout of other sizes, or on one process: the weights and the optimizer's state of one process."""
    rt = runtime(**sizes) if sizes else accelkit.Runtime(ACCELERATOR, precision="64-true")
    _ = rt.device  # before the first backward pass of the process
    reference, theirs, _ = on_one_process()
    model = Transformer().double()
    model, optimizer = rt.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    rt.load_state(FOLDER / saved)
    same(model.parameters(), reference.parameters())
    for name in ("exp_avg", "exp_avg_sq"):
        same([values[name] for values in optimizer.state.values()], [values[name] for values in theirs.state.values()])
    generators_agree_within_shares(rt)
    state = rt.get_state_dict(model)
    if rt.is_main_process:
        same(state.values(), reference.state_dict().values())
    rt.teardown()


def reads(**sizes):
    """However the data are read, processes of a tensor-parallel group get the same samples, and all shares together each sample once."""
    for options in ({}, {"dispatch_batches": True}, {"split_batches": True}):
        rt = runtime(options, **sizes)
        rt.seed_everything(rt.process_index)
        size = 2 * rt.data_parallel_size if "split_batches" in options else 2
        data = torch.utils.data.DataLoader(range(24), batch_size=size, shuffle=True)
        mine = [batch.tolist() for batch in rt.prepare(data)]
        with rt.split_between_processes(list(range(8))) as part:
            mine.append([100 + number for number in part])
        for parts in zip(*rt.gather_for_metrics([mine]), strict=True):
            assert len(parts) == rt.data_parallel_size
        seen = [number for share in rt.gather_for_metrics([mine]) for batch in share for number in batch]
        assert sorted(seen) == [*range(24), *range(100, 108)], seen
        everyone = [None] * rt.num_processes
        torch.distributed.all_gather_object(everyone, mine)
        copies = rt.num_processes // rt.data_parallel_size
        assert everyone == [everyone[rank - rank % copies] for rank in range(rt.num_processes)], everyone
        assert rt.reduce(torch.ones(1, device=rt.device)).item() == rt.data_parallel_size
        rt.teardown()
    rt = runtime(**sizes)
    sampler = torch.utils.data.DistributedSampler(range(24), rt.num_processes, rt.process_index)
    with pytest.raises(accelkit.PrepareError) as caught:
        rt.prepare(torch.utils.data.DataLoader(range(24), sampler=sampler))
    refused(caught)
    rt.teardown()


class Tied(Transformer):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(parallel_model.WIDTH, parallel_model.WORDS, bias=False)
        self.head.weight = self.words.weight


def clip_with_a_plain_tensor(rt, model, reference):
    """The norm includes a parameter that is no DTensor, of which every process has a copy."""
    plain = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    plain.grad = torch.full_like(plain, 0.2)
    moved = torch.nn.Parameter(plain.detach().to(rt.device))
    moved.grad = plain.grad.clone().to(rt.device)
    norm = rt.clip_grad_norm_([*model.parameters(), moved], 0.1)
    expected = torch.nn.utils.clip_grad_norm_([*reference.parameters(), plain], 0.1)
    torch.testing.assert_close(norm.cpu(), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(moved.grad.cpu(), plain.grad, rtol=1e-10, atol=1e-10)


def plans(**sizes):
    """Plans of the user: tied parameters stay tied or are refused, as are models without a plan; clipping by other norms; meta device."""
    plan = {"words": RowwiseParallel(input_layouts=Replicate()), "head": ColwiseParallel(output_layouts=Replicate())}
    rt = runtime(plan=plan, **sizes)
    _ = rt.device
    torch.default_generator.manual_seed(0)
    model = Tied().double()
    reference, texts = copy.deepcopy(model), parallel_model.made()[1][:8]
    model = rt.prepare(model)
    assert model.head.weight is model.words.weight
    mine = texts.tensor_split(rt.data_parallel_size)[rt.data_parallel_index].to(rt.device)
    model.zero_grad()
    rt.backward(loss_sum(model, mine) / len(mine))
    (loss_sum(reference, texts) / len(texts) / 2).backward()
    same([parameter.grad for parameter in model.parameters()], [parameter.grad for parameter in reference.parameters()])
    for order in (1.0, math.inf):
        norm = rt.clip_grad_norm_(model.parameters(), 0.1, order)
        torch.testing.assert_close(norm.cpu(), torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.1, order), rtol=1e-10, atol=1e-10)
        same([parameter.grad for parameter in model.parameters()], [parameter.grad for parameter in reference.parameters()])
    clip_with_a_plain_tensor(rt, model, reference)
    rt.teardown()
    for options, model in (
        ({"plan": {"head": ColwiseParallel()}}, Tied()),
        ({"plan": {"heads": ColwiseParallel()}}, Tied()),
        ({}, torch.nn.Linear(4, 4)),
    ):
        rt = runtime(**options, **sizes)
        with pytest.raises(accelkit.AccelkitError) as caught:
            rt.prepare(model.double())
        refused(caught)
        rt.teardown()
    rt = runtime(**sizes)
    with torch.device("meta"):
        model = Transformer().double()
    model = rt.prepare(model)
    rt.backward(loss_sum(model, mine))
    weights = [whole(parameter) for parameter in model.parameters()]
    assert all(bool(weight.isfinite().all()) for weight in weights)
    query = whole(model.layers[0].query.weight)
    assert len(query.unique()) == query.numel(), "no two shards have the same random numbers"
    rt.teardown()


class Encoder(torch.nn.Module):
    """torch's own layers, for which there is a plan."""

    def __init__(self):
        super().__init__()
        sizes = {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "dropout": 0.0, "batch_first": True}
        self.encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(**sizes), 2)
        self.decoder = torch.nn.TransformerDecoderLayer(**sizes)

    def forward(self, x):
        return self.decoder(x, self.encoder(x))


def layers(**sizes):
    """Layers of torch.nn.Transformer, in training and in evaluation; frozen norms under sequence parallelism stay frozen."""
    rt = runtime(**sizes)
    _ = rt.device
    torch.default_generator.manual_seed(0)
    model = Encoder().double()
    reference, data = copy.deepcopy(model), torch.randn(8, 3, 8, dtype=torch.float64)
    model = rt.prepare(model)
    assert model.encoder.layers[0].linear1.weight.to_local().shape[0] == 12 // rt.num_processes
    mine = data.tensor_split(rt.data_parallel_size)[rt.data_parallel_index].to(rt.device)
    rt.backward(model(mine).square().sum() * rt.data_parallel_size)
    (reference(data).square().sum() / rt.gradient_accumulation_steps).backward()
    same([parameter.grad for parameter in model.parameters()], [parameter.grad for parameter in reference.parameters()])
    with torch.no_grad():
        outputs = rt.gather(model.eval()(mine)), reference.eval()(data)
    same(outputs[:1], outputs[1:])
    rt.teardown()
    rt = runtime(**sizes, plan="sequence")
    model = Transformer().double()
    model.norm.requires_grad_(False)
    model = rt.prepare(model)
    assert [name for name, parameter in model.named_parameters() if not parameter.requires_grad] == ["norm.weight", "norm.bias"]
    rt.teardown()


def refused(caught):
    """Print the error for the test, once in the job."""
    if torch.distributed.get_rank() == 0:
        print("REFUSED", str(caught.value).replace("\n", " | "), flush=True)


def generators_agree_within_shares(rt):
    """Processes with the same samples draw the same numbers on their devices, and others do not."""
    copies = rt.num_processes // rt.data_parallel_size
    numbers = rt.gather(torch.rand(1, device=rt.device), group=torch.distributed.group.WORLD if rt.num_processes > 1 else None).tolist()
    assert numbers == [numbers[rank - rank % copies] for rank in range(rt.num_processes)], numbers
    assert len(set(numbers)) == rt.data_parallel_size, numbers


def named(sizes):
    return "-".join(f"{name}={size}" for name, size in sizes.items())


for case in sys.argv[3:]:
    name, *words = case.split()
    if name == "loads":
        loads(words[0], **sized(words[1:]))
    else:
        globals()[name](**sized(words))
    print("done", case, flush=True)
