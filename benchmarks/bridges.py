"""Models from other libraries, by their bridges, beside these libraries' own NUTS.

    python benchmarks/bridges.py numpyro pymc stan torch numpy
    python benchmarks/bridges.py --render

The first fits the models that are named and writes results/bridges.json, one record a
model; records of others stay. Each needs its library. The second puts the table into
docs/guides/bridges.md. The reference is the library's own NUTS; PyTorch and NumPy have
none, and take NUTS of BlackJAX on the same density written with JAX.
"""

import argparse
import importlib
import importlib.metadata
import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pushforward as pf

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "results" / "bridges.json"
PAGE = ROOT / "docs" / "guides" / "bridges.md"
BEGIN, END = "<!-- bridges: begin -->", "<!-- bridges: end -->"
DRAWS = 20_000


def columns(draws):
    """Every number that varies, as a table."""
    leaves = [np.asarray(draws[k], float) for k in sorted(draws)]
    flat = np.concatenate([a.reshape(len(a), -1) for a in leaves], axis=1)
    return flat[:, flat.std(axis=0) > 1e-8]


def flat_chains(draws):
    """Chains by draws by the rest, without the chains."""
    return {k: np.asarray(v).reshape(-1, *np.shape(v)[2:]) for k, v in draws.items()}


def compared(ours, chains):
    """The worst errors of means and sds, and the least effective size of the chains."""
    from blackjax.diagnostics import ess_bulk

    theirs = columns(flat_chains(chains))
    ours = columns(ours)
    sd = theirs.std(axis=0)
    by_chain = np.stack(
        [columns({k: v[i] for k, v in chains.items()}) for i in range(4)], axis=0
    )
    return {
        "mean_error": float((np.abs(ours.mean(0) - theirs.mean(0)) / sd).max()),
        "sd_error": float(np.abs(ours.std(0) / sd - 1).max()),
        "reference_ess": float(np.min(ess_bulk(jnp.asarray(by_chain)))),
        "numbers": int(theirs.shape[1]),
    }


def fitted(target: Any, method: Any = None, **options: Any) -> Any:
    """A sampler, its draws, and what it cost."""
    start = time.perf_counter()
    fit = pf.fit(jax.random.key(0), target, method, progress=False, **options)
    draws = fit.sampler.sample(jax.random.key(1), DRAWS)
    draws = jax.device_get(draws)
    about = {
        "dim": target.dim,
        "seconds": time.perf_counter() - start,
        "evaluations": int(fit.evaluations),
        "method": fit.config["method"]["name"],
        "doubts": list(fit.doubts),
    }
    return draws, about


def by_numpyro():
    """Correlations of five variables, with their scales."""
    import numpyro
    import numpyro.distributions as dist

    rng = np.random.default_rng(0)
    mix = np.tril(0.5 * rng.normal(size=(5, 5)), -1) + np.eye(5)
    data = rng.normal(size=(120, 5)) @ mix.T

    def model(y):
        scale: Any = numpyro.sample("scale", dist.HalfNormal(2).expand([5]).to_event(1))
        factor = numpyro.sample("factor", dist.LKJCholesky(5, 1.0))
        lower = scale[:, None] * factor
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.MultivariateNormal(scale_tril=lower), obs=y)

    target = pf.bridges.from_numpyro(model, data)
    draws, about = fitted(target, pf.methods.Transport(), steps=1000)
    start = time.perf_counter()
    nuts = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model),
        num_warmup=500,
        num_samples=4000,
        num_chains=4,
        chain_method="sequential",
        progress_bar=False,
    )
    nuts.run(jax.random.key(2), data)
    chains = nuts.get_samples(group_by_chain=True)
    about["nuts_seconds"] = time.perf_counter() - start
    chains = {k: np.asarray(v) for k, v in chains.items()}
    return "LKJ 5 x 5 with scales", draws, chains, about


def by_pymc():
    """Intercepts that vary by group, non-centred."""
    pymc: Any = importlib.import_module("pymc")

    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(8), 10)
    x = rng.normal(size=80)
    y = 1 + 0.5 * rng.normal(size=8)[group] - 0.7 * x + 0.8 * rng.normal(size=80)
    with pymc.Model(coords={"group": range(8)}) as model:
        mean = pymc.Normal("mean", 0, 2)
        spread = pymc.HalfNormal("spread", 1)
        offset = pymc.Normal("offset", 0, 1, dims="group")
        slope = pymc.Normal("slope", 0, 1)
        noise = pymc.HalfNormal("noise", 1)
        level = pymc.Deterministic("level", mean + spread * offset, dims="group")
        pymc.Normal("y", level[group] + slope * x, noise, observed=y)
    target = pf.bridges.from_pymc(model)
    draws, about = fitted(target, pf.methods.Transport(), steps=1000)
    draws = pf.bridges.constrain(target, draws)
    start = time.perf_counter()
    with model:
        found = pymc.sample(
            draws=4000, tune=1000, chains=4, cores=1, progressbar=False, random_seed=3
        )
    about["nuts_seconds"] = time.perf_counter() - start
    chains = {k: np.asarray(found.posterior[k]) for k in draws}
    return "varying intercepts", draws, chains, about


SCHOOLS = """
data { int J; array[J] real y; array[J] real<lower=0> sigma; }
parameters { real mu; real<lower=0> tau; vector[J] z; }
transformed parameters { vector[J] theta = mu + tau * z; }
model {
  mu ~ normal(0, 5); tau ~ cauchy(0, 5);
  z ~ std_normal(); y ~ normal(theta, sigma);
}
"""


def by_stan():
    """Eight schools, non-centred; each evaluation is a request to pystan's server."""
    stan: Any = importlib.import_module("stan")

    data = {
        "J": 8,
        "y": [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0],
        "sigma": [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0],
    }
    model = stan.build(SCHOOLS, data=data, random_seed=1)
    target = pf.bridges.from_stan(model)
    method = pf.methods.Transport(batch_size=32, particles=128)
    draws, about = fitted(target, method, steps=400)
    draws = pf.bridges.constrain(target, draws[:2000])
    start = time.perf_counter()
    found = model.sample(num_chains=4, num_samples=4000, num_warmup=1000)
    about["nuts_seconds"] = time.perf_counter() - start
    chains = {}
    for name in draws:
        flat = np.moveaxis(np.asarray(found[name]), -1, 0)
        # pystan runs through the chains first.
        chains[name] = np.moveaxis(flat.reshape(4000, 4, *flat.shape[1:]), 1, 0)
        chains[name] = chains[name].reshape(4, 4000, *np.shape(draws[name])[1:])
    return "eight schools", draws, chains, about


def reference_by_blackjax(log_density, dim):
    """NUTS of BlackJAX on a density of JAX."""
    start = time.perf_counter()
    target = pf.Target(log_density, dim)
    starts = 0.1 * jax.random.normal(jax.random.key(4), (4, dim))
    run = pf.mcmc.nuts(jax.random.key(5), target, starts, draws=4000, warmup=500)
    positions = np.asarray(run.positions)
    return {"x": positions}, time.perf_counter() - start


def by_torch():
    """A chain of coupled double wells: the energy of a physicist."""
    torch: Any = importlib.import_module("torch")

    def energy(x):
        ahead = torch.roll(x, -1, dims=-1)
        return (0.5 * (x - ahead) ** 2 + 0.25 * x**4 - 0.2 * x).sum(dim=-1)

    def twin(x):
        ahead = jnp.roll(x, -1)
        return -jnp.sum(0.5 * (x - ahead) ** 2 + 0.25 * x**4 - 0.2 * x)

    target = pf.bridges.from_torch(energy, 8)
    draws, about = fitted(target, pf.methods.Transport(), steps=1000)
    chains, about["nuts_seconds"] = reference_by_blackjax(twin, 8)
    return "anharmonic chain", {"x": draws}, chains, about


def by_numpy():
    """A logistic regression, vectorised over points."""
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(150, 6))
    y = rng.random(150) < 1 / (1 + np.exp(-rows @ np.array([1, -1, 0.5, 0, 0, 2.0])))
    sign = np.where(y, 1.0, -1.0)

    def log_density(x):
        logits = sign * (x @ rows.T)
        return -np.logaddexp(0, -logits).sum(-1) - 0.5 * (x**2).sum(-1)

    def gradient(x):
        logits = sign * (x @ rows.T)
        return (sign / (1 + np.exp(logits))) @ rows - x

    def twin(x):
        logits = jnp.asarray(sign) * (jnp.asarray(rows) @ x)
        return -jnp.sum(jnp.logaddexp(0, -logits)) - 0.5 * jnp.sum(x**2)

    target = pf.bridges.from_numpy(log_density, gradient, 6)
    draws, about = fitted(target, pf.methods.Transport(), steps=1000)
    chains, about["nuts_seconds"] = reference_by_blackjax(twin, 6)
    return "logistic regression", {"x": draws}, chains, about


TOOLS = {
    "numpyro": by_numpyro,
    "pymc": by_pymc,
    "stan": by_stan,
    "torch": by_torch,
    "numpy": by_numpy,
}
PACKAGES: dict[str, str] = {"stan": "pystan"}


def measure(tool: str) -> dict[str, Any]:
    name, draws, chains, about = TOOLS[tool]()
    version = importlib.metadata.version(PACKAGES.get(tool, tool))
    found = compared(draws, chains)
    device = jax.devices()[0].device_kind
    return (
        {"tool": f"{tool} {version}", "model": name, "device": device} | about | found
    )


def table(records):
    """The table of the page, from the result file."""
    lines = [
        "| library | model | numbers | worst mean, in sd | worst sd | method | "
        "seconds | evaluations | NUTS: seconds | its ESS |",
        "| --- " * 10 + "|",
    ]
    for tool in TOOLS:
        if (r := records.get(tool)) is None:
            continue
        lines.append(
            f"| {r['tool']} | {r['model']} | {r['numbers']} | {r['mean_error']:.3f} | "
            f"{100 * r['sd_error']:.1f} % | {r['method']} | {r['seconds']:.0f} | "
            f"{r['evaluations']:,} | {r['nuts_seconds']:.0f} | "
            f"{r['reference_ess']:,.0f} |"
        )
    return "\n".join(lines)


def rendered(page, records):
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(records)}\n{END}{after}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tools", nargs="*", help=f"any of {', '.join(TOOLS)}")
    parser.add_argument("--render", action="store_true")
    arguments = parser.parse_args()
    records = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for tool in arguments.tools:
        records[tool] = measure(tool)
        print(json.dumps(records[tool], indent=1))
        RESULT.write_text(json.dumps(records, indent=1) + "\n")
    if arguments.render:
        PAGE.write_text(rendered(PAGE.read_text("utf-8"), records), "utf-8")


if __name__ == "__main__":
    main()
