"""transformers.Trainer on a plugin's device, offline.

``transformers_trainer_program.py ACCELERATOR PRECISION FOLDER [fsdp]`` prints one line of JSON.
"""

import contextlib
import json
import os
import sys

import torch

NAME, MIXED, FOLDER, *FSDP = sys.argv[1:]


class Counting(torch.utils.data.Dataset):
    """Texts that count: the next token is the last one plus one."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = (torch.arange(8) + index) % 32
        return {"input_ids": tokens, "labels": tokens}


def main():
    from accelkit.bridges.accelerate import install

    install(None if NAME == "-" else NAME)
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from accelkit.bridges.accelerate.trainer_callback import DeviceRandomStateCallback

    def make():
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2)  # it has dropout, and ties its embeddings
        arguments = TrainingArguments(
            output_dir=FOLDER,
            per_device_train_batch_size=8,
            num_train_epochs=3,
            learning_rate=0.02,
            lr_scheduler_type="constant",
            fp16=MIXED == "fp16",
            fsdp=bool(FSDP),
            fsdp_config={"transformer_layer_cls_to_wrap": ["GPT2Block"]},
            save_steps=2 if "WORLD_SIZE" in os.environ else 4,
            logging_steps=1,
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        return Trainer(
            GPT2LMHeadModel(config), arguments, train_dataset=Counting(), eval_dataset=Counting(), callbacks=[DeviceRandomStateCallback()]
        )

    def whole(tensor):
        return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # FSDP leaves some whole after an evaluation

    def weights(trainer):
        return [whole(parameter.detach()).cpu().clone() for parameter in trainer.model.parameters()]

    trainer = make()
    trainer.train()
    sharded = [hasattr(parameter, "full_tensor") for parameter in trainer.model.parameters()]
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    model, wrapped = trainer.model, trainer.model_wrapped
    found = {
        "device": str(trainer.args.device),
        "devices": sorted({str(parameter.device) for parameter in model.parameters()}),
        "sharded": all(sharded),
        "tied": model.lm_head.weight is model.transformer.wte.weight,
        "mixed": trainer.accelerator.mixed_precision,
        "scaler": trainer.accelerator.scaler is not None,
        "wrapped": type(wrapped).__name__,
        "losses": losses,
        "evaluated": trainer.evaluate()["eval_loss"],
        "steps": trainer.state.global_step,
    }
    first = weights(trainer)
    trainer = make()
    trainer.train(resume_from_checkpoint=os.path.join(FOLDER, "checkpoint-4"))
    found["resumed alike"] = all(torch.equal(a, b) for a, b in zip(first, weights(trainer), strict=True))
    return found


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        result = main()
    print(json.dumps(result), flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
