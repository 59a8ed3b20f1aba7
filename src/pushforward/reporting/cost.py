"""What a sampler costs, and what NUTS would; and what a page may spend."""

import math
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.diagnostics import ess_bulk, rhat
from jaxtyping import PRNGKeyArray

from pushforward.diagnostics.tests.base import Evidence
from pushforward.mcmc.nuts import nuts_draws, nuts_warmup
from pushforward.sampler import Sampler
from pushforward.targets.base import AbstractTarget

# Draws that the speed is measured with, and the most numbers they may have.
_TIMED, _TIMED_NUMBERS = 100_000, 2**22
# The chains that the cost is compared with.
_CHAINS, _WARMUP, _CHAIN_DRAWS = 4, 300, 300
MAX_NUTS_DIM, _MAX_RHAT = 100, 1.05
# Sums over more data than this take too long to be moved by MCMC for a picture.
MAX_TERMS = 10_000


class Purse:
    """What of the allowed evaluations is left for pictures."""

    def __init__(self, most: int | float | None, spent: int):
        self.most, self.spent = most, spent

    def pays(self, evaluations: int, what: str, omitted: list[str]) -> bool:
        """Spends the evaluations, or says what was left out for the lack of them."""
        if self.most is not None and self.spent + evaluations > self.most:
            omitted.append(
                f"{what}: it takes {evaluations:,} evaluations of the target, and "
                f"max_evaluations={self.most:,} does not pay for them"
            )
            return False
        self.spent += evaluations
        return True


def speed(key: PRNGKeyArray, sampler: Sampler) -> dict[str, Any]:
    """How many draws a second the sampler makes here, once it is compiled."""
    count = max(1000, min(_TIMED, _TIMED_NUMBERS // sampler.dim))
    jax.block_until_ready(sampler.sample(key, count))
    begun = time.perf_counter()
    jax.block_until_ready(sampler.sample(jax.random.fold_in(key, 1), count))
    spent = max(time.perf_counter() - begun, 1e-9)
    return {"draws_per_second": count / spent, "timed_draws": count}


def beside_nuts(
    key: PRNGKeyArray,
    target: AbstractTarget,
    evidence: Evidence | None,
    run: dict[str, Any],
    purse: Purse,
    omitted: list[str],
) -> dict[str, Any] | None:
    """From how many draws on NUTS would have cost more evaluations than training."""
    what = "the comparison with NUTS"
    if (reason := target.why_no_values()) is not None:
        omitted.append(f"{what}: {reason}")
    elif run.get("evaluations") is None:
        omitted.append(f"{what}: it is not known what training cost")
    elif target.dim > MAX_NUTS_DIM or target.num_terms > MAX_TERMS:
        omitted.append(f"{what}: NUTS takes too long here to be run for a page")
    elif evidence is None or len(evidence.sample.draws) < _CHAINS:
        omitted.append(f"{what}: there are no draws to start it from")
    elif purse.most is not None:
        omitted.append(f"{what}: what it takes cannot be bounded by max_evaluations")
    else:
        return _run_nuts(key, target, evidence.sample.draws, run, purse)
    return None


def _run_nuts(key, target, draws, run, purse) -> dict[str, Any]:
    starts = jnp.asarray(draws[:_CHAINS], float)
    warm = nuts_warmup(key, target, starts, warmup=_WARMUP, doublings=8)
    made = nuts_draws(target, warm, draws=_CHAIN_DRAWS, doublings=8)
    positions = np.asarray(made.positions, np.float64)
    scaled = positions - np.median(positions, axis=(0, 1))
    scale = np.abs(scaled).max(axis=(0, 1))
    x = jnp.asarray(scaled / np.where(scale > 0, scale, 1.0), float)
    # BlackJAX mixes types, which a program in strict mode refuses.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        worth = np.asarray(ess_bulk(x), np.float64)
        split = np.asarray(rhat(x), np.float64)
    worth = worth[np.isfinite(worth)]
    least = float(np.clip(worth.min(initial=x.shape[0] * x.shape[1]), 1, None))
    warmup, leapfrogs = int(warm.leapfrogs), int(made.leapfrogs)
    purse.spent += warmup + leapfrogs
    each = leapfrogs / least
    largest = float(np.nanmax([*split, 1.0]))
    agree = largest <= _MAX_RHAT
    more = (int(run["evaluations"]) - warmup) / each
    return {
        "chains": _CHAINS,
        "warmup": _WARMUP,
        "draws": _CHAIN_DRAWS,
        "evaluations_per_effective_draw": each,
        "warmup_evaluations": warmup,
        "ess": least,
        "rhat": largest,
        "divergences": int(made.divergences),
        "agree": agree,
        "break_even_draws": max(math.ceil(more), 0) if agree else None,
    }
