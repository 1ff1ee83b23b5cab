"""Trains a small GPT with JAX, with a fixed length and with three in turn: step times, losses, peak memory. Knows nothing of cupool."""

import time

from told import DeviceMemory, figures, leave_out, tell

memory = DeviceMemory()  # before JAX makes a context

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

LAYERS, WIDTH, HEADS, VOCABULARY, BATCH = 8, 768, 12, 16384, 8
LENGTH, LENGTHS = 512, (512, 256, 384)
WARM_UP, TIMED, WATCHED = 6, 40, 3


def start(seed):
    keys = jax.random.split(jax.random.PRNGKey(seed), 7)
    normal = lambda key, *shape: jax.random.normal(key, shape) * 0.02  # noqa: E731
    return {"tokens": normal(keys[0], VOCABULARY, WIDTH), "places": normal(keys[1], LENGTH, WIDTH),
            "blocks": {"mix": normal(keys[2], LAYERS, WIDTH, 3 * WIDTH), "out": normal(keys[3], LAYERS, WIDTH, WIDTH),
                       "wide": normal(keys[4], LAYERS, WIDTH, 4 * WIDTH), "narrow": normal(keys[5], LAYERS, 4 * WIDTH, WIDTH)},
            "head": normal(keys[6], WIDTH, VOCABULARY)}


def normed(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def block(x, weights):
    batch, length, _ = x.shape
    query, key, value = jnp.split(normed(x) @ weights["mix"], 3, axis=-1)
    heads = lambda part: part.reshape(batch, length, HEADS, WIDTH // HEADS)  # noqa: E731
    scores = jnp.einsum("bqhd,bkhd->bhqk", heads(query), heads(key)) / (WIDTH // HEADS) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    attended = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), heads(value)).reshape(batch, length, WIDTH)
    x = x + attended @ weights["out"]
    return x + jax.nn.gelu(normed(x) @ weights["wide"]) @ weights["narrow"], None


def loss_of(weights, tokens):
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    x = weights["tokens"][inputs] + weights["places"][:inputs.shape[1]]
    x, _ = jax.lax.scan(block, x, weights["blocks"])
    logits = jax.nn.log_softmax(normed(x) @ weights["head"])
    return -jnp.take_along_axis(logits, targets[..., None], axis=-1).mean()


@jax.jit
def step(weights, momenta, tokens):
    loss, gradients = jax.value_and_grad(loss_of)(weights, tokens)
    momenta = jax.tree_util.tree_map(lambda momentum, gradient: 0.9 * momentum + gradient, momenta, gradients)
    return loss, jax.tree_util.tree_map(lambda weight, momentum: weight - 0.01 * momentum, weights, momenta), momenta


def measure(kind, lengths):
    weights, losses, times_ns = start(7), [], []
    momenta = jax.tree_util.tree_map(jnp.zeros_like, weights)
    key = jax.random.PRNGKey(11)
    batches = [jax.random.randint(jax.random.fold_in(key, number), (BATCH, lengths[number % len(lengths)] + 1), 0, VOCABULARY)
               for number in range(WARM_UP + TIMED)]
    for tokens in batches:
        begin = time.perf_counter_ns()
        loss, weights, momenta = step(weights, momenta, tokens)
        losses.append(float(loss))  # waits for the step
        times_ns.append(time.perf_counter_ns() - begin)
    tell(f"losses, {kind}", losses)
    tell(f"steps, {kind}", figures(times_ns[WARM_UP:]))

    def watched(sample):
        nonlocal weights, momenta
        for tokens in batches[:WATCHED]:
            loss, weights, momenta = step(weights, momenta, tokens)
            float(loss)
            sample()
    memory.tell_peak(kind, watched)


def main():
    gpu = [device for device in jax.devices() if device.platform == "gpu"]
    if not gpu:
        raise SystemExit("JAX sees no GPU")
    tell("version", jax.__version__)
    tell("device", gpu[0].device_kind)
    measure("fixed lengths", [LENGTH])
    measure("varying lengths", LENGTHS)
    try:
        stats = gpu[0].memory_stats()
    except Exception as error:  # some allocators have none: not what is asked here
        stats, why = None, f"{type(error).__name__}: {error}"
    else:
        why = "this allocator has none"
    if stats:
        tell("JAX's own figures", {name: stats[name] for name in ("bytes_in_use", "peak_bytes_in_use", "bytes_limit") if name in stats})
    else:
        leave_out("JAX's own figures", why)
    big = jnp.full((64 << 20,), 3, dtype=jnp.uint8)
    tell("64 MiB hold what was written", bool((big == 3).all()))


if __name__ == "__main__":
    main()
