"""What is learnt from images: the energy model, the classifier; Fréchet distances."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import pushforward as pf
from pushforward.errors import FileError, UsageError
from pushforward.sampler import load_network, save_network
from reproduction.mnist.frechet import frechet, moments
from reproduction.mnist.networks import EnergyResNet
from reproduction.mnist.tasks import Classify, Energy, Images


@pytest.fixture(scope="module")
def images():
    """Forty images of 8 by 8, bright on the left in class 0, on the right in 1."""
    classes = np.arange(40) % 2
    pixels = np.zeros((40, 8, 8), np.uint8)
    pixels[classes == 0, :, 2:4] = 200
    pixels[classes == 1, :, 4:6] = 200
    return Images(jnp.asarray(pixels.reshape(40, 64)), jnp.asarray(classes, jnp.int32))


@pytest.mark.once
def test_an_energy_model_is_trained_resumed_and_saved(images, tmp_path):
    task = Energy(steps=12, batch_size=4, width=4)
    key, out = jax.random.key(0), tmp_path / "run"
    whole = pf.train(key, images, task, progress=False)
    assert whole.finished and len(whole.history) == 12
    seen = []

    def look(event):
        own = isinstance(event.result, EnergyResNet), event.target is images
        seen.append((event.step, *own))
        return {"top": jnp.max(event.result.head)}

    kept = pf.train(
        key, images, task, out=out, progress=False, callback=look, callback_every=6
    )
    assert seen == [(6, True, True), (12, True, True)]
    again = pf.train(key, images, task, out=out, resume=True, progress=False)
    for other in (kept, again):
        np.testing.assert_array_equal(whole.result.head, other.result.head)
    path = save_network(tmp_path / "energy.pf", whole.result)
    np.testing.assert_array_equal(load_network(path).head, whole.result.head)
    with pytest.raises(FileError, match="already holds a run"):
        pf.train(key, images, task, out=out, progress=False)
    with pytest.raises(FileError, match="cannot be cut to 11"):
        pf.train(key, images, task, out=out, resume=True, steps=11, progress=False)
    with pytest.raises(FileError, match="started with another key"):
        pf.train(jax.random.key(1), images, task, out=out, resume=True, progress=False)
    with pytest.raises(UsageError, match="resume=True needs out="):
        pf.train(key, images, task, resume=True, progress=False)


@pytest.mark.slow
def test_a_classifier_learns_two_classes(images):
    task = Classify(steps=60, batch_size=16, width=1)
    trained = pf.train(jax.random.key(0), images, task, progress=False)
    logits = jax.vmap(trained.result)(images.pixels.astype(jnp.float32) / 255)
    assert (jnp.argmax(logits, axis=1) == images.classes).mean() > 0.9
    losses = trained.history["loss"]
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])


def test_the_frechet_distance():
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(2, 5, 5))
    a, b = (rng.normal(size=(400, 5)) @ m + i for i, m in enumerate(mixing))
    one, two = moments(a), moments(b)
    root = scipy.linalg.sqrtm(one.covariance @ two.covariance)
    expected = np.sum((one.mean - two.mean) ** 2)
    expected += np.trace(one.covariance + two.covariance - 2 * np.real(root))
    assert frechet(one, two) == pytest.approx(expected, rel=1e-6)
    assert frechet(one, one) == pytest.approx(0, abs=1e-9)
    assert np.isnan(frechet(one, moments(np.full((9, 3), np.nan))))
    # A shift alone: its squared length.
    assert frechet(moments(a), moments(a + 2)) == pytest.approx(20, rel=1e-9)
    with pytest.raises(ValueError, match="with n >= 2"):
        moments(np.zeros((1, 3)))
