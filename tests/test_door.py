"""The door of `fit`: what NUTS would sample comes in, doubts go with it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import everyday
import pushforward as pf
from pushforward import methods, networks
from pushforward.errors import DensityError, TrainingError
from pushforward.mcmc.tails import look_again
from pushforward.methods.adaptive import doubts_of
from pushforward.targets.examine import examine
from pushforward.training import api
from pushforward.training.divergence import LastDraws, last_draws
from pushforward.training.door import admit
from pushforward.training.status import Status
from test_arguments import drawing

KEY = jax.random.key(0)
QUICK = methods.Transport(network=networks.mixture(width=8), steps=20, batch_size=64)


def test_there_are_enough_models():
    assert len(everyday.PROPER) >= 40 and len(everyday.IMPROPER) >= 10


@pytest.mark.parametrize("name", everyday.PROPER)
def test_no_proper_model_is_refused(name):
    doubts = admit(KEY, everyday.PROPER[name])
    # None of them is about the tails, which a second look settles.
    assert not [text for text in doubts if " in the direction " in text]


@pytest.mark.parametrize("name", everyday.IMPROPER)
def test_every_improper_model_is_named(name):
    target = everyday.IMPROPER[name]
    with pytest.raises(DensityError) as caught:
        admit(KEY, target)
    text = str(caught.value)
    assert "would run away" in text
    if "ignores the coordinate" in text:
        return
    assert "cannot be normalised" in text and "(its log is " in text
    # Without raising it is a doubt, and the last word on the tails.
    doubts = admit(KEY, target, throw=False)
    assert text in doubts and sum(" in the direction " in d for d in doubts) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", everyday.PROPER)
def test_every_proper_model_ends_with_finite_draws(name):
    fit = pf.fit(KEY, everyday.PROPER[name], progress=False)
    assert fit.status is Status.FINISHED, fit.message
    assert np.isfinite(fit.sampler.sample(jax.random.key(1), 10_000)).all()


def test_a_second_look_settles_a_suspicion():
    target = everyday.PROPER["raw_regression"]
    seen = examine(KEY, target)
    assert seen.passed and seen.suspects
    assert "does not fall in the direction" in str(seen.doubts)
    look = look_again(KEY, target, seen.suspects)
    assert look.flat is None and look.settled
    assert look.height > float(target.log_density(jnp.zeros(4)))


def half(x):
    """A normal density in the half of the plane where x[0] is positive."""
    return jnp.where(x[0] > 0, -0.5 * jnp.sum(x**2), -jnp.inf)


def test_doubts_go_with_the_fit(tmp_path):
    target = pf.Target(half, dim=2)
    out = tmp_path / "run"
    fit = pf.fit(KEY, target, QUICK, out=out, progress=False)
    (doubt,) = fit.doubts
    assert "because 'x[0]' is negative there" in doubt
    assert fit.config["target"]["doubts"] == [doubt]
    assert " There is a doubt, in .doubts." in fit.message
    assert f"\n  doubt    {doubt}" in str(fit)
    again = pf.fit(KEY, target, QUICK, out=out, resume=True, progress=False)
    assert again.doubts == fit.doubts and again.message == fit.message
    (many,) = pf.fit_many(jax.random.split(KEY, 1), target, QUICK, progress=False)
    assert "because 'x[0]' is negative there" in many.doubts[0]


def test_the_training_has_doubts_of_its_own():
    assert doubts_of(True, 0.9, 0.8) == ()
    (doubt,) = doubts_of(True, 0.9, 0.031)
    assert "was worth 0.9 draws" in doubt and "a particle of the target 0.031" in doubt
    disagreed, again = doubts_of(False, 0.9, 0.031)
    assert "did not agree on the normaliser" in disagreed and again == doubt


def test_no_doubts():
    fit = pf.fit(KEY, pf.targets.get("gaussian"), QUICK, progress=False)
    assert fit.doubts == () and fit.outside == 0
    assert "doubt" not in str(fit) and " of the draws " not in fit.message


def test_an_improper_density_may_be_trained_on():
    target = everyday.IMPROPER["only_a_difference"]
    with pytest.raises(DensityError, match="does not fall in the direction"):
        pf.fit(KEY, target, QUICK, progress=False)
    fit = pf.fit(KEY, target, QUICK, progress=False, throw=False)
    assert "does not fall in the direction" in fit.doubts[0]


def test_the_share_of_draws_of_zero_density():
    """Draws of N(0, I): half of them are where the density is zero."""
    target = pf.Target(half, dim=2)
    seen = last_draws(KEY, target, drawing(target))
    assert (seen.count, seen.nonfinite, seen.evaluations) == (2048, 0, 2048)
    assert seen.outside is not None and abs(seen.outside - 0.5) < 0.06
    # Where one value is a sum over data only the draws are looked at.
    posterior = pf.MinibatchTarget(half, lambda w, _: 0.0 * w[0], np.zeros(9), 2)
    seen = last_draws(KEY, posterior, drawing(posterior))
    assert seen.outside is None and seen.evaluations == 0


def test_the_share_stands_in_the_message(monkeypatch):
    found = LastDraws(2048, 0, 0.0123, 2048)
    monkeypatch.setattr(api, "last_draws", lambda *_: found)
    fit = pf.fit(KEY, pf.targets.get("gaussian"), QUICK, progress=False)
    assert fit.outside == 0.0123
    assert fit.message.endswith(" At 1.23% of the draws the density is zero.")


def test_draws_that_are_not_finite_are_no_good_ending(monkeypatch, tmp_path):
    target = pf.targets.get("gaussian")
    broken = last_draws(KEY, target, drawing(target, np.nan))
    assert broken.nonfinite == broken.count
    monkeypatch.setattr(api, "last_draws", lambda *_: LastDraws(2048, 3, 0.0, 2048))
    said = "but 3 of 2,048 draws of the sampler are not finite"
    with pytest.raises(TrainingError, match=said):
        pf.fit(KEY, target, QUICK, out=tmp_path / "run", progress=False)
    fit = pf.fit(KEY, target, QUICK, progress=False, throw=False)
    assert fit.status is Status.NONFINITE_DRAWS and not fit.finished
    assert said in fit.message and "Finished" not in str(fit)
