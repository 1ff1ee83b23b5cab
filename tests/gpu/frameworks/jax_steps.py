"""Trains a small network for a few steps with JAX; prints its losses. Knows nothing of cupool."""

import json

import jax
import jax.numpy as jnp


def tell(question, answer):
    print(json.dumps({"question": question, "answer": answer}), flush=True)


def loss_of(weights, inputs, targets):
    hidden = jnp.tanh(inputs @ weights[0])
    return jnp.mean((jnp.tanh(hidden @ weights[1]) @ weights[2] - targets) ** 2)


@jax.jit
def step(weights, inputs, targets):
    loss, gradients = jax.value_and_grad(loss_of)(weights, inputs, targets)
    return loss, [weight - 0.05 * gradient for weight, gradient in zip(weights, gradients)]


gpu = [device for device in jax.devices() if device.platform == "gpu"]
if not gpu:
    raise SystemExit("JAX sees no GPU")
keys = jax.random.split(jax.random.PRNGKey(7), 5)
sizes = [(256, 512), (512, 512), (512, 8)]
weights = [jax.random.normal(key, size) * 0.05 for key, size in zip(keys, sizes)]
losses = []
for number in range(10):
    rows = 64 + 64 * (number % 2)  # two shapes: two programs, blocks of other sizes
    inputs = jax.random.normal(jax.random.fold_in(keys[3], number), (rows, 256))
    loss, weights = step(weights, inputs, inputs[:, :8])
    losses.append(float(loss))
tell("losses", losses)
tell("version", jax.__version__)
tell("device", gpu[0].device_kind)
big = jnp.full((64 << 20,), 3, dtype=jnp.uint8)
tell("64 MiB hold what was written", bool((big == 3).all()))
