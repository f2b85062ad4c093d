"""What each rank does in test_context_parallel.py: ``context_program.py ACCELERATOR CASE...``. A case is a function below.

Each of two processes computes with one half of sequences. What it finds is compared with whole sequences on one process.
"""

from __future__ import annotations

import copy
import sys

import parallel_model
import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.nn.functional import scaled_dot_product_attention  # bound here, before any model is prepared
from torch.utils.checkpoint import checkpoint

import accelkit
from accelkit_builtin.strategies.context_parallel import gather_sequence, shard_sequence
from accelkit_builtin.strategies.parallel import ParallelStrategy

WIDTH, HEADS, LENGTH = 8, 2, 6


def runtime():
    rt = accelkit.Runtime(sys.argv[1], strategy=ParallelStrategy(parallel_model.options(context=2)), precision="64-true")
    _ = rt.device  # before the first backward pass of the process
    torch.default_generator.manual_seed(0)
    return rt


def sequence(length=LENGTH):
    return torch.randn(2, length, WIDTH, dtype=torch.float64)


def compare(rt, module, *inputs, others=lambda mesh: (), dim=1):
    """Compare outputs and gradients, in training and in evaluation, of the module and of a copy that gets the whole inputs.

    ``others`` is a function that returns further inputs, which are divided already.
    """
    module = module.double()
    reference, module = copy.deepcopy(module), rt.prepare(module)
    weights, found = None, []
    for each, mesh, place in ((reference, None, lambda data: data), (module, rt.mesh, rt.to_device)):
        given = [*shard_sequence(place(inputs), mesh, dim), *place(others(mesh))]
        trained = gather_sequence(each(*given), mesh, dim)
        weights = torch.randn(trained.shape, dtype=torch.float64) if weights is None else weights
        (trained * place(weights)).mean().backward()
        with torch.no_grad():
            evaluated = gather_sequence(each.eval()(*given), mesh, dim)
        gradients = [parameter.grad for parameter in each.parameters()]
        found.append([trained.detach(), evaluated, *(one if mesh is None else one.full_tensor() for one in gradients)])
    for number, (one, other) in enumerate(zip(*found, strict=True)):
        torch.testing.assert_close(other.cpu(), one, rtol=1e-12, atol=1e-12, msg=lambda text, number=number: f"{number}: {text}")


class Attending(torch.nn.Module):
    """Calls a function with the queries of one sequence, the keys and values of the same or of another, and the other inputs."""

    def __init__(self, attend):
        super().__init__()
        self.attend, self.query, self.key, self.value = attend, *(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x, *others):
        y, *others = others if others and others[0].dim() == 3 and others[0].is_floating_point() else (x, *others)
        heads = (layer(z).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer, z in ((self.query, x), (self.key, y), (self.value, y)))
        return self.attend(*heads, *others).transpose(1, 2).flatten(-2)


class Attentions(torch.nn.Module):
    """Calls several functions, each with projections of its own, with the same sequence and with other inputs for each."""

    def __init__(self, functions):
        super().__init__()
        self.parts = torch.nn.Sequential(*map(Attending, functions))

    def forward(self, x, others):
        return torch.cat([part(x, *given) for part, given in zip(self.parts, others, strict=True)])


def attends():
    """Every kind of mask, the other arguments, and attention to another sequence, which is divided or which each process has."""
    attention = torch.nn.functional.scaled_dot_product_attention
    mask, mask_of_ten = torch.rand(LENGTH, LENGTH) < 0.6, torch.rand(LENGTH, 10) < 0.6
    mask.fill_diagonal_(True)
    mask_of_ten[:, 0] = True
    six, ten = sequence(), sequence(10)
    bias = torch.randn(2, HEADS, LENGTH, LENGTH, dtype=torch.float64)
    cases = (
        (lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True), lambda mesh: []),
        (lambda q, k, v: scaled_dot_product_attention(q, k, v, None, 0.0, True, scale=0.7), lambda mesh: []),
        (lambda q, k, v: attention(query=q, key=k[:, :1], value=v[:, :1], is_causal=True, enable_gqa=True), lambda mesh: []),
        (lambda q, k, v: attention(q, k, torch.cat((v, v), -1), is_causal=True)[..., :4], lambda mesh: []),
        (lambda q, k, v: attention(q, k, v, dropout_p=1.0) + q, lambda mesh: []),
        (attention, lambda mesh: []),
        (attention, lambda mesh: [mask]),
        (attention, lambda mesh: [shard_sequence(mask, mesh, dim=0)]),
        (attention, lambda mesh: [mask[:1]]),
        (attention, lambda mesh: [bias]),
        (attention, lambda mesh: [shard_sequence(bias, mesh, dim=-2)]),
        (attention, lambda mesh: [shard_sequence(six, mesh, dim=1)]),
        (attention, lambda mesh: [six]),
        (attention, lambda mesh: [shard_sequence(ten, mesh, dim=1)]),
        (attention, lambda mesh: [ten]),
        (attention, lambda mesh: [shard_sequence(ten, mesh, dim=1), mask_of_ten]),
    )
    with runtime() as rt:
        module = Attentions([function for function, _ in cases])
        compare(rt, module, sequence(), others=lambda mesh: [[others(mesh) for _, others in cases]])


class Layers(torch.nn.Module):
    """torch's own layers. Every mask is one of this process's part, as in a program without context parallelism."""

    def __init__(self, batch_first=True, need_weights=False):
        super().__init__()
        options = {"batch_first": batch_first, "dropout": 0.0, "dim_feedforward": 12}
        self.encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(WIDTH, HEADS, **options), 2, enable_nested_tensor=False)
        self.decoder = torch.nn.TransformerDecoderLayer(WIDTH, HEADS, **options)
        self.attention = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first, add_bias_kv=need_weights)
        self.need_weights, self.dim = need_weights, 1 if batch_first else 0

    def forward(self, x, padding=None):
        mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[self.dim], x.device, x.dtype)
        y = self.encoder(x, mask, src_key_padding_mask=padding)
        z = self.decoder(x, y, tgt_mask=mask, tgt_is_causal=True, memory_key_padding_mask=padding)
        return self.attention(z, y, y, need_weights=self.need_weights)[0]


def layers():
    padding = torch.zeros(2, LENGTH, dtype=torch.float64)
    padding[0, -1] = padding[1, -4:] = -torch.inf
    with runtime() as rt:
        compare(rt, Layers(need_weights=True), sequence(), others=lambda mesh: [shard_sequence(padding, mesh, dim=1)])
        compare(rt, Layers(batch_first=False), sequence().transpose(0, 1).contiguous(), dim=0)


class Recomputing(torch.nn.Module):
    """Runs a layer again in the backward pass, or a function that contains attention."""

    def __init__(self, use_reentrant, has_function=False):
        super().__init__()
        self.layer, self.use_reentrant = Attending(lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True)), use_reentrant
        self.run = self.layer if not has_function else lambda x: scaled_dot_product_attention(x, x, x)

    def forward(self, x):
        return checkpoint(self.run, self.layer.query(x), use_reentrant=self.use_reentrant)


def recomputes():
    with runtime() as rt:
        for use_reentrant in (True, False):
            compare(rt, Recomputing(use_reentrant), sequence())


def losses():
    """The mean loss of each process's part is as good as the mean of gathered losses, compiled or not; parts are put together again."""
    with runtime() as rt:
        reference, texts = parallel_model.made()
        (parallel_model.loss_sum(reference, texts) / len(texts)).backward()
        texts, positions = rt.to_device((texts, torch.arange(parallel_model.LENGTH)))
        for has_to_gather, compiles in ((True, False), (False, False), (True, True)):
            model = rt.prepare(copy.deepcopy(reference))
            model.zero_grad()
            run = torch.compile(model, backend="aot_eager") if compiles else model
            if has_to_gather:
                loss = parallel_model.loss_sum(run, texts, rt.mesh) / len(texts)
            else:
                words, following = shard_sequence((texts[:, :-1], texts[:, 1:]), rt.mesh, dim=1)
                guesses = run(words, shard_sequence(positions, rt.mesh, dim=0))
                loss = torch.nn.functional.cross_entropy(guesses.flatten(0, 1), following.flatten())
            rt.backward(loss)
            for parameter, other in zip(model.parameters(), reference.parameters(), strict=True):
                torch.testing.assert_close(parameter.grad.full_tensor().cpu(), other.grad, rtol=1e-12, atol=1e-12)


def models_of_transformers():
    """The gradients of two models of the package transformers, one of which shares heads and is checkpointed in both ways."""
    import transformers

    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(intermediate_size=64, num_key_value_heads=2, **sizes))
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **sizes))
    texts = torch.randint(50, (3, 17))
    with runtime() as rt:
        for reference, use_reentrant in ((gpt2, None), (llama, None), (llama, True), (llama, False)):
            model, results = copy.deepcopy(reference.double()), []
            if use_reentrant is not None:
                model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
            for each, mesh, place in ((reference, None, lambda data: data), (rt.prepare(model), rt.mesh, rt.to_device)):
                words, following = shard_sequence(place((texts[:, :-1], texts[:, 1:])), mesh, dim=1)
                positions = shard_sequence(place(torch.arange(16).unsqueeze(0)), mesh, dim=1)
                scores = each.train()(input_ids=words, position_ids=positions).logits
                losses = torch.nn.functional.cross_entropy(scores.transpose(1, 2), following, reduction="none")
                each.zero_grad()
                gather_sequence(losses, mesh, dim=1).mean().backward()
                results.append([getattr(one.grad, "full_tensor", lambda one=one: one.grad)().cpu() for one in each.parameters()])
            torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


def divides():
    """Parts of every dtype are put together again, and the gradient of a part is the sum of its gradients on all processes."""
    with runtime() as rt:
        batch = rt.to_device({"words": torch.arange(24).view(2, 4, 3), "is_padding": torch.rand(2, 4) < 0.5, "name": "text"})
        for dim in (1, -1):
            sizes = {name: value.shape for name, value in batch.items() if name != "name" and value.shape[dim] % 2 == 0}
            given = {name: batch[name] for name in sizes} | {"name": "text"}
            mine = shard_sequence(given, rt.mesh, dim)
            assert mine["name"] == "text"
            for name, size in sizes.items():
                expected = given[name].chunk(2, dim)[rt.process_index]
                assert torch.equal(mine[name].cpu(), expected.cpu())
                assert torch.equal(gather_sequence(mine, rt.mesh, dim)[name].cpu(), given[name].cpu()), size
        part = torch.ones(2, 3, device=rt.device, requires_grad=True)
        weights = torch.arange(12.0, device=rt.device).view(2, 6)
        (gather_sequence([part], rt.mesh, 1)[0] * weights * (rt.process_index + 1)).sum().backward()
        assert torch.equal(part.grad, shard_sequence(weights, rt.mesh, 1) * 3)
        for unchanged in (shard_sequence, gather_sequence):
            assert unchanged(batch, None, 1) is batch
            assert unchanged(batch, rt.mesh["shard", "tensor"], 1) is batch


class Matmul(torch.nn.Module):
    """Attention that cannot be intercepted."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = self.layer(x)
        return (x @ x.transpose(-1, -2)).softmax(-1) @ x


def refuses():
    attention, square = scaled_dot_product_attention, torch.zeros(LENGTH // 2, LENGTH // 2)
    with runtime() as rt:
        tensor = rt.mesh["tensor"]
        for module, *others in (
            (Matmul(),),
            (Attending(lambda q, k, v: attention(q, k[:, :, 1:], v[:, :, 1:], is_causal=True)),),
            (Attending(attention), square),
            (Attending(lambda q, k, v: attention(*(torch.ones_like(one) for one in (q, k, v)), is_causal=True)),),
            (Attending(torch.ops.aten._scaled_dot_product_flash_attention),),
            (Attending(lambda q, k, v: attention(*map(torch.nested.as_nested_tensor, (q, k, v)))),),
            (Attending(lambda q, k, v: attention(*(DTensor.from_local(one, tensor) for one in (q, k, v)))),),
            (Recomputing(use_reentrant=True, has_function=True),),
            (Recomputing(use_reentrant=False, has_function=True),),
        ):
            model = rt.prepare(module.double())
            inputs = [shard_sequence(sequence(), rt.mesh, 1), *others]
            refused(lambda model=model, inputs=inputs: model(*rt.to_device(inputs)))
        model = rt.prepare(Attending(lambda q, k, v: attention(q, k, v, is_causal=True)).double())
        model(shard_sequence(rt.to_device(sequence()), rt.mesh, 1))
        with torch.no_grad():
            refused(lambda: model(rt.to_device(sequence())))
        refused(lambda: shard_sequence(torch.zeros(2, 7), rt.mesh, dim=1))
        refused(lambda: shard_sequence([torch.zeros(2, 6), torch.zeros(2)], rt.mesh, dim=1))
        refused(lambda: gather_sequence(torch.zeros(2), rt.mesh, dim=1))


def refused(call):
    """Print the error for the test, once in the job."""
    with pytest.raises(accelkit.AccelkitError) as caught:
        call()
    if torch.distributed.get_rank() == 0:
        print("REFUSED", str(caught.value).replace("\n", " | "), flush=True)


for case in sys.argv[2:]:
    torch.default_generator.manual_seed(0)  # all processes draw the same masks
    globals()[case]()
    print("done", case, flush=True)
