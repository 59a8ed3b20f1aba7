"""The recipe's decisions: when DFT is tried, and what is left out when it is not."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pushforward as pf
from pushforward import methods
from pushforward.errors import FileError
from pushforward.methods.base import Clock
from pushforward.methods.gaussian import GaussianState
from pushforward.methods.recipe import Screen
from pushforward.networks.mlp import AffineMap
from pushforward.targets.coordinates import Whitening
from pushforward.whitening import Look

TINY = methods.Recipe(steps=200, batch_size=32, width=8)
STAGES = ["transport", "screen", "polish", "choose"]
# So few steps do for a normal, and not for a narrow wave: its KSD stays many standard
# errors above that of exact draws.
EASY = pf.Target(lambda x: -0.5 * jnp.sum(x**2), dim=2)
HARD = pf.Target(
    lambda x: -0.5 * (x[0] ** 2 + ((x[1] - jnp.sin(6 * x[0])) / 0.05) ** 2), dim=2
)


def stages(fitted):
    return list(dict.fromkeys(fitted.history["stage"].tolist()))


@pytest.fixture(scope="module")
def settled(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "easy"
    return pf.fit(jax.random.key(0), EASY, TINY, out=out, progress=False), out


def test_nothing_to_win_is_not_tried(settled):
    fitted, _ = settled
    assert stages(fitted) == STAGES[:2]
    last = fitted.history.rows[-1]
    assert last["dft_tried"] == 0 and last["ksd_kl"] <= 2 * last["ksd_kl_error"]
    first, screen = methods.Recipe.stages(TINY.resolve(EASY, "cpu"))[:2]
    made = first.steps + screen.steps
    assert fitted.finished and fitted.status.startswith(f"Finished {made} steps")
    # The map that was trained is handed back as it is, with its density.
    assert fitted.sampler.has_density


def test_a_run_that_settled_is_finished_and_cannot_grow(settled):
    fitted, out = settled
    again = pf.fit(jax.random.key(0), EASY, TINY, out=out, resume=True, progress=False)
    assert again.finished and again.evaluations == fitted.evaluations
    np.testing.assert_array_equal(
        *(f.sampler.sample(jax.random.key(1), 5) for f in (fitted, again))
    )
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    with pytest.raises(FileError, match="several stages and the first is done"):
        pf.fit(jax.random.key(0), EASY, TINY, steps=400, out=out, resume=True)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


def test_of_many_seeds_those_with_nothing_to_win_keep_their_sampler(settled):
    """One of two needs DFT: the other goes along, and is handed back untouched."""
    keys = jax.random.split(jax.random.key(5), 2)
    easy, hard = pf.fit_many(keys, [EASY, HARD], TINY, progress=False)
    assert stages(easy) == stages(hard) == STAGES
    columns = [fitted.history["dft_tried"] for fitted in (easy, hard)]
    assert [column[np.isfinite(column)].tolist() for column in columns] == [[0], [1]]
    assert easy.history.rows[-1]["dft_chosen"] == 0.0


@pytest.mark.parametrize(("shift", "least", "most"), [(0.0, 0, 22), (0.3, 200, 200)])
def test_how_often_the_screen_wants_more(shift, least, most):
    """200 times, for a sampler that is exact and for one that is .3 to the right.

    Over 16 sets the mean U-statistic of exact draws lies more than two standard errors
    above 0 with a chance p of about 4 % (Student-t, 15 degrees of freedom, the standard
    deviation taken without Bessel's correction: t > 2 sqrt(15 / 16)); 22 of 200 is more
    than three standard deviations above 200 p, and leaves room for its skewness. The
    shift is 2.6 sqrt(16) errors of the mean of 128 draws: seen every time.
    """
    target = EASY
    before = methods.Gaussian().resolve(target, "cpu")
    particles = jnp.zeros((1, 2))
    seen = Look(Whitening.identity(2), particles, None, None, None, jnp.asarray(0))
    network = eqx.tree_at(
        lambda m: m.mean, AffineMap(2), jnp.array([shift, 0.0], jnp.float32)
    )
    first = GaussianState(network, network, (), seen, Clock.start(jnp.asarray(1)))
    screen = Screen(before=before, batch_size=128)
    state = screen.init(jax.random.key(0), target, jnp.asarray(1), first)
    assert not screen.settled(state)

    @jax.jit
    @jax.vmap
    def wanting(key):
        new, info = screen.step(key, target, state)
        return new.wanting, info["dft_tried"], screen.settled(new)

    wants, tried, done = wanting(jax.random.split(jax.random.key(7), 200))
    np.testing.assert_array_equal(wants, tried == 1)
    np.testing.assert_array_equal(wants, ~done)
    assert least <= int(jnp.sum(wants)) <= most
