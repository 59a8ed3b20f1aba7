"""Densities that other libraries compute: values, derivatives, costs, messages."""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pushforward as pf
from pushforward.bridges import constrain, from_numpy, from_pymc, from_stan, from_torch
from pushforward.errors import DensityError, MissingDependencyError, UsageError
from pushforward.targets import foreign
from pushforward.training.door import _remarks

pytestmark = pytest.mark.once

KEY = jax.random.key(0)
X = np.array([[0.3, -0.2], [1.1, 0.4], [-0.5, 0.9]])


def quartic(x):
    """The log density of the tests, with JAX."""
    return -0.25 * jnp.sum(x**4) - x[0] ** 2 * x[1] ** 2


def value(x):
    return -0.25 * (x**4).sum(axis=-1) - x[..., 0] ** 2 * x[..., 1] ** 2


def slope(x):
    swapped = x[..., ::-1]
    return -(x**3) - 2 * x * swapped**2


def derivatives(function):
    """What methods take of a density: its score, and derivatives of functions of it."""
    score = jax.grad(function)
    return jax.jit(
        jax.vmap(
            lambda x: (
                function(x),
                score(x),
                jax.grad(lambda x: jnp.sum(score(x) ** 2))(x),
                jax.jvp(score, (x,), (jnp.array([1.0, 0.5]),))[1],
            )
        )
    )


def assert_like_jax(function, expected=quartic, rtol=1e-5):
    found, wanted = (
        derivatives(f)(jnp.asarray(X, float)) for f in (function, expected)
    )
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-5)


@pytest.mark.parametrize("shape", ["batches", "points"])
def test_numpy(shape):
    if shape == "batches":
        target = from_numpy(value, slope, 2)
    else:
        # Of two points at once it would take the rows for coordinates.
        target = from_numpy(
            lambda x: -0.25 * sum(x**4) - x[0] ** 2 * x[1] ** 2,
            lambda x: -(x**3) - 2 * x * x[::-1] ** 2,
            2,
        )
    assert_like_jax(target.log_density)
    assert _remarks(target) == () or "from_numpy" in _remarks(target)[0]


def test_numpy_under_constraints():
    target = from_numpy(
        lambda x: (np.log(x) - x).sum(axis=-1),
        lambda x: 1 / x - 1,
        2,
        constraints="positive",
    )
    twin = pf.Target(lambda x: jnp.sum(jnp.log(x) - x), 2, constraints="positive")
    assert_like_jax(target.log_density, twin.log_density, rtol=1e-4)


def test_a_training_on_a_callback():
    fit = pf.fit(
        KEY,
        from_numpy(value, slope, 2),
        pf.methods.Gaussian(steps=3, batch_size=8, whiten=False, particles=16),
        progress=False,
    )
    assert fit.finished


def test_what_is_wrong_names_the_bridge():
    with pytest.raises(UsageError, match="is not that of the log density: along one"):
        from_numpy(value, lambda x: 2 * slope(x), 2)
    with pytest.raises(DensityError, match="from_numpy: your function raised IndexErr"):
        from_numpy(lambda x: x[9], slope, 2)
    with pytest.raises(
        UsageError, match=r"from_numpy: for .* the gradient has the shap"
    ):
        from_numpy(value, value, 2)

    def later(x):
        if np.abs(x).max() > 5:
            raise RuntimeError("the table ends here")
        return value(x)

    target = from_numpy(later, slope, 2)
    with pytest.raises(
        Exception, match=r"from_numpy: your density raised RuntimeError"
    ):
        target.log_density(jnp.array([9.0, 0.0])).block_until_ready()


def test_what_is_slow_is_said(monkeypatch):
    monkeypatch.setattr(foreign, "_REPEATS", 1)

    def slow(x):
        time.sleep(0.02)
        return value(x)

    (remark,) = _remarks(from_numpy(slow, slope, 2))
    assert "each evaluation of the density is a call of from_numpy: " in remark
    assert _remarks(pf.targets.get("donut")) == ()


def test_torch():
    torch = pytest.importorskip("torch")

    def energy(x):
        return 0.25 * (x**4).sum(-1) + x[..., 0] ** 2 * x[..., 1] ** 2

    assert_like_jax(from_torch(energy, 2).log_density)
    alone = from_torch(lambda x: 0.25 * sum(x**4) + x[0] ** 2 * x[1] ** 2, 2)
    assert_like_jax(alone.log_density)
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Softplus())
    target = from_torch(lambda x: module(x).sum(-1), 2, names=("a", "b"))
    assert target.names == ("a", "b")
    x = torch.tensor([0.3, 0.4])
    expected = -float(module(x).detach().sum())
    assert float(target.log_density(jnp.array([0.3, 0.4]))) == pytest.approx(expected)


class BridgeStan:
    """What a `bridgestan.StanModel` answers, for a scale tau and two effects."""

    def param_unc_num(self):
        return 2

    def param_unc_names(self):
        return ["tau", "theta.1"]

    def param_names(self, *, include_tp=False, include_gq=False):
        return ["tau", "theta.1", "twice.1.1", "twice.1.2"]

    def log_density_gradient(self, x):
        if x[0] > 50:
            raise RuntimeError("Exception: normal_lpdf: scale is inf")
        return float(value(x)), slope(x)

    def param_constrain(self, x, *, include_tp=False, include_gq=False):
        return np.array([np.exp(x[0]), x[1], 2 * x[1], 3 * x[1]])


class PyStan:
    """What a model of `stan.build` answers."""

    constrained_param_names = ("tau", "theta.1", "more")

    def log_prob(self, x, adjust_transform=True):
        if len(x) != 2:
            raise RuntimeError("wrong number of parameters")
        return float(value(np.array(x)))

    def grad_log_prob(self, x, adjust_transform=True):
        return slope(np.array(x)).tolist()

    def constrain_pars(self, x):
        return [np.exp(x[0]), x[1], 5.0]


@pytest.mark.parametrize(
    "model", [BridgeStan(), PyStan()], ids=["bridgestan", "pystan"]
)
def test_stan(model):
    target = from_stan(model)
    assert_like_jax(target.log_density, rtol=1e-3)
    found = constrain(target, jnp.asarray(X, float))
    np.testing.assert_allclose(found["tau"], np.exp(X[:, 0]), rtol=1e-6)
    np.testing.assert_allclose(found["theta"], X[:, 1:], rtol=1e-6)
    if isinstance(model, BridgeStan):
        assert target.names == ("tau", "theta.1") and found["twice"].shape == (3, 1, 2)
        rejected = target.log_density(jnp.array([60.0, 0.0]))
        assert rejected == -jnp.inf


def test_what_is_no_model():
    with pytest.raises(UsageError, match="needs a bridgestan"):
        from_stan(3)
    with pytest.raises(UsageError, match="has its data already"):
        from_stan(BridgeStan(), {"n": 3})
    with pytest.raises(UsageError, match="for targets of from_stan and from_pymc"):
        constrain(pf.targets.get("donut"), np.zeros((3, 2)))


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("torch", lambda: from_torch(lambda x: x, 2)),
        ("stan", lambda: from_stan("parameters { real x; }")),
        ("pymc", lambda: from_pymc(None)),
    ],
)
def test_what_is_not_installed(monkeypatch, package, call):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"pushforward\[{package}\]"):
        call()


def test_pymc():
    pymc = pytest.importorskip("pymc")
    before = jax.config.jax_enable_x64
    y = np.array([0.5, -0.3, 1.2])
    with pymc.Model(coords={"row": range(3)}) as model:
        mu = pymc.Normal("mu", 0, 2)
        tau = pymc.HalfNormal("tau", 1)
        theta = pymc.Normal("theta", mu, tau, dims="row")
        pymc.Deterministic("spread", theta - mu, dims="row")
        pymc.Normal("y", theta, 1, observed=y)
    target = from_pymc(model)
    assert jax.config.jax_enable_x64 == before
    norm = jax.scipy.stats.norm

    def twin(x):
        mu, log_tau, theta = x["mu"], x["tau_log__"], x["theta"]
        tau = jnp.exp(log_tau)
        prior = norm.logpdf(mu, 0, 2) + norm.logpdf(tau, 0, 1) + jnp.log(2.0) + log_tau
        return (
            prior
            + norm.logpdf(theta, mu, tau).sum()
            + norm.logpdf(jnp.asarray(y, float), theta, 1).sum()
        )

    expected = pf.Target(
        twin, example={"mu": 0.0, "tau_log__": 0.0, "theta": np.zeros(3)}
    )
    x = jnp.array([0.3, -0.4, 0.1, 0.5, -0.7])
    for ours, theirs in (
        (target.log_density(x), expected.log_density(x)),
        (target.score(x), expected.score(x)),
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    draws = jax.vmap(target.structure.unflatten)(jnp.stack([x, 2 * x]))
    found = constrain(target, draws)
    np.testing.assert_allclose(found["tau"], np.exp(draws["tau_log__"]), rtol=1e-5)
    np.testing.assert_allclose(
        found["spread"], draws["theta"] - draws["mu"][:, None], rtol=1e-5, atol=1e-6
    )
    with pymc.Model() as discrete:
        pymc.Poisson("k", 2)
    with pytest.raises(UsageError, match="discrete variables k"):
        from_pymc(discrete)
    with pytest.raises(UsageError, match="not a int"):
        from_pymc(3)
