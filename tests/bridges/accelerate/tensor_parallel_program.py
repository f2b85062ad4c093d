"""A model that transformers splits, trained in a job: ``tensor_parallel_program.py TENSOR SHARD accelerator|trainer FOLDER``.

TENSOR and SHARD are the sizes of the two dimensions. Each process prints one line of JSON.
"""

import contextlib
import json
import sys
from pathlib import Path

import torch
from accelerate import Accelerator, ParallelismConfig
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.distributed import DistributedConfig

from accelkit.bridges.accelerate import install
from accelkit.errors import AccelkitError

TENSOR, SHARD, WHO, FOLDER = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
CONFIG = LlamaConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=8,
)
BATCH, STEPS, RATE = 8, 3, 0.01


def make():
    torch.manual_seed(0)
    return LlamaForCausalLM(CONFIG), [{"input_ids": text, "labels": text} for text in torch.randint(0, 32, (BATCH * STEPS, 8))]


def on_one_cpu():
    """The weights after three steps on the batches of all processes together, in float32."""
    model, dataset = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0)
    for batch in torch.utils.data.DataLoader(dataset, batch_size=BATCH):
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


def with_accelerator(model, dataset):
    acc = Accelerator(parallelism_config=ParallelismConfig(tp_size=TENSOR, dp_shard_size=SHARD))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0, foreach=False)
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH // SHARD)
    model, optimizer, loader = acc.prepare(model, optimizer, loader)
    devices = set()
    for batch in loader:
        loss = model(**batch).loss
        acc.backward(loss)
        devices.update(str(tensor.device) for tensor in (*batch.values(), loss, *(p.grad for p in model.parameters())))
        acc.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    try:
        acc.save_state(str(FOLDER / "state"))
    except AccelkitError as error:
        return devices, str(error)
    return devices, "saved"


def with_trainer(model, dataset):
    options = {"output_dir": str(FOLDER / "trainer"), "report_to": [], "disable_tqdm": True, "save_strategy": "no", "max_grad_norm": 1.0}
    arguments = TrainingArguments(
        per_device_train_batch_size=BATCH // SHARD,
        num_train_epochs=1,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        train_sampling_strategy="sequential",
        dataloader_pin_memory=False,
        **options,
    )
    Trainer(model, arguments, train_dataset=dataset).train()
    return {str(parameter.device) for parameter in model.parameters()}, ""


def main():
    runtime = install()
    whole, dataset = make()
    if runtime.process_index == 0:
        whole.save_pretrained(FOLDER / "model")
    runtime.wait_for_everyone()
    model = LlamaForCausalLM.from_pretrained(FOLDER / "model", distributed_config=DistributedConfig(tp_size=TENSOR, fsdp_size=SHARD))
    devices, refusal = (with_trainer if WHO == "trainer" else with_accelerator)(model, dataset)
    shape = list(model.model.layers[0].mlp.up_proj.weight.to_local().shape)
    model.save_pretrained(FOLDER / "trained")
    runtime.wait_for_everyone()
    trained = LlamaForCausalLM.from_pretrained(FOLDER / "trained").parameters()
    found = {
        "rank": runtime.process_index,
        "devices": sorted(devices),
        "shape": shape,
        "difference": max((one - other).abs().max().item() for one, other in zip(trained, on_one_cpu(), strict=True)),
        "refusal": refusal,
    }
    runtime.teardown()
    return found


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        result = main()
    print(json.dumps(result), flush=True)
