"""The training that jobs of two processes are compared with."""

from torch import nn
from torch.utils.data import DataLoader


def train_on_one_cpu(net, optimizer, dataset):
    """Train for two epochs on the batches of both processes together, in float32, and return the model."""
    for _ in range(2):
        for x, y in DataLoader(dataset, batch_size=16):
            nn.functional.mse_loss(net(x), y).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return net
