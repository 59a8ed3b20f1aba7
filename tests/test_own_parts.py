"""Networks, objectives and optimisers of one's own, through public names alone."""

import ast
import importlib.util
import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pushforward as pf
from pushforward.errors import FileError, UsageError

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "own_objective.py"
DONUT = pf.targets.get("donut")
KEY = jax.random.key(0)
TINY = {"steps": 4, "batch_size": 8, "whiten": False, "particles": 16}


def mlp(inputs=2, outputs=2, key=KEY):
    return eqx.nn.MLP(inputs, outputs, 8, 1, jax.nn.silu, key=key)


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("own_objective", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_is_short_and_uses_public_names():
    text = EXAMPLE.read_text("utf-8")
    assert len(text.splitlines()) <= 60
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            assert all("pushforward." not in name.name for name in node.names)
        if isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith("pushforward")
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_") or node.attr.startswith("__")


def test_the_example(example, tmp_path):
    fit = example.main(steps=20)
    assert fit.finished and isinstance(fit.sampler.network, example.Skip)
    assert fit.config["method"]["network"] == {
        "kind": "OwnSpec",
        "value": {"own": "own_objective.Skip"},
    }
    json.dumps(fit.config)
    draws = fit.sampler.sample(KEY, 5)
    path = fit.sampler.save(tmp_path / "own.pf")
    again = pf.load(path, like=example.Skip(2, KEY))
    np.testing.assert_array_equal(again.sample(KEY, 5), draws)
    with pytest.raises(FileError, match="like=network"):
        pf.load(path)


def test_an_objective_of_ones_own_is_trained_as_ours_is(example):
    """With Huber's loss replaced by the square it is DFT, bit for bit."""

    class Square(example.RobustDFT):
        def __call__(self, x, conditional, score, first, second):
            ours = pf.objectives.DFT(damping=0.5)
            return ours(x, conditional, score, first, second)

    network = pf.networks.residual(8, 1)
    a, b = (
        pf.fit(KEY, DONUT, method, progress=False).sampler.sample(KEY, 10)
        for method in (
            pf.methods.score_based(Square(), network=network, **TINY),
            pf.methods.DFT(network=network, **TINY),
        )
    )
    np.testing.assert_array_equal(a, b)


class MeanField(pf.objectives.AbstractBatchObjective):
    """`E[-log q]` alone: draws fall to the mode."""

    def __call__(self, network, target, key, n, progress):
        z = jax.random.normal(key, (n, network.in_size), jnp.float32)
        x = jax.vmap(network)(z).astype(float)
        return -jnp.mean(jax.vmap(target.log_density)(x))


@pytest.mark.parametrize(
    "optimiser",
    [
        optax.sgd(1e-2, momentum=0.9),
        optax.adamw(optax.cosine_decay_schedule(1e-2, 200)),
        optax.chain(optax.clip(1.0), optax.lion(1e-2)),
        pf.methods.Optax(optax.rmsprop(1e-2), schedule="cosine"),
        1e-2,
    ],
    ids=["sgd", "adamw", "chain", "scheduled", "rate"],
)
def test_any_optimiser_and_any_loss(optimiser):
    normal = pf.Target(lambda x: -0.5 * jnp.sum((x - 2.0) ** 2), dim=2)
    method = pf.methods.single_network(
        MeanField(),
        network=lambda dim, key: mlp(dim, dim, key),
        optimiser=optimiser,
        steps=200,
        batch_size=32,
        whiten=False,
        averaging=0.0,
    )
    fit = pf.fit(KEY, normal, method, progress=False)
    draws = fit.sampler.sample(KEY, 500)
    np.testing.assert_allclose(draws.mean(axis=0), 2.0, atol=0.2)


@pytest.mark.parametrize("name", ["dft", "ksd", "critic", "steingan"])
def test_every_method_takes_networks_of_ones_own(name):
    """An instance with its own latent size, for two seeds in one program."""
    second = {"dft": "score_network", "critic": "critic_network"}.get(name)
    options = {} if second is None else {second: mlp()}
    make = pf.methods.REGISTRY[name]
    method = make(network=mlp(3, 2), **options, **TINY)
    fits = pf.fit_many(jax.random.split(KEY, 2), DONUT, method, progress=False)
    for fit in fits:
        assert isinstance(fit.sampler.network, eqx.nn.MLP)
        assert fit.sampler.network.in_size == 3
        assert fit.sampler.sample(KEY, 7).shape == (7, 2)


class NoisyScore(eqx.Module):
    """A model of the score at every noise level."""

    mlp: eqx.nn.MLP
    in_size: int = 2
    out_size: int = 2

    def __call__(self, x, sigma):
        return -x / (1 + sigma**2) + self.mlp(jnp.append(x, jnp.log(sigma)))


def test_a_score_network_of_ones_own_gets_the_noise_level():
    target = pf.NoiseConditionalTarget(
        lambda x, sigma: -x / (1 + sigma**2), dim=2, sigma_range=(0.1, 2.0)
    )
    method = pf.methods.KL(score_network=NoisyScore(mlp(3, 2)), **TINY)
    assert pf.fit(KEY, target, method, progress=False).finished


def test_a_run_with_networks_of_ones_own_goes_on(tmp_path):
    def method(optimiser):
        return pf.methods.KL(
            network=lambda dim, key: mlp(dim, dim, key),
            score_network=mlp(),
            optimiser=optimiser,
            **TINY,
        )

    first, second = method(optax.adam(1e-3)), method(optax.adam(1e-3))
    whole = pf.fit(KEY, DONUT, first, steps=6, progress=False)
    out, longer = tmp_path / "run", {"steps": 6, "resume": True}
    pf.fit(KEY, DONUT, first, out=out, progress=False)
    refused = method(pf.methods.Adam())
    with pytest.raises(FileError, match=r"training\.optimiser\.kind='Optax'"):
        pf.fit(KEY, DONUT, refused, out=out, progress=False, **longer)
    again = pf.fit(KEY, DONUT, second, out=out, progress=False, **longer)
    assert again.steps == 6 and whole.finished


class Sizeless(eqx.Module):
    def __call__(self, x):
        return x


class Wrong(eqx.Module):
    in_size: int = 2
    out_size: int = 2

    def __call__(self, x):
        raise ValueError("inside of it")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"network": Sizeless()}, "must have the attributes in_size and out_size"),
        ({"network": mlp(2, 3)}, "must give 2 numbers, one for each coordinate"),
        ({"network": lambda dim, key: 3.0}, "must be an eqx.Module that can be called"),
        ({"network": Wrong()}, r"failed at inputs of .* \(ValueError: inside of it"),
        ({"score_network": mlp(3, 2)}, "The score network failed at inputs"),
        ({"score_network": pf.networks.mixture()}, "not a model of a score"),
    ],
)
def test_networks_that_cannot_be(options, sentence):
    with pytest.raises(UsageError, match=sentence):
        pf.fit(KEY, DONUT, pf.methods.DFT(**options, **TINY), progress=False)


def test_weights_are_kept_in_the_precision_of_networks():
    with jax.enable_x64(True):
        network = mlp(key=jax.random.key(1))
        assert network.layers[0].weight.dtype == jnp.float64
        normal = pf.Target(lambda x: -0.5 * jnp.sum(x**2), dim=2)
        method = pf.methods.KSD(network=network, **TINY)
        fit = pf.fit(KEY, normal, method, progress=False)
        assert fit.sampler.network.layers[0].weight.dtype == jnp.float32
        assert fit.sampler.sample(KEY, 3).dtype == jnp.float64


def test_a_method_is_told_in_a_few_lines():
    own = pf.methods.DFT(network=mlp(), optimiser=optax.adam(1e-3))
    for method in (own, *(make() for make in pf.methods.REGISTRY.values())):
        said = repr(method)
        assert len(said.splitlines()) <= 5 and max(map(len, said.splitlines())) < 120
    assert "equinox" in repr(own) and "array" not in repr(own)


@pytest.mark.parametrize("warmup", [0.4, 0.1, 0.37, 3, 0, 0.0])
def test_steps_that_train_the_score_alone_are_counted(warmup):
    training = pf.methods.SecondTraining(warmup=warmup)
    for steps in (5, 10, 600, 4000):
        clock = pf.methods.Clock.start(jnp.asarray(steps))
        alone = jax.vmap(
            lambda i, clock=clock: training.is_alone(
                eqx.tree_at(lambda c: c.step, clock, i)
            )
        )(jnp.arange(steps))
        assert int(alone.sum()) == training.steps_alone(steps)


def test_what_is_said_of_steps_that_train_the_second_network_alone():
    said = "The first 240 steps trained the score network alone."
    assert pf.methods.DFT(steps=600).remark(600, 600) == said
    assert pf.methods.SteinCritic(critic_warmup=1).remark(600, 600) == (
        "The first step trained the critic network alone."
    )
    # Of a training that ended during them, and of one without any.
    assert "The first 20 steps" in pf.methods.DFT().remark(600, 20)
    assert pf.methods.DFT(score_warmup=0).remark(600, 600) == ""
    assert pf.methods.KSD().remark(600, 600) == ""
