"""Train a small transformer to continue arithmetic sequences, with accelkit. This is transformer_accelerate.py after the migration."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import accelkit

VOCABULARY, LENGTH = 32, 16


def make_sequences(count, seed):
    """Return sequences that begin with a random number and advance by 1 to 4, modulo the size of the vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(VOCABULARY, (count, 1), generator=generator)
    step = torch.randint(1, 5, (count, 1), generator=generator)
    return (first + step * torch.arange(LENGTH + 1)) % VOCABULARY


class Transformer(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=64, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.1)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        position = torch.arange(tokens.shape[1], device=tokens.device)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        hidden = self.encoder(self.tokens(tokens) + self.positions(position), mask=mask, is_causal=True)
        return self.head(hidden)


class Progress:
    """The number of batches trained on so far, including those before the run was resumed."""

    def __init__(self):
        self.step = 0

    def state_dict(self):
        return vars(self).copy()

    def load_state_dict(self, state):
        vars(self).update(state)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accelerator")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--checkpoint", default="transformer")
    options = parser.parse_args()

    rt = accelkit.Runtime(options.accelerator, precision="bf16-mixed", gradient_accumulation_steps=2, seed=0)

    train_loader = DataLoader(TensorDataset(make_sequences(320, seed=1)), options.batch_size, shuffle=True)
    valid_loader = DataLoader(TensorDataset(make_sequences(70, seed=2)), batch_size=16)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    model, optimizer, train_loader, valid_loader, scheduler = rt.prepare(model, optimizer, train_loader, valid_loader, scheduler)

    progress = Progress()
    rt.register_for_checkpointing(progress)
    rt.resume(options.checkpoint)

    for epoch in range(train_loader.epoch, options.epochs):
        model.train()
        for (tokens,) in train_loader:
            with rt.accumulate(model):
                logits = model(tokens[:, :-1])
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
                rt.backward(loss)
                if rt.sync_gradients:
                    rt.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            progress.step += 1
            if progress.step % 8 == 0:
                rt.print(f"batch {progress.step}: loss {rt.reduce(loss.detach(), 'mean').item()}")
                rt.save_state(options.checkpoint, keep_last=1)

        model.eval()
        hits = []
        for (tokens,) in valid_loader:
            with torch.no_grad():
                logits = model(tokens[:, :-1])
            hits.append(rt.gather_for_metrics((logits.argmax(-1) == tokens[:, 1:]).float().mean(1)))
        rt.print(f"epoch {epoch}: accuracy {torch.cat(hits).mean().item()}, lr {scheduler.get_last_lr()[0]}")

    rt.wait_for_everyone()
    rt.save_model(model, "transformer_export")
    rt.teardown()


if __name__ == "__main__":
    main()
