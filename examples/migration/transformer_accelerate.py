"""Train a small transformer to continue arithmetic sequences, with Hugging Face Accelerate."""

import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--checkpoint", default="transformer")
    options = parser.parse_args()

    set_seed(0)
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)

    train_loader = DataLoader(TensorDataset(make_sequences(320, seed=1)), options.batch_size, shuffle=True)
    valid_loader = DataLoader(TensorDataset(make_sequences(70, seed=2)), batch_size=16)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    model, optimizer, train_loader, valid_loader, scheduler = accelerator.prepare(model, optimizer, train_loader, valid_loader, scheduler)

    step = 0  # the number of batches, including those before a resumption
    if os.path.isdir(options.checkpoint):
        accelerator.load_state(options.checkpoint)
        step = torch.load(os.path.join(options.checkpoint, "step.pt"))

    for epoch in range(step // len(train_loader), options.epochs):
        model.train()
        loader = train_loader
        if step % len(train_loader):
            loader = accelerator.skip_first_batches(train_loader, step % len(train_loader))
        for (tokens,) in loader:
            with accelerator.accumulate(model):
                logits = model(tokens[:, :-1])
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            step += 1
            if step % 8 == 0:
                accelerator.print(f"batch {step}: loss {accelerator.reduce(loss.detach(), 'mean').item()}")
                accelerator.save_state(options.checkpoint)
                if accelerator.is_main_process:
                    torch.save(step, os.path.join(options.checkpoint, "step.pt"))

        model.eval()
        hits = []
        for (tokens,) in valid_loader:
            with torch.no_grad():
                logits = model(tokens[:, :-1])
            hits.append(accelerator.gather_for_metrics((logits.argmax(-1) == tokens[:, 1:]).float().mean(1)))
        accelerator.print(f"epoch {epoch}: accuracy {torch.cat(hits).mean().item()}, lr {scheduler.get_last_lr()[0]}")

    accelerator.wait_for_everyone()
    accelerator.save_model(model, "transformer_export")
    accelerator.end_training()


if __name__ == "__main__":
    main()
