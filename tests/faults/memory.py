"""Memory over many fits, each of a density of its own, and over a long stream."""

import gc
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import psutil

import pushforward as pf
from pushforward import methods, networks

from .tally import Tally

MOST_GROWTH = 200 * 2**20
# Draws of a stream for each fit of the campaign.
DRAWS_A_FIT = 2_000_000


def _held() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def campaign(seed: int, count: int) -> Tally:
    """So many fits, and a stream of so many times two million draws."""
    tally = Tally()
    method = methods.Gaussian(steps=20, batch_size=8, particles=16)
    held = []
    for i in range(count):

        def log_density(x, centre=float(i)):
            return -0.5 * jnp.sum((x - centre) ** 2)

        target = pf.Target(log_density, dim=2)
        pf.fit(jax.random.key(seed), target, method, progress=False)
        held.append(_held())
    grown = max(held) - held[0]
    tally.numbers["MB after the first fit"] = held[0] / 2**20
    tally.numbers["most MB after that"] = grown / 2**20
    what = f"memory grew by {grown:,} bytes"
    tally.expect(f"{count} fits in a process", grown < MOST_GROWTH, what)
    draws = count * DRAWS_A_FIT
    sampler = pf.Sampler.from_network(networks.AffineMap(2))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "draws.npy"
        sampler.stream(jax.random.key(0), DRAWS_A_FIT, path)
        before, begun, most = _held(), time.monotonic(), 0
        for block in sampler.iter_batches(jax.random.key(0), 10 * sampler.block_size):
            del block
        sampler.stream(jax.random.key(0), draws, path)
        most = psutil.Process().memory_info().rss - before
        seconds = time.monotonic() - begun
        size = path.stat().st_size
    tally.numbers["draws a second, streamed"] = draws / seconds
    tally.numbers["MB grown by a stream"] = most / 2**20
    whole = size >= draws * 8 and most < MOST_GROWTH
    tally.expect(
        f"a stream of {draws:,} draws", whole, f"{size:,} bytes, {most:,} more"
    )
    return tally
