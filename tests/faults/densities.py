"""Proper densities that nobody wrote by hand: let in, explored, some of them fitted.

Hypothesis puts them together. The numbers of a density are arrays, so that densities of
one form share their programs.
"""

import contextlib
import dataclasses
import sys
from typing import Any

import equinox as eqx
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import cauchy, laplace, logistic, norm, t

import pushforward as pf
from pushforward import methods
from pushforward.errors import DensityError
from pushforward.training.door import admit

from .tally import Tally

# An exploration and a fit compile for a while.
SECONDS = 300.0
# Of so many densities one is fitted, and one is a function of its own, whose programs
# are compiled for it; the others are chosen as they run.
FITTED_EVERY, PLAIN_EVERY = 10, 15
METHODS = (
    methods.Gaussian(steps=60, batch_size=32, particles=64),
    methods.KL(
        network=pf.networks.residual(8, 1),
        steps=60,
        batch_size=32,
        particles=64,
        score_warmup=5,
        score_steps=1,
    ),
)


def _mixture(z):
    return jnp.logaddexp(norm.logpdf(z, -4.0).sum(), norm.logpdf(z, 4.0).sum())


def _banana(z):
    first = norm.logpdf(z[0])
    return first + norm.logpdf(z[1:] - (z[:-1] ** 2 - 1.0)).sum()


def _funnel(z):
    return norm.logpdf(z[0]) + norm.logpdf(z[1:], 0.0, jnp.exp(z[0] / 2)).sum()


def _ring(z):
    return -8.0 * (jnp.sqrt(jnp.sum(z**2) + 1e-12) - 2.0) ** 2


def _regression(z):
    # Flat in everything but what the data say, with the log of a scale.
    x = jnp.linspace(-1.0, 1.0, 20)
    mean = jnp.polyval(z[1:], x) if len(z) > 1 else jnp.zeros_like(x)
    return norm.logpdf(jnp.sin(5 * x), mean, jnp.exp(z[0])).sum() - 0.01 * z[0] ** 2


FORMS = {
    "normal": lambda z: norm.logpdf(z).sum(),
    "Student t": lambda z: t.logpdf(z, 3.0).sum(),
    "Cauchy": lambda z: cauchy.logpdf(z).sum(),
    "Laplace": lambda z: laplace.logpdf(z).sum(),
    "logistic": lambda z: logistic.logpdf(z).sum(),
    "quartic": lambda z: -jnp.sum(z**4),
    "two modes": _mixture,
    "banana": _banana,
    "funnel": _funnel,
    "ring": _ring,
    "regression": _regression,
}


def _halved(z, value):
    return value + jax.lax.fori_loop(0, 3, lambda i, a: a * 0.5, 0.0)


# One thing that users do.
QUIRKS = {
    "none": lambda z, value: value,
    "-inf outside": lambda z, value: jnp.where(z[0] > -1.5, value, -jnp.inf),
    "nan outside": lambda z, value: value + 0.0 * jnp.sqrt(z[0] + 2.5),
    "abs": lambda z, value: value - jnp.abs(z).sum(),
    "while": _halved,
    "64-bit constant": lambda z, value: value + np.float64(2.0).astype(np.float32),
}


class Density(eqx.Module):
    """`form((x - shift) / scale) + constant`, with a quirk."""

    shift: jax.Array
    scale: jax.Array
    constant: jax.Array
    form: str = eqx.field(static=True)
    quirk: str = eqx.field(static=True)

    def __call__(self, x):
        z = (x - self.shift) / self.scale
        return QUIRKS[self.quirk](z, FORMS[self.form](z) + self.constant)


class Chosen(eqx.Module):
    """The same, chosen as it runs: all of one dimension share their programs."""

    density: Density
    form: jax.Array
    quirk: jax.Array

    @staticmethod
    def of(density: Density) -> "Chosen":
        form, quirk = list(FORMS).index(density.form), list(QUIRKS).index(density.quirk)
        plain = dataclasses.replace(density, form="", quirk="")
        return Chosen(plain, jnp.asarray(form), jnp.asarray(quirk))

    def __call__(self, x):
        d = self.density
        z = (x - d.shift) / d.scale
        value = jax.lax.switch(self.form, list(FORMS.values()), z) + d.constant
        return jax.lax.switch(self.quirk, list(QUIRKS.values()), z, value)


@dataclasses.dataclass(frozen=True)
class Case:
    """A density and how many coordinates it has."""

    density: Density
    dim: int

    def __repr__(self) -> str:
        d = self.density
        numbers = [np.asarray(a).tolist() for a in (d.shift, d.scale, d.constant)]
        return f"{d.form}, {d.quirk}, dim {self.dim}, {numbers}"


@st.composite
def cases(draw) -> Case:
    """Few numbers of coordinates, for each of them is a program."""
    dim = draw(st.sampled_from((1, 2, 5)))
    form = draw(st.sampled_from(sorted(FORMS)))
    if form in ("banana", "funnel", "ring") and dim == 1:
        dim = 2
    shift = draw(st.floats(-1e3, 1e3, width=32))
    scale = 10.0 ** draw(st.integers(-3, 3))
    # Far away in its own units 32 bits could not tell one point from another.
    shift = np.clip(shift, -100 * scale, 100 * scale)
    constant = draw(st.sampled_from((0.0, -1e4, 3.5, 1e4)))
    density = Density(
        jnp.full(dim, shift, jnp.float32),
        jnp.full(dim, scale, jnp.float32),
        jnp.asarray(constant, jnp.float32),
        form,
        draw(st.sampled_from(sorted(QUIRKS))),
    )
    return Case(density, dim)


def campaign(seed: int, count: int) -> Tally:
    """Each is examined and explored for a short while; one in ten is fitted."""
    tally, found = Tally(), []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate,),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(cases())
    def each(case):
        found.append(case)

    each()
    tried = list(enumerate(found[:count], start=1))
    plain = [pair for pair in tried if pair[0] % PLAIN_EVERY == 0]
    chosen = [pair for pair in tried if pair[0] % PLAIN_EVERY]
    # One form after the other, for few programs are kept.
    plain.sort(key=lambda pair: _form(pair[1]))
    # Ctrl-C ends it early: what was tried until then counts.
    made = 0
    with contextlib.suppress(KeyboardInterrupt):
        for number, case in [*chosen, *plain]:
            if made % 50 == 0:
                print(f"{made} of {len(tried)} densities", file=sys.stderr, flush=True)
            density = case.density if number % PLAIN_EVERY == 0 else None
            _try(tally, case, density or Chosen.of(case.density), number)
            made += 1
    tally.numbers["densities, all told"] = made
    return tally


def _form(case: Case) -> tuple[str, str, int]:
    return case.density.form, case.density.quirk, case.dim


_values = eqx.filter_jit(lambda density, starts: jax.vmap(density)(starts))


def _try(tally: Tally, case: Case, density: Any, seed: int) -> None:
    key = jax.random.key(seed)
    target = pf.Target(density, dim=case.dim)
    starts = jax.random.normal(key, (1000, case.dim))
    if not np.isfinite(_values(density, starts)).any():
        # No sampler has a place to begin: a sentence says so.
        with tally.guarded("not finite around the origin", seconds=SECONDS):
            try:
                admit(key, target)
            except DensityError:
                return
            raise RuntimeError(f"{case} was let in")
        return
    with tally.guarded("examined", seconds=SECONDS):
        try:
            admit(key, target)
        except Exception as error:
            raise RuntimeError(f"{case}: {error}") from error
    with tally.guarded("explored", seconds=SECONDS):
        try:
            found = pf.explore(key, target, max_evaluations=20_000)
            assert np.isfinite(np.asarray(found.particles)).all(), "particles"
        except Exception as error:
            raise RuntimeError(f"{case}: {error}") from error
    if seed % FITTED_EVERY:
        return
    with tally.guarded("fitted", seconds=SECONDS):
        try:
            method = METHODS[seed // FITTED_EVERY % len(METHODS)]
            fit = pf.fit(key, target, method, throw=False, progress=False)
            draws = fit.sampler.sample(key, 10_000)
            assert not fit.finished or np.isfinite(np.asarray(draws)).all(), "draws"
        except Exception as error:
            raise RuntimeError(f"{case}: {error}") from error
