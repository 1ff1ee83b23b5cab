"""PyTorch and JAX train in one process, in turn: both sets of losses. Knows nothing of cupool."""

from told import DeviceMemory, tell

memory = DeviceMemory()

import torch  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

STEPS = 20


class TorchSide:
    def __init__(self):
        torch.manual_seed(7)
        self.model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 64)).to("cuda")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self, rows):
        inputs = torch.randn(rows, 512, device="cuda")
        loss = torch.nn.functional.mse_loss(self.model(inputs), inputs[:, :64])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def jax_loss(weights, inputs):
    return jnp.mean((jnp.tanh(inputs @ weights[0]) @ weights[1] - inputs[:, :64]) ** 2)


@jax.jit
def jax_step(weights, inputs):
    loss, gradients = jax.value_and_grad(jax_loss)(weights, inputs)
    return loss, [weight - 0.05 * gradient for weight, gradient in zip(weights, gradients)]


def main():
    torch.use_deterministic_algorithms(True, warn_only=True)
    if not any(device.platform == "gpu" for device in jax.devices()):
        raise SystemExit("JAX sees no GPU")
    side, key = TorchSide(), jax.random.PRNGKey(7)
    weights = [jax.random.normal(jax.random.fold_in(key, i), shape) * 0.05 for i, shape in enumerate([(512, 2048), (2048, 64)])]
    losses = {"torch": [], "jax": []}
    for number in range(STEPS):
        losses["torch"].append(side.step(64 + 96 * (number % 5)))
        loss, weights = jax_step(weights, jax.random.normal(jax.random.fold_in(key, 100 + number), (64 + 64 * (number % 2), 512)))
        losses["jax"].append(float(loss))
    for name, values in losses.items():
        tell(f"losses, {name}", values)
    # Each frees what the other may then use: only one pool behind both can do that.
    blocks = [torch.full((32 << 20,), i, dtype=torch.uint8, device="cuda") for i in range(4)]
    arrays = [jnp.full((32 << 20,), i, dtype=jnp.uint8) for i in range(4)]
    tell("each holds what it wrote", all(bool((block == i).all().item()) for i, block in enumerate(blocks))
         and all(bool((array == i).all()) for i, array in enumerate(arrays)))
    memory.tell_peak("both", lambda sample: sample())


if __name__ == "__main__":
    main()
