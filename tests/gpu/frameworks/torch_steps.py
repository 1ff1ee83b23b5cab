"""Trains a small network for a few steps with PyTorch; prints its losses and what torch says of its memory. Knows nothing of cupool."""

import json

import torch


def tell(question, answer):
    print(json.dumps({"question": question, "answer": answer}), flush=True)


torch.manual_seed(7)
torch.backends.cuda.matmul.allow_tf32 = False
torch.use_deterministic_algorithms(True)
device = torch.device("cuda")
model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for step in range(12):
    batch = 64 + 32 * (step % 4)  # changing shapes, so that blocks are freed and taken anew
    inputs, targets = torch.randn(batch, 512, device=device), torch.randint(0, 10, (batch,), device=device)
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
tell("losses", losses)
tell("version", torch.__version__)
tell("device", torch.cuda.get_device_name())
free_bytes, total_bytes = torch.cuda.mem_get_info()
tell("free memory is possible", 0 < free_bytes <= total_bytes)
big = torch.full((64 << 20,), 3, dtype=torch.uint8, device=device)
tell("64 MiB hold what was written", bool((big == 3).all().item()))
try:
    torch.empty(total_bytes * 2, dtype=torch.uint8, device=device)
    tell("twice the device", "allocated")
except torch.cuda.OutOfMemoryError:
    tell("twice the device", "torch.cuda.OutOfMemoryError")
