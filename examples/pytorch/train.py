"""Trains a small network whose batches change their shape, on one GPU, or on one per process under torchrun or srun (DDP).

Knows nothing of cupool. Without PyTorch or without a GPU it says so and ends with 77.
"""

from __future__ import annotations

import os
import sys

STEPS = 20


def skip(why: str) -> None:
    print(f"skipped: {why}")
    sys.exit(77)


try:
    import torch
    import torch.distributed
    from torch import nn
except (ImportError, OSError) as error:
    skip(f"PyTorch cannot be imported ({error}); pip install torch==2.15.0")


def build(device: torch.device) -> nn.Module:
    torch.manual_seed(7)
    layers = [layer for _ in range(4) for layer in (nn.Linear(1024, 1024), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(1024, 10)).to(device)


def train(model: nn.Module, device: torch.device) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    losses = []
    for step in range(STEPS):
        rows = 256 * (1 + step % 5)  # another shape each time: what makes a caching pool hold pieces that nobody wants
        inputs = torch.randn(rows, 1024, device=device)
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(dim=1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    if not torch.cuda.is_available():
        skip("PyTorch sees no GPU")
    rank, world, local_rank = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")))
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    model = build(device)
    if world > 1:
        torch.distributed.init_process_group("nccl", device_id=device)
        model = nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
    torch.manual_seed(100 + rank)  # each rank has data of its own
    losses = train(model, device)
    if rank == 0:
        print(f"rank 0 of {world} on {torch.cuda.get_device_name(device)}, allocator {torch.cuda.get_allocator_backend()}")
        print(f"loss     {losses[0]:.3f} at the first step, {losses[-1]:.3f} at the last of {STEPS}")
        print(f"memory   {torch.cuda.max_memory_allocated(device) / 2**20:.0f} MiB at most, as PyTorch counts")
    if world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
