"""What does a training step of the energy model cost, and how busy is the device?

`train` (progress off; the same steps, keys and images) against one compiled `lax.scan`
of `step`, both compiled beforehand: the claims are the ratio of two runs, and that of
a further step, from runs of two lengths. The step's arithmetic, counted from the traced
program, over its time, beside the rate of one large convolution alone: the share. To
see what is in the way: the same with four times the batch, and a pass forward alone.

Run it from the root of a checkout: PYTHONPATH=. python benchmarks/energy.py
"""

import argparse
import functools
import json
import statistics
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
from engine import begin, scan

import pushforward as pf
from reproduction.common.cost import flops
from reproduction.mnist.tasks import Energy, Images


def seconds(call, repeats):
    """The median time of a call that has been made once before."""
    jax.block_until_ready(call())
    spent = []
    for _ in range(repeats):
        begun = time.perf_counter()
        jax.block_until_ready(call())
        spent.append(time.perf_counter() - begun)
    return statistics.median(spent)


def convolution_rate(side, channels, batch, dtype, times, repeats):
    """TFLOP/s of a 3x3 convolution, one after the other."""
    x = jax.random.normal(jax.random.key(0), (batch, side, side, channels), dtype)
    kernel = 0.01 * jax.random.normal(
        jax.random.key(1), (3, 3, channels, channels), dtype
    )
    names = ("NHWC", "HWIO", "NHWC")

    @jax.jit
    def several(x, kernel):
        def again(x, _):
            return jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=names
            ), None

        return jax.lax.scan(again, x, None, length=times)[0]

    work = 2 * times * batch * (side * channels * 3) ** 2
    return 1e-12 * work / seconds(lambda: several(x, kernel), repeats)


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("results/energy_step.json"))
    arguments = parser.parse_args()
    repeats, key = arguments.repeats, jax.random.key(0)
    pixels = jax.random.randint(key, (10_000, 1024), 0, 256).astype(jnp.uint8)
    images = Images(pixels, jnp.zeros(10_000, jnp.int32))
    backend, results = jax.default_backend(), {}
    dtype = jnp.float32 if backend == "cpu" else jnp.bfloat16
    for name, batch in (("batch_512", 512), ("batch_128", 128)):
        steps = arguments.steps * 128 // batch
        task = Energy(width=arguments.width, batch_size=batch)
        task = task.resolve(images)
        state = begin(task, images, key, jnp.asarray(steps, jnp.int32))
        work = 1e-12 * flops(task.step, key, images, state)

        def bare(task=task, state=state, steps=steps):
            return scan(task, images, key, state, steps)

        def engine(steps, task=task):
            return pf.train(key, images, task, steps=steps, progress=False).result

        plain = seconds(bare, repeats)
        results[name] = {
            "bare_ms_a_step": 1e3 * plain / steps,
            "tflop_a_step": work,
            "tflop_a_second": work * steps / plain,
        }
        if batch == 128:
            # Runs of two lengths: what the engine costs once is no part of a step.
            shorter = max(steps // 4, 1)
            whole = seconds(functools.partial(engine, steps), repeats)
            part = seconds(functools.partial(engine, shorter), repeats)
            a_step = (whole - part) / max(steps - shorter, 1)
            results[name]["engine_over_bare"] = whole / plain
            results[name]["engine_step_over_bare"] = a_step / (plain / steps)
        print(name, json.dumps(results[name]), flush=True)
    network = state.network
    look = eqx.filter_jit(lambda n, x: jax.vmap(n)(x))
    x = jax.random.normal(key, (512, 1024), jnp.float32)
    work = 1e-12 * 512 * flops(network, x[0])
    results["forward_tflop_a_second"] = work / seconds(lambda: look(network, x), 20)
    few = 2 if backend == "cpu" else 50
    batch = 16 if backend == "cpu" else 1024
    # The network's own layers at batch 128, and one that fills the device.
    results["convolution_tflop_a_second"] = {
        f"{side}x{side}x{channels}, batch {size}": convolution_rate(
            side, channels, size, dtype, few, repeats
        )
        for side, channels, size in (
            (32, 64, 128), (16, 128, 128), (8, 256, 128), (4, 512, 128),
            (16, 512, batch),
        )
    }  # fmt: skip
    best = max(results["convolution_tflop_a_second"].values())
    results["share_of_best_convolution"] = results["batch_128"]["tflop_a_second"] / best
    device = jax.devices()[0]
    results |= {"steps": steps, "repeats": repeats, "dtype": jnp.dtype(dtype).name}
    results["device"] = f"{device.platform}: {device.device_kind}"
    results["versions"] = {"pushforward": pf.__version__, "jax": jax.__version__}
    print(json.dumps(results, indent=2))
    arguments.out.parent.mkdir(exist_ok=True, parents=True)
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
