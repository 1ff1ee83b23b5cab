"""Fits a small network with JAX, with batches of two shapes. Knows nothing of cupool.

Without JAX or without a GPU it says so and ends with 77.
"""

from __future__ import annotations

import sys

STEPS = 20


def skip(why: str) -> None:
    print(f"skipped: {why}")
    sys.exit(77)


try:
    import jax
    import jax.numpy as jnp
except (ImportError, OSError) as error:
    skip(f"JAX cannot be imported ({error}); pip install 'jax[cuda13]==0.10.2'")


def loss_of(weights, inputs, targets):
    hidden = jnp.tanh(inputs @ weights[0])
    return jnp.mean((jnp.tanh(hidden @ weights[1]) @ weights[2] - targets) ** 2)


def train() -> list[float]:
    @jax.jit
    def update(weights, inputs, targets):
        loss, gradients = jax.value_and_grad(loss_of)(weights, inputs, targets)
        return loss, [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients)]

    key = jax.random.PRNGKey(7)
    weights = [0.05 * jax.random.normal(jax.random.fold_in(key, i), shape) for i, shape in enumerate([(512, 1024), (1024, 1024), (1024, 8)])]
    losses = []
    for step in range(STEPS):
        inputs = jax.random.normal(jax.random.fold_in(key, 100 + step), (1024 * (1 + step % 2), 512))
        loss, weights = update(weights, inputs, inputs[:, :8])
        losses.append(float(loss))
    return losses


def main() -> None:
    try:
        devices = jax.devices("gpu")
    except RuntimeError as error:
        skip(f"JAX sees no GPU ({str(error).splitlines()[0]})")
    losses = train()
    print(f"device   {devices[0].device_kind}, jax {jax.__version__}")
    print(f"loss     {losses[0]:.3f} at the first step, {losses[-1]:.3f} at the last of {STEPS}")


if __name__ == "__main__":
    main()
