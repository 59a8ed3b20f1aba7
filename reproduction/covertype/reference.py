"""The reference posterior of Covertype: NUTS on all rows, after a Laplace fit."""

import dataclasses
import hashlib
import io
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.diagnostics import ess_bulk, ess_tail, rhat
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward.diagnostics import sliced_w2
from pushforward.errors import FileError
from pushforward.mcmc import nuts_draws, nuts_warmup
from reproduction.common.cost import compiling
from reproduction.common.files import write_bytes
from reproduction.covertype.data import Classification
from reproduction.covertype.posterior import Affine, relative
from reproduction.covertype.settings import Scale

FILE = "covertype_reference.npz"
# Requirements on a reference.
MAX_RHAT, MIN_ESS = 1.01, 10_000
# Sets of reference draws whose distance to the stored ones is the baseline.
_FLOOR_SETS = 8


@dataclasses.dataclass(frozen=True)
class Reference:
    """Moments and draws of the posterior."""

    whitening: Affine
    mean: Float[np.ndarray, " d"]
    sd: Float[np.ndarray, " d"]
    # In whitened coordinates.
    draws: Float[np.ndarray, "n d"]

    def save(self, path: Path) -> str:
        """Writes the file; returns its checksum."""
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer,
            centre=np.asarray(self.whitening.centre),
            factor=np.asarray(self.whitening.factor),
            mean=self.mean,
            sd=self.sd,
            draws=self.draws.astype(np.float32),
        )
        write_bytes(path, buffer.getvalue())
        return hashlib.sha256(buffer.getvalue()).hexdigest()

    @staticmethod
    def load(path: Path, sha256: str) -> "Reference":
        """Reads the file and compares its checksum with that of the result file."""
        if not path.exists():
            raise FileError(
                f"The result file refers to draws in {path}, which does not exist; "
                "copy them there, or start again in another directory."
            )
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != sha256:
            raise FileError(
                f"{path} is not the reference of the result file beside it; copy the "
                "right one there, or start again in another directory."
            )
        with np.load(io.BytesIO(content)) as held:
            dtype = jnp.result_type(float)
            centre, factor = (jnp.asarray(held[k], dtype) for k in ("centre", "factor"))
            return Reference(
                Affine(centre, factor),
                held["mean"],
                held["sd"],
                held["draws"],
            )

    def errors(self, x: Float[Any, "n d"]) -> dict[str, float]:
        """The largest error of a mean, in standard deviations, and ratios of sds."""
        x = np.asarray(x, np.float64)
        gaps = np.abs(x.mean(axis=0) - self.mean) / self.sd
        ratios = x.std(axis=0) / self.sd
        return {
            "mean_error": float(gaps.max()),
            "sd_low": float(ratios.min()),
            "sd_high": float(ratios.max()),
        }

    def distance(self, key: PRNGKeyArray, x: Float[Array, "n d"]) -> float:
        """Sliced W2 between draws and the stored ones, in whitened coordinates."""
        x = jnp.asarray(x, jnp.result_type(float))
        u = jax.vmap(self.whitening.from_target)(x)
        if not bool(jnp.isfinite(u).all()):
            return float("nan")
        return float(sliced_w2(key, u, jnp.asarray(self.draws, u.dtype)))


@dataclasses.dataclass(frozen=True)
class Run:
    """The reference, its quality and its cost."""

    reference: Reference
    rhat: float
    ess: float
    divergences: int
    leapfrogs: int
    seconds: dict[str, float]
    # One half of the chains against the other.
    errors: dict[str, float]
    # Sliced W2 to the kept draws, by number of draws: one value for each set.
    floor: dict[int, list[float]]
    # Draws that are not among the kept ones, in the posterior's coordinates.
    others: Float[np.ndarray, "n d"]


def run_nuts(
    key: PRNGKeyArray,
    data: Classification,
    whitening: Affine,
    scale: Scale,
    sizes: tuple[int, ...],
) -> Run:
    """Runs NUTS chains from draws of the Laplace fit and evaluates them.

    Args:
        key: random key.
        data: the rows.
        whitening: of the Laplace fit.
        scale: how many chains, and how long.
        sizes: numbers of draws whose floor is measured.
    """
    start_key, run_key, pick_key, w2_key = jax.random.split(key, 4)
    target = relative(data, whitening)
    starts = jax.random.normal(start_key, (scale.chains, target.dim))
    # Warm-up and draws are timed separately, without compilation.
    seconds = {}
    begun = time.perf_counter()
    with compiling() as compiled:
        warm = nuts_warmup(
            run_key, target, starts, warmup=scale.warmup, doublings=scale.doublings
        )
        jax.block_until_ready(warm.states)
    seconds["warmup_seconds"] = time.perf_counter() - begun - compiled.seconds
    begun = time.perf_counter()
    with compiling() as compiled:
        chains = nuts_draws(target, warm, draws=scale.draws, doublings=scale.doublings)
        jax.block_until_ready(chains.positions)
    seconds["seconds"] = time.perf_counter() - begun - compiled.seconds
    u = np.asarray(chains.positions, np.float64)
    to_target = np.asarray(whitening.factor, np.float64)
    x = np.asarray(whitening.centre, np.float64) + u @ to_target.T
    # Even chains give the stored draws; odd ones are compared with them.
    kept, others = u[0::2].reshape(-1, target.dim), u[1::2].reshape(-1, target.dim)
    order = np.asarray(jax.random.permutation(pick_key, len(kept)))[: scale.kept]
    draws = kept[order].astype(np.float32)
    flat = x.reshape(-1, target.dim)
    reference = Reference(whitening, flat.mean(axis=0), flat.std(axis=0), draws)
    scaled = jnp.asarray((x - reference.mean) / reference.sd, jnp.result_type(float))
    worst, effective = _mixing(scaled)
    half = x[0::2].reshape(-1, target.dim)
    mixed = others[np.random.default_rng(0).permutation(len(others))]
    return Run(
        reference,
        rhat=float(worst),
        ess=float(effective),
        divergences=int(chains.divergences),
        leapfrogs=int(chains.leapfrogs) + int(warm.leapfrogs),
        seconds=seconds,
        errors=dataclasses.replace(
            reference, mean=half.mean(axis=0), sd=half.std(axis=0)
        ).errors(x[1::2].reshape(-1, target.dim)),
        floor={n: _floor(w2_key, mixed, draws, n) for n in sizes},
        others=np.asarray(whitening.centre, np.float64) + mixed @ to_target.T,
    )


@jax.jit
def _mixing(x: Float[Array, "chains n d"]) -> tuple[Array, Array]:
    """The largest R-hat and the smallest effective sample size, bulk or tail."""
    # BlackJAX's diagnostics mix types and ranks.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        effective = jnp.minimum(ess_bulk(x), ess_tail(x))
        return jnp.max(rhat(x)), jnp.min(effective)


def _floor(key: PRNGKeyArray, others, draws, n: int) -> list[float]:
    """The distances of several sets of `n` other draws to the stored ones."""
    sets = max(min(len(others) // n, _FLOOR_SETS), 1)
    dtype = jnp.result_type(float)
    kept = jnp.asarray(draws, dtype)
    return [
        float(
            sliced_w2(
                jax.random.fold_in(key, i),
                jnp.asarray(others[i * n : (i + 1) * n], dtype),
                kept,
            )
        )
        for i in range(sets)
    ]
