"""The engine on tasks that are no samplers; network files; the Fréchet distance."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import pushforward as pf
from pushforward.diagnostics import frechet, moments
from pushforward.errors import FileError, UsageError
from pushforward.experiments.mnist_tasks import Classify, Energy, Images
from pushforward.methods.base import AbstractTask, fill_in
from pushforward.networks import MLP, EnergyResNet
from pushforward.sampler import load_network, save_network


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

    def watch(step, network, data):
        seen.append((step, isinstance(network, EnergyResNet), data is images))
        return {"top": jnp.max(network.head)}

    kept = pf.train(
        key, images, task, out=out, progress=False, watch=watch, watch_every=6
    )
    assert seen == [(6, True, True), (12, True, True)]
    again = pf.train(key, images, task, out=out, resume=True, progress=False)
    for other in (kept, again):
        np.testing.assert_array_equal(whole.result.head, other.result.head)
    path = save_network(tmp_path / "energy.pf", whole.result)
    np.testing.assert_array_equal(load_network(path).head, whole.result.head)
    with pytest.raises(FileError, match="already holds a run"):
        pf.train(key, images, task, out=out, progress=False)
    with pytest.raises(FileError, match="begun with another task"):
        pf.train(key, images, task, out=out, resume=True, steps=13, progress=False)
    with pytest.raises(FileError, match="begun with another key"):
        pf.train(jax.random.key(1), images, task, out=out, resume=True, progress=False)
    with pytest.raises(UsageError, match="resume=True needs out="):
        pf.train(key, images, task, resume=True, progress=False)


class Mean(AbstractTask):
    """Learns the mean of the data, computing as suits the device."""

    steps: int | None = 3
    batch_size: int | None = 1
    compute: str | None = None

    @property
    def evaluations(self):
        return 1

    def resolve(self, target, platform):
        return fill_in(self, {"compute": "float32"})

    def stages(self):
        return (self,)

    def init(self, key, target, steps, previous=None):
        return jnp.zeros((), self.compute)

    def step(self, key, target, state):
        state = (state + target.mean().astype(state.dtype)) / 2
        return state, {"mean": state}

    def result(self, target, state):
        return state


DATA = np.arange(4, dtype=np.float32)


def test_a_run_goes_on_as_it_was_begun_on_another_device(tmp_path):
    options = {"out": tmp_path / "run", "progress": False}
    key = jax.random.key(0)
    # As a device would choose that computes in bfloat16.
    begun = pf.train(key, DATA, Mean(compute="bfloat16"), **options)
    again = pf.train(key, DATA, Mean(), resume=True, **options)
    assert again.result.dtype == begun.result.dtype == jnp.bfloat16
    assert again.config == begun.config
    with pytest.raises(FileError, match="begun with another task"):
        pf.train(key, DATA, Mean(compute="float32"), resume=True, **options)


def test_a_run_does_not_go_on_with_other_data(tmp_path):
    options = {"out": tmp_path / "run", "progress": False}
    key = jax.random.key(0)
    pf.train(key, DATA, Mean(), **options)
    for other in (DATA + 1, DATA.reshape(2, 2), DATA.astype(np.float16)):
        with pytest.raises(FileError, match="begun with another data set"):
            pf.train(key, other, Mean(), resume=True, **options)
    # A run of an earlier version, which did not say.
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    del config["data"]
    path.write_text(json.dumps(config))
    assert pf.train(key, DATA, Mean(), resume=True, **options).finished


def test_bad_arguments(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(UsageError, match="steps must be a whole number"):
        pf.train(jax.random.key(0), DATA, Mean(), steps=0, out=out)
    watching = {"watch": lambda *_: {}, "watch_every": 0}
    with pytest.raises(UsageError, match="watch_every must be a whole number"):
        pf.train(jax.random.key(0), DATA, Mean(), out=out, **watching)
    assert not out.exists()


@pytest.mark.slow
def test_a_classifier_learns_two_classes(images):
    task = Classify(steps=60, batch_size=16, width=1)
    trained = pf.train(jax.random.key(0), images, task, progress=False)
    logits = jax.vmap(trained.result)(images.pixels.astype(jnp.float32) / 255)
    assert (jnp.argmax(logits, axis=1) == images.classes).mean() > 0.9
    losses = trained.history["loss"]
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])


def test_a_network_file_is_no_sampler_file(tmp_path):
    path = save_network(tmp_path / "n.pf", MLP(2, 1, 4, 1, key=jax.random.key(0)))
    with pytest.raises(FileError, match="not a pushforward sampler file"):
        pf.load(path)


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
    with pytest.raises(ValueError, match="at least two rows"):
        moments(np.zeros((1, 3)))
