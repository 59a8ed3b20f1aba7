"""The paper's third experiment: a one-step sampler for an energy model of digits.

Stages, each a cell of the result file and a run directory that can be resumed: a
classifier, which judges images; an energy model; annealed Langevin dynamics on it; and
generators distilled from it. A stage hands on its final weights only.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import pushforward as pf
from pushforward.errors import UsageError
from pushforward.experiments import mnist_settings as settings
from pushforward.experiments.mnist_data import mnist
from pushforward.experiments.mnist_eye import EnergyScore, Eye, energies, nearest
from pushforward.experiments.mnist_tasks import Images
from pushforward.experiments.results import Results, about, prepare, rounded
from pushforward.sampler import load_network, save_network

NAME = "mnist"
# Images kept in the result file for the figures, as bytes.
SHOWN = 25


def reproduce(
    out: Path,
    scale: str = "cpu",
    *,
    only: Iterable[str] = (),
    merge: Iterable[Path] = (),
    seed: int = 0,
    say: Callable[[str], None] = print,
) -> Results:
    """Runs the stages that are missing; the arguments are those of `toy2d`."""
    chosen = settings.scale(scale)
    results = prepare(out, NAME, scale, merge, say)
    bench = Bench(chosen, out, results, seed)
    stages = bench.stages()
    only = set(only)
    if not only <= {name.split("|")[0] for name in stages}:
        raise UsageError(
            f"There is no stage {sorted(only)[0]!r}; there are "
            f"{', '.join(dict.fromkeys(name.split('|')[0] for name in stages))}."
        )
    for name, run in stages.items():
        if name in results.cells or (only and name.split("|")[0] not in only):
            continue
        begun = time.perf_counter()
        results.add(name, run())
        say(f"{name}: {time.perf_counter() - begun:.0f} s")
    return results


class Bench:
    """The stages and what they hand on."""

    def __init__(self, scale: settings.Scale, out: Path, results: Results, seed: int):
        self.scale, self.out, self.results, self.seed = scale, out, results, seed
        self.key = jax.random.key(seed)
        data = mnist()
        chosen = slice(0, scale.images)
        self.train = Images(
            jax.device_put(data.train_pixels[chosen]),
            jax.device_put(data.train_classes[chosen]),
        )
        self.train_pixels = data.train_pixels[chosen].astype(np.float32) / 255
        self.test = data.test_pixels[: scale.judged].astype(np.float32) / 255
        self.test_classes = data.test_classes[: scale.judged]
        self._eye: Eye | None = None

    def stages(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """All stages by name, in their order."""
        found: dict[str, Callable[[], dict[str, Any]]] = {
            "classifier": self.classifier,
            "energy": self.energy,
        }
        for steps in self.scale.langevin:
            found[f"langevin|{steps}"] = lambda steps=steps: self.langevin(steps)
        for name in self.scale.generators:
            found[f"generator|{name}"] = lambda name=name: self.generator(name)
        return found

    def _weights(self, stage: str) -> Path:
        return self.out / f"{NAME}_{stage}.safetensors"

    def _loaded(self, stage: str) -> Any:
        path = self._weights(stage)
        if not path.exists():
            raise UsageError(
                f"The stage {stage!r} comes first: {path}, its weights, is not there."
            )
        return load_network(path)

    @property
    def eye(self) -> Eye:
        """The classifier, once it has been trained."""
        if self._eye is None:
            network = self._loaded("classifier")
            self._eye = Eye(network, self.test, self.test_classes)
        return self._eye

    def classifier(self) -> dict[str, Any]:
        """Trains the classifier; its floor is what training images score."""
        trained = pf.train(
            jax.random.fold_in(self.key, 1),
            self.train,
            self.scale.classifier,
            out=self.out / "mnist_runs" / "classifier",
            resume=True,
        )
        save_network(self._weights("classifier"), trained.result)
        images = self.train_pixels[: self.scale.judged]
        return {
            "records": [
                self._record("classifier", "accuracy", self.eye.accuracy),
                *self._judged("training images", images),
            ],
            "seconds": rounded(trained.seconds),
        }

    def energy(self) -> dict[str, Any]:
        """Trains the energy model."""
        trained = pf.train(
            jax.random.fold_in(self.key, 2),
            self.train,
            self.scale.energy,
            out=self.out / "mnist_runs" / "energy",
            resume=True,
        )
        save_network(self._weights("energy"), trained.result)
        losses = trained.history["loss"]
        last = float(np.mean(losses[-max(len(losses) // 20, 1) :]))
        values = energies(trained.result, self.test)
        return {
            "records": [
                self._record("energy", "loss", last),
                self._record("energy", "seconds", trained.seconds),
                self._record("energy", "energy of test images", float(values.mean())),
            ],
            "loss": [rounded(v, 4) for v in losses],
            "energies": _histogram(values),
        }

    def target(self) -> pf.NoiseConditionalTarget:
        """The energy model as a target: all that a generator is trained from."""
        score = EnergyScore(self._loaded("energy"))
        levels = settings.SIGMA_MIN, settings.SIGMA_MAX
        return pf.NoiseConditionalTarget(score, dim=1024, sigma_range=levels)

    def langevin(self, steps: int) -> dict[str, Any]:
        """Annealed Langevin chains of so many steps, and how long a batch takes."""
        target = self.target()
        sigmas = jnp.geomspace(settings.SIGMA_MAX, settings.SIGMA_MIN, steps)
        key = jax.random.fold_in(self.key, 10_000 + steps)

        def chains(key, n: int):
            start_key, run_key = jax.random.split(key)
            start = 0.5 + settings.SIGMA_MAX * jax.random.normal(start_key, (n, 1024))
            return pf.mcmc.annealed_langevin(
                run_key, target, start, sigmas, step_ratio=settings.STEP_RATIO
            ).positions

        seconds = _timed(lambda i: chains(jax.random.fold_in(key, i), self.scale.batch))
        parts, size = [], min(self.scale.chains, self.scale.judged)
        for i in range(-(-self.scale.judged // size)):
            parts.append(np.asarray(chains(jax.random.fold_in(key, 100 + i), size)))
        images = np.concatenate(parts)[: self.scale.judged]
        name = f"langevin, {steps} steps"
        return {
            **self._shown(images),
            "records": [
                *self._judged(name, images),
                self._record(name, "seconds a batch", seconds),
                self._record(name, "GMAC an image", (steps + 1) * 2 * self._macs()),
            ],
        }

    def generator(self, name: str) -> dict[str, Any]:
        """Trains a one-step sampler, judged during training and at its end."""
        target, method = self.target(), self.scale.generators[name]
        judge_key = jax.random.fold_in(self.key, 3)

        def watch(step: int, sampler: pf.Sampler, _: Any) -> dict[str, float]:
            fresh = jax.random.fold_in(judge_key, step)
            images = np.asarray(sampler.sample_flat(fresh, self.scale.judged))
            return {"made": step, "fid": self.eye.judge(images)["fid"]}

        fit = pf.fit(
            jax.random.fold_in(self.key, 4),
            target,
            method,
            out=self.out / "mnist_runs" / name,
            resume=True,
            watch=watch,
            watch_every=max((method.steps or 1) // self.scale.evaluations, 1),
        )
        fit.sampler.save(self.out / f"{NAME}_generator_{name}.pf")
        last = np.asarray(
            fit.sampler.sample_flat(jax.random.fold_in(judge_key, 0), self.scale.judged)
        )
        draw = eqx.filter_jit(lambda s, k: s.block(k, self.scale.batch))
        seconds = _timed(lambda i: draw(fit.sampler, jax.random.key(i)))
        rows = [row for row in fit.history.rows if "fid" in row]
        network: Any = fit.sampler.network
        return {
            **self._shown(last),
            "records": [
                *self._judged(f"generator, {name}", last),
                self._record(f"generator, {name}", "seconds a batch", seconds),
                self._record(f"generator, {name}", "GMAC an image", _macs(network)),
                self._record(f"generator, {name}", "seconds", fit.seconds),
            ],
            "curve": [[row["made"], rounded(row["fid"])] for row in rows],
        }

    def _judged(self, what: str, images: np.ndarray) -> list[dict[str, Any]]:
        found = self.eye.judge(images)
        records = [
            self._record(what, "fid", found["fid"], n=len(images)),
            self._record(what, "sure", found["sure"], n=len(images)),
        ]
        shares = {"digits": [rounded(share, 4) for share in found["digits"]]}
        true = np.bincount(self.test_classes, minlength=10) / len(self.test_classes)
        records[0] |= shares | {"exact": [rounded(share, 4) for share in true]}
        return records

    def _shown(self, images: np.ndarray) -> dict[str, Any]:
        """What the figures need of a set of images."""
        few = np.clip(images[:SHOWN], 0, 1)
        near = self.train_pixels[nearest(few[:10], self.train_pixels)]
        return {
            "images": _as_bytes(few),
            "nearest": _as_bytes(near),
            "energies": _histogram(energies(self._loaded("energy"), images)),
        }

    def _macs(self) -> float:
        return _macs(self._loaded("energy"))

    def _record(self, what: str, metric: str, value: float, **more: Any):
        return {
            "experiment": NAME,
            "target": "mnist",
            "method": what,
            "setting": self.scale.name,
            "metric": metric,
            "value": rounded(value),
            "seed": self.seed,
            **more,
            **about(),
        }


def _timed(call: Callable[[int], Any], repeats: int = 3) -> float:
    """The median time of a call, compiled beforehand."""
    spent = []
    for i in range(repeats + 1):
        begun = time.perf_counter()
        jax.block_until_ready(call(i))
        spent.append(time.perf_counter() - begun)
    return float(np.median(spent[1:]))


def _macs(network: Any) -> float:
    """Thousand million multiplications of one pass on one image, as XLA counts them."""
    point = jnp.zeros(network.in_size, jnp.float32)
    cost: Any = jax.jit(lambda x: network(x)).lower(point).compile().cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    return cost["flops"] / 2e9


def _as_bytes(images: np.ndarray) -> list[str]:
    """Images as text: two digits a pixel."""
    return [(255 * image).round().astype(np.uint8).tobytes().hex() for image in images]


def _histogram(values: np.ndarray) -> list[list[float | None]]:
    heights, edges = np.histogram(values, bins=40, density=True)
    return [[rounded(v, 4) for v in edges], [rounded(v, 4) for v in heights]]
