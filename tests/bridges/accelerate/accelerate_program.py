"""Programs of users of Accelerate, each in a process of its own: ``accelerate_program.py WHAT ACCELERATOR ...`` prints one line of JSON."""

import contextlib
import json
import os
import pickle
import sys
import warnings
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

INPUTS = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))


class Net(torch.nn.Module):
    """Two layers that share one weight, so that a move that unties is seen."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.drop = torch.nn.Dropout(0.1)

    def forward(self, inputs):
        self.computed_in = self.first(inputs).dtype
        return self.second(self.drop(self.first(inputs).relu())).sum(1, keepdim=True)


def parts(batch_size=8):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    loader = DataLoader(TensorDataset(INPUTS, INPUTS.sum(1, keepdim=True)), batch_size=batch_size, shuffle=True)
    return optimizer, model, loader, torch.optim.lr_scheduler.StepLR(optimizer, 100)


def epoch(accelerator, model, optimizer, loader, scheduler, seen):  # noqa: PLR0917
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            seen["devices"] |= {str(thing.device) for thing in (inputs, loss, *model.parameters(), *(p.grad for p in model.parameters()))}
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return loss.item()


def weights(model):
    return [parameter.detach().cpu().clone() for parameter in model.parameters()]


def train(make, folder):
    """Train, save, train on, load, train on again: alike."""
    accelerator = make(gradient_accumulation_steps=2)
    optimizer, model, loader, scheduler = accelerator.prepare(*parts())
    seen = {"devices": set()}
    losses = [epoch(accelerator, model, optimizer, loader, scheduler, seen) for _ in range(6)]
    bare = accelerator.unwrap_model(model)
    tied = bare.first.weight is bare.second.weight
    accelerator.save_state(folder)
    state = accelerator.scaler.state_dict() if accelerator.scaler else {}
    epoch(accelerator, model, optimizer, loader, scheduler, seen)
    after = weights(model)
    if accelerator.scaler:
        accelerator.scaler.update(1.0)
    accelerator.load_state(folder)
    restored = not accelerator.scaler or accelerator.scaler.state_dict() == state
    epoch(accelerator, model, optimizer, loader, scheduler, seen)
    return {
        "losses": losses,
        "devices": sorted(seen["devices"]),
        "tied": tied,
        "files": sorted(os.listdir(folder)),
        "computed in": str(bare.computed_in),
        "repeated": all(torch.equal(a, b) for a, b in zip(after, weights(model), strict=True)),
        "scaler": accelerator.scaler and [type(accelerator.scaler).__name__, accelerator.scaler._device],
        "scaler restored": restored,
        "optimizer state": sorted({str(v.device) for values in optimizer.state.values() for v in values.values() if v.dim()}),
    }


def overflow(make, folder):
    """A gradient that is infinite: the step is skipped and the scale made smaller."""
    accelerator = make()
    optimizer, model, _, _ = accelerator.prepare(*parts())
    before, found = weights(model), []
    for factor in (float("inf"), 1.0):
        accelerator.backward(model(INPUTS.to(accelerator.device)).mean() * factor)
        optimizer.step()
        optimizer.zero_grad()
        changed = any(not torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))
        found.append([accelerator.optimizer_step_was_skipped, changed, accelerator.scaler.get_scale()])
    return {"steps": found, "first scale": accelerator.scaler._init_scale}


def job(make, folder):
    """One rank of two."""
    import torch.distributed as dist

    accelerator = make()
    optimizer, model, loader, scheduler = accelerator.prepare(*parts())
    seen = {"devices": set()}
    for _ in range(4):
        loss = epoch(accelerator, model, optimizer, loader, scheduler, seen)
    accelerator.save_state(folder)
    accelerator.wait_for_everyone()
    after = weights(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    accelerator.load_state(folder)
    mine = torch.tensor([float(accelerator.process_index + 1)], device=accelerator.device)
    found = {
        "rank": accelerator.process_index,
        "device": str(accelerator.device),
        "devices": sorted(seen["devices"]),
        "group": dist.get_backend_config(),
        "model": type(model).__name__,
        "batches": len(loader),
        "loss": loss,
        "gathered": accelerator.gather(mine).tolist(),
        "objects": accelerator.gather_for_metrics([accelerator.process_index], use_gather_object=True),
        "sum": accelerator.reduce(mine, "sum").item(),
        "mean": accelerator.reduce(mine, "mean").item(),
        "padded": list(accelerator.pad_across_processes(torch.ones(accelerator.process_index + 1, device=accelerator.device)).shape),
        "alike": all(torch.equal(*accelerator.gather(w.flatten()[None].to(accelerator.device))) for w in weights(model)),
        "reloaded": all(torch.equal(a, b) for a, b in zip(after, weights(model), strict=True)),
        "files": sorted(os.listdir(folder)),
    }
    accelerator.end_training()
    return found


def seeds(make, folder):
    """Accelerate's set_seed seeds the device; a checkpoint of elsewhere leaves its generator as it is, and says so."""
    from accelerate.utils import set_seed

    accelerator = make()
    accelerator.prepare(*parts())

    def draw():
        return torch.rand(4, device=accelerator.device).tolist()

    set_seed(3)
    first = draw()
    set_seed(3)
    again = draw()
    accelerator.save_state(folder)
    for name in os.listdir(folder):
        if name.startswith("random_states_") and not name.removeprefix("random_states_")[0].isdigit():
            os.remove(os.path.join(folder, name))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        accelerator.load_state(folder)
    return {"alike": first == again, "warnings": [str(one.message) for one in caught if "random state" in str(one.message)]}


def attributes(make, folder):
    """The public names of Accelerate's own Accelerator, of its class and of an instance."""
    import accelerate

    plain = accelerate.Accelerator(cpu=True)
    return {"attributes": sorted({name for name in [*dir(type(plain)), *vars(plain)] if not name.startswith("_")})}


def profiled(make, folder):
    """The kernels in the trace that ``Accelerator.profile`` writes."""
    from accelerate import ProfileKwargs

    accelerator = make(kwargs_handlers=[ProfileKwargs(output_trace_dir=folder)])
    optimizer, model, loader, scheduler = accelerator.prepare(*parts())
    with accelerator.profile():
        epoch(accelerator, model, optimizer, loader, scheduler, {"devices": set()})
    (trace,) = os.listdir(folder)
    with open(os.path.join(folder, trace)) as file:
        events = json.load(file)["traceEvents"]
    return {"kernels": sorted({event["name"] for event in events if event.get("cat") == "kernel"})}


def pickled(make, folder):
    """What Accelerate can pickle after training: each thing alone, in this process, and all of them for another one."""
    accelerator = make()
    optimizer, model, loader, scheduler = accelerator.prepare(*parts())
    epoch(accelerator, model, optimizer, loader, scheduler, {"devices": set()})
    things = {"accelerator": accelerator, "model": model, "optimizer": optimizer, "loader": loader, "scheduler": scheduler}
    copies = {name: pickle.loads(pickle.dumps(thing)) for name, thing in things.items()}
    with open(os.path.join(folder, "all.pkl"), "wb") as file:
        pickle.dump(things, file)
    return {
        "types": {name: type(copy) is type(things[name]) for name, copy in copies.items()},
        "state": copies["accelerator"].state.__dict__ == accelerator.state.__dict__,
        "runtime": copies["accelerator"].runtime is accelerator.runtime,
        "weights": all(torch.equal(a, b) for a, b in zip(weights(copies["model"]), weights(model), strict=True)),
        "batches": [len(copies["loader"]), next(iter(copies["loader"]))[0].device.type],
    }


def unpickled(make, folder):
    """Another process, which has called nothing of the bridge."""
    with open(os.path.join(folder, "all.pkl"), "rb") as file:
        things = pickle.load(file)
    accelerator, model = things["accelerator"], things["model"]
    return {
        "runtime": repr(accelerator.runtime),
        "device": str(accelerator.device),
        "outputs": [str(model(inputs).device) for inputs, _ in things["loader"]],
    }


def cleaned(make, folder):
    """install and uninstall leave Accelerate, torch and the environment as they were."""
    import accelerate
    from accelerate.state import AcceleratorState

    from accelkit.bridges.accelerate import install, uninstall

    def now():
        return (
            accelerate.Accelerator.__init__,
            accelerate.PartialState.__init__,
            torch.nn.Module.to,
            os.environ.get("ACCELERATE_TORCH_DEVICE"),
            [finder for finder in sys.meta_path if type(finder).__module__.startswith("accelkit.")],
        )

    package = Path(folder, "deepspeed")  # found if DeepSpeed is not installed
    package.mkdir()
    (package / "__init__.py").touch()
    sys.path.append(folder)

    global Mine  # where pickle finds it

    class Mine(accelerate.Accelerator):
        def __init__(self, **named):
            self.made = "mine"
            super().__init__(**named)

    before = now()
    install(sys.argv[2])
    install(sys.argv[2])
    during = now()
    mine = Mine(mixed_precision="fp16")
    again = pickle.loads(pickle.dumps(mine))
    found = {
        "pickled": [type(again) is type(mine), again.made, str(again.device), again.runtime is mine.runtime],
        "mine": [mine.made, str(mine.device), type(mine).__name__, isinstance(mine, Mine), mine.scaler is not None],
        "again": str(accelerate.Accelerator().device),
        "state": str(accelerate.PartialState().device),
        "all replaced": all(a != b for a, b in zip(before, during, strict=True)),
    }
    uninstall()
    uninstall()
    AcceleratorState._reset_state(reset_partial_state=True)
    return found | {
        "restored": now() == before,
        "afterwards": [type(accelerate.Accelerator()).__name__, str(accelerate.Accelerator().device)],
    }


def main():
    what, name, mixed, folder = sys.argv[1:5]

    def make(**arguments):
        precision = None if mixed == "-" else mixed
        if "install" in sys.argv[5:]:
            from accelerate import Accelerator

            from accelkit.bridges.accelerate import install

            install(name)
            return Accelerator(mixed_precision=precision, **arguments)
        from accelkit.bridges.accelerate import accelerator

        return accelerator(None if name == "-" else name, mixed_precision=precision, **arguments)

    with contextlib.redirect_stdout(sys.stderr):
        found = globals()[what](make, folder)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
