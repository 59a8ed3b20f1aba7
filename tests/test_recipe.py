"""The recipe's decisions: when DFT is tried, and what is left out when it is not."""

import signal
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pushforward as pf
from pushforward import methods
from pushforward.errors import FileError, UnfinishedWarning
from pushforward.methods.base import Clock, replace
from pushforward.methods.gaussian import GaussianState
from pushforward.methods.judging import lost_weight
from pushforward.methods.recipe import Choose, ChooseState, Screen
from pushforward.networks.mlp import AffineMap
from pushforward.sampler import Sampler, read_safetensors
from pushforward.targets.coordinates import Whitening
from pushforward.training import runner
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


def test_many_seeds_go_on_if_one_has_something_to_win():
    keys = jax.random.split(jax.random.key(5), 2)
    easy, hard = pf.fit_many(keys, [EASY, HARD], TINY, progress=False)
    assert stages(easy) == stages(hard) == STAGES
    columns = [fitted.history["dft_tried"] for fitted in (easy, hard)]
    assert [column[np.isfinite(column)].tolist() for column in columns] == [[0], [1]]


def test_stopped_wherever_it_is_it_ends_with_the_same_bits(tmp_path, monkeypatch):
    """Ctrl-C again and again, in every stage and at its end."""
    key, whole, pieces = jax.random.key(0), tmp_path / "whole", tmp_path / "pieces"
    at_once = pf.fit(key, HARD, TINY, out=whole, progress=False)
    assert at_once.finished and stages(at_once) == STAGES
    advance, calls, seen = runner.advance, [], set()

    def interrupted(*arguments):
        calls.append(1)
        # Stages of a single step are a single call.
        if len(calls) % 2 == 0 or isinstance(arguments[0], Screen | Choose):
            signal.raise_signal(signal.SIGINT)
        return advance(*arguments)

    monkeypatch.setattr(runner, "advance", interrupted)
    for _ in range(1000):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnfinishedWarning)
            part = pf.fit(key, HARD, TINY, out=pieces, resume=True, progress=False)
        header, arrays = read_safetensors(pieces / "state.safetensors", kind="state")
        seen.add(header["stage"])
        if part.finished:
            break
    assert part.finished and seen == {0, 1, 2, 3}
    _, expected = read_safetensors(whole / "state.safetensors", kind="state")
    assert arrays.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(arrays[name], value, err_msg=name)


def test_a_seed_that_breaks_in_the_first_stage_stays_frozen(monkeypatch):
    """It says so at the end, and does not keep the others from being settled."""
    step = methods.Transport.step

    def fragile(self, key, target, state):
        state, info = step(self, key, target, state)
        # Some seeds' first component lies to the right: those break.
        broken = state.look.particles[0, 0] > 0
        poison = jnp.where(broken, jnp.nan, 0.0).astype(jnp.float32)
        return jax.tree.map(
            lambda a: a + poison if a.dtype == jnp.float32 else a, state
        ), info

    monkeypatch.setattr(methods.Transport, "step", fragile)
    keys = jax.random.split(jax.random.key(5), 4)
    fits = pf.fit_many(keys, EASY, TINY, progress=False)
    frozen = [f for f in fits if "frozen" in f.status]
    alive = [f for f in fits if f.finished]
    assert frozen and alive and len(frozen) + len(alive) == len(keys)
    assert all(stages(f) == STAGES[:2] for f in fits)
    for fitted in fits:
        assert np.isfinite(fitted.sampler.sample(jax.random.key(0), 100)).all()


def look_at_nothing(dim):
    particles = jax.random.normal(jax.random.key(0), (64, dim))
    return Look(Whitening.identity(dim), particles, None, None, None, jnp.asarray(0))


def shifted(distance):
    """A map to a standard normal so far to the right."""
    mean = jnp.array([distance, 0.0], jnp.float32)
    return eqx.tree_at(lambda m: m.mean, AffineMap(2), mean)


@pytest.mark.parametrize(("shift", "least", "most"), [(0.0, 0, 16), (0.3, 200, 200)])
def test_how_often_the_screen_wants_more(shift, least, most):
    """200 times, for a sampler that is exact and for one that is .3 to the right.

    Over 16 sets the mean U-statistic of exact draws lies more than two standard errors
    above 0 with a chance p of about 3.6 % (Student-t, 15 degrees of freedom, the
    deviation taken without Bessel's correction: t > 2 sqrt(15 / 16)); 16 of 200 is more
    than three standard deviations above 200 p. The shift is 3.4 errors of the mean of
    the 128 draws in each of the 16 sets: seen every time.
    """
    before = methods.Gaussian().resolve(EASY, "cpu")
    network, seen = shifted(shift), look_at_nothing(2)
    first = GaussianState(network, network, (), seen, Clock.start(jnp.asarray(1)))
    screen = Screen(before=before, batch_size=128)
    state = screen.init(jax.random.key(0), EASY, jnp.asarray(1), first)
    assert not screen.settled(state)

    @jax.jit
    @jax.vmap
    def wanting(key):
        new, info = screen.step(key, EASY, state)
        return new.wanting, info["dft_tried"], screen.settled(new)

    wants, tried, done = wanting(jax.random.split(jax.random.key(7), 200))
    np.testing.assert_array_equal(wants, tried == 1)
    np.testing.assert_array_equal(wants, ~done)
    assert least <= int(jnp.sum(wants)) <= most


@pytest.mark.parametrize("wanting", [True, False])
@pytest.mark.parametrize(("kept", "trial"), [(0.3, 0.0), (0.0, 0.3)])
def test_dft_is_taken_where_it_was_wanted_and_is_better(kept, trial, wanting):
    """.3 to the right is many standard errors of the U-statistic, as above."""
    whitening, structure = Whitening.identity(2), EASY.structure
    samplers = [
        Sampler(shifted(s), whitening, jnp.zeros(()), structure) for s in (kept, trial)
    ]
    choose = methods.Recipe().resolve(EASY, "cpu").stages()[-1]
    choose = replace(choose, batch_size=256)
    before = ChooseState(
        *samplers, look_at_nothing(2), jnp.asarray(wanting), jnp.zeros((), bool)
    )
    after, info = eqx.filter_jit(choose.step)(jax.random.key(1), EASY, before)
    taken = wanting and trial < kept
    assert bool(after.take_trial) == taken == bool(info["dft_chosen"])
    mean = choose.sampler(EASY, after).network.mean
    assert float(mean[0]) == pytest.approx(trial if taken else kept)


@pytest.mark.parametrize(
    ("kept", "trial", "lost"),
    [(0.5, 0.5, False), (0.5, 0.9, True), (0.9, 0.5, False), (0.9, 0.98, True)],
)
def test_weight_that_was_too_much_is_not_lost(kept, trial, lost):
    """Two modes of one weight, and the weight that two samplers give to the first.

    4 standard errors, as for a normal: exact shares pass but for one time in 10^4, with
    eight cells. .1 and .02 are 30 errors below .5, and 10 from each other.
    """

    def draws(seed, share, n):
        mode_key, key = jax.random.split(jax.random.key(seed))
        sign = jnp.where(jax.random.bernoulli(mode_key, share, (n, 1)), -5.0, 5.0)
        return jax.random.normal(key, (n, 2)) + sign * jnp.ones((1, 2))

    reference = draws(0, 0.5, 2048)
    found = lost_weight(
        jax.random.key(3), reference, draws(1, kept, 4096), draws(2, trial, 4096)
    )
    assert (float(found) > 4) == lost
