"""posteriordb's thirty posteriors with reference draws, each written anew in JAX.

Data and draws are those of the public repository stan-dev/posteriordb (BSD 3-Clause),
ten chains of 1,000 draws. They are looked for where `hard_densities.find` looks.
Twenty-four of the thirty are linear regressions: every table goes by family.
"""

import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hard_densities import find
from jax.scipy.special import logsumexp
from jax.scipy.stats import beta, cauchy, gamma, norm

import pushforward as pf

FOLDER = "posteriordb"


@dataclasses.dataclass(frozen=True)
class Posterior:
    """A posterior with reference draws.

    Attributes:
        name: posteriordb's.
        family: the kind of model.
        make: the target, from the data.
        named: from a tree of parameters with a leading axis to posteriordb's names.
        params: from posteriordb's names to a tree of parameters.
    """

    name: str
    family: str
    make: Callable[[dict[str, Any]], pf.Target]
    named: Callable[[Any], dict[str, np.ndarray]]
    params: Callable[[dict[str, np.ndarray]], Any]

    def target(self) -> pf.Target:
        """The posterior; its data must be there."""
        path = find(f"{FOLDER}/{self.name.split('-')[0]}.data.json")
        assert path is not None
        read = json.loads(path.read_text("utf-8"))
        return self.make({k: np.asarray(v, np.float32) for k, v in read.items()})

    def reference(self) -> tuple[list[str], np.ndarray]:
        """Names of parameters, and draws: chains, draws, parameters."""
        path = find(f"{FOLDER}/{self.name}.draws.npz")
        assert path is not None
        with np.load(path) as read:
            names = list(read)
            return names, np.stack([read[name] for name in names], axis=2)

    def reference_params(self) -> Any:
        """All reference draws, in the tree of parameters of the target."""
        names, draws = self.reference()
        return self.params({n: draws[:, :, i].ravel() for i, n in enumerate(names)})

    def flat(self, params: Any) -> np.ndarray:
        """Draws in the order of the reference's names: draws, parameters."""
        found = self.named(jax.tree.map(np.asarray, params))
        return np.stack([found[name] for name in self.reference()[0]], axis=1)


def _vector(values: np.ndarray, name: str) -> dict[str, np.ndarray]:
    return {f"{name}[{i + 1}]": values[:, i] for i in range(values.shape[1])}


def _gathered(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """`name[1]`, ... as one array a name."""
    columns: dict[str, list[np.ndarray]] = {}
    for name, values in found.items():
        columns.setdefault(name.split("[")[0], []).append(values)
    return {
        name: np.stack(parts, axis=1) if f"{name}[1]" in found else parts[0]
        for name, parts in columns.items()
    }


def _spread(**sizes: int) -> Callable[[Any], dict[str, np.ndarray]]:
    """Names for parameters: `name[1]`, ..., or `name` where the size is 0."""

    def named(params):
        found = {}
        for name, size in sizes.items():
            values = params[name]
            found |= _vector(values, name) if size else {name: values}
        return found

    return named


def _positive_cauchy(sigma: jax.Array) -> jax.Array:
    return cauchy.logpdf(sigma, 0.0, 2.5)


# Linear regressions: `y ~ N(X beta, sigma)`, flat priors where none is named.


def _regression(
    y: np.ndarray,
    columns: np.ndarray,
    sigma_prior: Callable[[jax.Array], jax.Array] | None = None,
    beta_sd: float | None = None,
) -> pf.Target:
    x, outcome = (jnp.asarray(a, jnp.float32) for a in (columns, y))

    def log_density(params):
        b, sigma = params["beta"], params["sigma"]
        found = jnp.sum(norm.logpdf(outcome, x @ b, sigma))
        if sigma_prior is not None:
            found += sigma_prior(sigma)
        if beta_sd is not None:
            found += jnp.sum(norm.logpdf(b, 0.0, beta_sd))
        return found

    example = {"beta": jnp.zeros(x.shape[1]), "sigma": jnp.ones(())}
    return pf.Target(log_density, example=example, constraints={"sigma": "positive"})


def _columns(*parts: np.ndarray) -> np.ndarray:
    return np.stack([np.ones_like(parts[0]), *parts], axis=1)


def _earnings(d: dict[str, Any], which: str) -> pf.Target:
    height, male = d["height"], d["male"]
    y = np.log10(d["earn"]) if which == "log10earn_height" else np.log(d["earn"])
    z = (height - height.mean()) / height.std(ddof=1)
    columns = {
        "log10earn_height": (height,),
        "logearn_height": (height,),
        "logearn_height_male": (height, male),
        "logearn_interaction_z": (z, male, z * male),
        "logearn_logheight_male": (np.log(height), male),
    }[which]
    return _regression(y, _columns(*columns))


def _kidiq(d: dict[str, Any], which: str) -> pf.Target:
    hs, iq = d["mom_hs"], d["mom_iq"]
    columns = {
        "interaction": (hs, iq, hs * iq),
        "momhs": (hs,),
        "momhsiq": (hs, iq),
        "momiq": (iq,),
    }[which]
    return _regression(d["kid_score"], _columns(*columns), _positive_cauchy)


def _kidiq_with_work(d: dict[str, Any], which: str) -> pf.Target:
    hs, iq, work = d["mom_hs"], d["mom_iq"], d["mom_work"]
    if which == "mom_work":
        columns = tuple((work == k).astype(np.float32) for k in (2, 3, 4))
    else:
        low = (hs.mean(), iq.mean()) if which == "interaction_c" else (0.5, 100.0)
        hs, iq = hs - low[0], iq - low[1]
        columns = (hs, iq, hs * iq)
    return _regression(d["kid_score"], _columns(*columns))


def _mesquite(d: dict[str, Any], which: str) -> pf.Target:
    names = "diam1", "diam2", "canopy_height", "total_height", "density", "group"
    diam1, diam2, canopy, total, density, group = (d[name] for name in names)
    if which == "mesquite":
        columns = _columns(diam1, diam2, canopy, total, density, group)
        return _regression(d["weight"], columns)
    volume = np.log(diam1 * diam2 * canopy)
    area, shape = np.log(diam1 * diam2), np.log(diam1 / diam2)
    columns = {
        "logva": (volume, area, group),
        "logvas": (volume, area, shape, np.log(total), np.log(density), group),
        "logvash": (volume, area, shape, np.log(total), group),
        "logvolume": (volume,),
    }[which]
    return _regression(np.log(d["weight"]), _columns(*columns))


def _nes(d: dict[str, Any]) -> pf.Target:
    ages = ((d["age_discrete"] == k).astype(np.float32) for k in (2, 3, 4))
    others = (d[name] for name in ("educ1", "gender", "income"))
    columns = _columns(d["real_ideo"], d["race_adj"], *ages, *others)
    return _regression(d["partyid7"], columns)


def _blr(d: dict[str, Any]) -> pf.Target:
    def sigma_prior(sigma):
        return norm.logpdf(sigma, 0.0, 10.0)

    return _regression(d["y"], d["X"], sigma_prior, 10.0)


# Others.


def _ark(d: dict[str, Any]) -> pf.Target:
    y, lags = jnp.asarray(d["y"]), 5
    past = jnp.stack([y[lags - k - 1 : -k - 1] for k in range(lags)], axis=1)

    def log_density(params):
        alpha, b, sigma = params["alpha"], params["beta"], params["sigma"]
        prior = norm.logpdf(alpha, 0.0, 10.0) + jnp.sum(norm.logpdf(b, 0.0, 10.0))
        fitted = jnp.sum(norm.logpdf(y[lags:], alpha + past @ b, sigma))
        return prior + _positive_cauchy(sigma) + fitted

    example = {"alpha": jnp.zeros(()), "beta": jnp.zeros(lags), "sigma": jnp.ones(())}
    return pf.Target(log_density, example=example, constraints={"sigma": "positive"})


def _eight_schools(d: dict[str, Any]) -> pf.Target:
    y, sd = jnp.asarray(d["y"]), jnp.asarray(d["sigma"])

    def log_density(params):
        mu, tau, z = params["mu"], params["tau"], params["theta_trans"]
        prior = norm.logpdf(mu, 0.0, 5.0) + cauchy.logpdf(tau, 0.0, 5.0)
        fitted = jnp.sum(norm.logpdf(y, mu + tau * z, sd))
        return prior + jnp.sum(norm.logpdf(z)) + fitted

    one = jnp.ones(())
    example = {"mu": one, "tau": one, "theta_trans": jnp.zeros(8)}
    return pf.Target(log_density, example=example, constraints={"tau": "positive"})


def _named_schools(params: Any) -> dict[str, np.ndarray]:
    mu, tau = params["mu"], params["tau"]
    theta = mu[:, None] + tau[:, None] * params["theta_trans"]
    return {"mu": mu, "tau": tau} | _vector(theta, "theta")


def _schools_params(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    params = _gathered(found)
    theta = params.pop("theta")
    z = (theta - params["mu"][:, None]) / params["tau"][:, None]
    return params | {"theta_trans": z}


def _garch(d: dict[str, Any]) -> pf.Target:
    y, first = jnp.asarray(d["y"]), float(d["sigma1"])

    # beta1 lies between 0 and 1 - alpha1: it is a share of that.
    def log_density(params):
        mu, alpha1 = params["mu"], params["alpha1"]
        beta1 = params["share"] * (1 - alpha1)

        def step(variance, previous):
            new = params["alpha0"] + alpha1 * (previous - mu) ** 2 + beta1 * variance
            return new, new

        start = jnp.asarray(first**2, y.dtype)
        _, variances = jax.lax.scan(step, start, y[:-1])
        sds = jnp.sqrt(jnp.concatenate([start[None], variances]))
        return jnp.sum(norm.logpdf(y, mu, sds)) + jnp.log1p(-alpha1)

    one = jnp.ones(())
    return pf.Target(
        log_density,
        example={"mu": one, "alpha0": one, "alpha1": one, "share": one},
        constraints={
            "alpha0": "positive",
            "alpha1": "unit_interval",
            "share": "unit_interval",
        },
    )


def _named_garch(params: Any) -> dict[str, np.ndarray]:
    alpha1 = params["alpha1"]
    found = {name: params[name] for name in ("mu", "alpha0", "alpha1")}
    return found | {"beta1": params["share"] * (1 - alpha1)}


def _garch_params(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    params = dict(found)
    return params | {"share": params.pop("beta1") / (1 - params["alpha1"])}


def _gaussian_process(d: dict[str, Any]) -> pf.Target:
    x, y = jnp.asarray(d["x"]), jnp.asarray(d["y"])
    squares = (x[:, None] - x[None]) ** 2

    def log_density(params):
        rho, alpha, sigma = params["rho"], params["alpha"], params["sigma"]
        prior = gamma.logpdf(rho, 25.0, scale=0.25) + norm.logpdf(alpha, 0.0, 2.0)
        covariance = alpha**2 * jnp.exp(-0.5 * squares / rho**2)
        covariance += sigma * jnp.eye(len(x))
        zero = jnp.zeros(len(x))
        fitted = jax.scipy.stats.multivariate_normal.logpdf(y, zero, covariance)
        return prior + norm.logpdf(sigma) + fitted

    one = jnp.ones(())
    example = {"rho": one, "alpha": one, "sigma": one}
    constraints = dict.fromkeys(example, "positive")
    return pf.Target(log_density, example=example, constraints=constraints)


def _hidden_markov(d: dict[str, Any]) -> pf.Target:
    y = jnp.asarray(d["y"])

    def log_density(params):
        mu = jnp.cumsum(params["steps"])
        rows = jnp.stack([params["theta1"], params["theta2"]])
        prior = norm.logpdf(mu[0], 3.0, 1.0) + norm.logpdf(mu[1], 10.0, 1.0)
        emitted = norm.logpdf(y[:, None], mu[None], 1.0)

        def step(log_p, row):
            new = logsumexp(log_p[:, None] + jnp.log(rows), axis=0) + row
            return new, None

        last, _ = jax.lax.scan(step, emitted[0], emitted[1:])
        return prior + logsumexp(last)

    two = jnp.full(2, 0.5)
    return pf.Target(
        log_density,
        example={"theta1": two, "theta2": two, "steps": jnp.ones(2)},
        constraints={"theta1": "simplex", "theta2": "simplex", "steps": "positive"},
    )


def _named_markov(params: Any) -> dict[str, np.ndarray]:
    found = {}
    for name in ("theta1", "theta2"):
        found |= _vector(params[name], name)
    return found | _vector(np.cumsum(params["steps"], axis=1), "mu")


def _markov_params(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    params = _gathered(found)
    return params | {"steps": np.diff(params.pop("mu"), axis=1, prepend=0.0)}


def _mixture(d: dict[str, Any]) -> pf.Target:
    y = jnp.asarray(d["y"])

    def log_density(params):
        mu, sigma, theta = params["mu"], params["sigma"], params["theta"]
        prior = jnp.sum(norm.logpdf(sigma, 0.0, 2.0)) + beta.logpdf(theta, 5.0, 5.0)
        prior += jnp.sum(norm.logpdf(mu, 0.0, 2.0))
        logs = jnp.stack([jnp.log(theta), jnp.log1p(-theta)])
        each = logs[None] + norm.logpdf(y[:, None], mu[None], sigma[None])
        return prior + jnp.sum(logsumexp(each, axis=1))

    return pf.Target(
        log_density,
        example={"mu": jnp.zeros(2), "sigma": jnp.ones(2), "theta": jnp.ones(())},
        constraints={"mu": "ordered", "sigma": "positive", "theta": "unit_interval"},
    )


def _regressions() -> dict[str, Posterior]:
    found = {}

    def add(name: str, coefficients: int, make: Callable) -> None:
        named = _spread(beta=coefficients, sigma=0)
        found[name] = Posterior(name, "linear regression", make, named, _gathered)

    for which, k in {
        "log10earn_height": 2,
        "logearn_height": 2,
        "logearn_height_male": 3,
        "logearn_interaction_z": 4,
        "logearn_logheight_male": 3,
    }.items():
        add(f"earnings-{which}", k, functools.partial(_earnings, which=which))
    for which, k in {"interaction": 4, "momhs": 2, "momhsiq": 3, "momiq": 2}.items():
        make = functools.partial(_kidiq, which=which)
        add(f"kidiq-kidscore_{which}", k, make)
    for which in ("interaction_c", "interaction_c2", "mom_work"):
        make = functools.partial(_kidiq_with_work, which=which)
        add(f"kidiq_with_mom_work-kidscore_{which}", 4, make)
    for which, k in {"logva": 4, "logvas": 7, "logvash": 6, "logvolume": 2}.items():
        make = functools.partial(_mesquite, which=which)
        add(f"mesquite-logmesquite_{which}", k, make)
    add("mesquite-mesquite", 7, functools.partial(_mesquite, which="mesquite"))
    for year in (1972, 1976, 1984, 1988, 1992, 2000):
        add(f"nes{year}-nes", 9, _nes)
    add("sblrc-blr", 5, _blr)
    return found


POSTERIORS: dict[str, Posterior] = {
    p.name: p
    for p in (
        Posterior(
            "hmm_example-hmm_example",
            "hidden Markov",
            _hidden_markov,
            _named_markov,
            _markov_params,
        ),
        Posterior(
            "low_dim_gauss_mix-low_dim_gauss_mix",
            "mixture",
            _mixture,
            _spread(mu=2, sigma=2, theta=0),
            _gathered,
        ),
        Posterior("garch-garch11", "time series", _garch, _named_garch, _garch_params),
        Posterior(
            "arK-arK",
            "time series",
            _ark,
            _spread(alpha=0, beta=5, sigma=0),
            _gathered,
        ),
        Posterior(
            "gp_pois_regr-gp_regr",
            "Gaussian process",
            _gaussian_process,
            _spread(rho=0, alpha=0, sigma=0),
            _gathered,
        ),
        Posterior(
            "eight_schools-eight_schools_noncentered",
            "hierarchy",
            _eight_schools,
            _named_schools,
            _schools_params,
        ),
    )
} | _regressions()
