"""What the stages of the third experiment share: data, weights, and how to judge."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

import pushforward as pf
from pushforward.errors import FileError, UsageError
from reproduction.common.results import Results, about, rounded
from reproduction.mnist import settings
from reproduction.mnist.data import Digits
from reproduction.mnist.images import pack
from reproduction.mnist.metrics import EnergyScore, Eye, energies, histogram, nearest
from reproduction.mnist.networks import computing_in
from reproduction.mnist.settings import Group, Scale, Schedule
from reproduction.mnist.tasks import Images

NAME = "mnist"
# Images kept in the result file of every sampler, and of those with their neighbours.
SHOWN, SHOWN_NEAREST = 36, 9

# `record(metric, value, sd=, n=)` makes a record of a cell.
Record = Callable[..., dict[str, Any]]


class Desk:
    """The data, the result file, and the weights that lie beside it."""

    def __init__(self, scale: Scale, results: Results, seed: int, data: Digits):
        self.scale, self.results, self.seed = scale, results, seed
        self.out, self.source = results.path.parent, data.source
        self.key = jax.random.key(seed)
        self._networks: dict[str, Any] = {}
        some = slice(0, scale.images)
        self.train = Images(
            jax.device_put(data.train_pixels[some]),
            jax.device_put(data.train_classes[some]),
        )
        self.train_images = data.train_pixels[some].astype(np.float32) / 255
        self.test = data.test_pixels[: scale.judged].astype(np.float32) / 255
        self.test_classes = data.test_classes[: scale.judged]
        counts = np.bincount(data.test_classes, minlength=10)
        self.shares = counts / counts.sum()

    def run_directory(self, group: Group) -> Path:
        """Where a stage's training is saved, so that it can be resumed."""
        return self.out / "mnist_runs" / f"{group.method}_{group.setting}"

    def _weights(self, stage: str) -> Path:
        return self.out / f"{NAME}_{stage}.safetensors"

    def keep(self, stage: str, network: Any) -> str:
        """Saves the weights that a stage hands on; returns their checksum."""
        path = self._weights(stage)
        # What is computed in bfloat16 loses nothing by being stored so; last layers,
        # which are not, lose a little.
        half = network.compute == "bfloat16"
        pf.save_network(path, network, dtype="bfloat16" if half else None)
        return _sha256(path)

    def network(self, stage: str) -> Any:
        """The network that a stage has handed on."""
        if stage not in self._networks:
            self._networks[stage] = self._load(stage)
        return self._networks[stage]

    def _load(self, stage: str) -> Any:
        path, cell = self._weights(stage), self.results.cells.get(f"{stage}|ours")
        if not path.exists():
            raise UsageError(
                f"The stage {stage!r} comes first: its weights, {path}, are not there; "
                f"run it with --methods {stage}, or put them there."
            )
        if cell is not None and cell["sha256"] != _sha256(path):
            raise FileError(
                f"{path} does not hold the weights of the result file; put those back, "
                "or choose another --out."
            )
        return _for_this_device(pf.load_network(path))

    @functools.cached_property
    def eye(self) -> Eye:
        """The classifier, once it has been trained, computing in full precision."""
        network: Any = computing_in(self.network("classifier"), "float32")
        return Eye(network, self.test, self.test_classes, self.shares)

    def target(self) -> pf.NoiseConditionalTarget:
        """The energy model as a target: all that a generator is trained from."""
        score = EnergyScore(self.network("energy"))
        levels = settings.SIGMA_MIN, settings.SIGMA_MAX
        return pf.NoiseConditionalTarget(score, dim=1024, sigma_range=levels)

    @property
    def schedule(self) -> Schedule:
        """The schedule that was the best on the energy model."""
        cell = self.results.cells.get("schedule|ours")
        if cell is None:
            raise UsageError(
                "The stage 'schedule' comes first: how Langevin is to be run has not "
                "been found out; run it with --methods schedule."
            )
        return Schedule(**cell["chosen"])

    def keep_sampler(self, group: Group, sampler: pf.Sampler) -> pf.Sampler:
        """Saves a generator beside the result file; returns what the file holds."""
        network: Any = sampler.network
        half = network.compute == "bfloat16"
        path = self.out / f"{NAME}_{group.method}_{group.setting}.safetensors"
        if group.method == settings.SMALL:
            # The one that is kept in the package runs on any machine.
            network, half = computing_in(network, "float32"), True
            path = self.out / settings.DIGITS
        kept = dataclasses.replace(sampler, network=network)
        return pf.load(kept.save(path, dtype="bfloat16" if half else None))

    @functools.cached_property
    def _train_on_device(self) -> Float[Array, "n d"]:
        return jax.device_put(self.train_images)

    def nearest(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each image the number of its nearest training image, and how far."""
        return nearest(images, self._train_on_device)

    def records(self, group: Group, **common: Any) -> Record:
        """A function that makes records of a cell."""
        theirs = settings.paper(group.name)
        if "seconds" in common:
            common["seconds"] = rounded(common["seconds"])

        def record(
            metric: str, value: Any, *, sd: Any = None, n: int | None = None
        ) -> dict[str, Any]:
            made = {
                "experiment": NAME,
                "target": NAME,
                "method": group.method,
                "setting": group.setting,
                "metric": metric,
                "value": rounded(float(value)),
                "sd": None if sd is None else rounded(float(sd)),
                "n": n,
                "seed": self.seed,
                "steps": None,
                "seconds": None,
                **common,
                **about(),
            }
            # What real images score: training images in FID, test images otherwise.
            real = "train" if metric == "fid" else "test"
            floor = self.results.find(method=real, metric=metric)
            if floor is not None and group.method not in ("train", "test"):
                made["exact"] = floor["value"]
            if theirs is not None and metric in ("seconds_batch", "fid"):
                made["paper"] = theirs[metric == "fid"]
            return made

        return record

    def looks(
        self, record: Record, images: np.ndarray
    ) -> tuple[list[dict[str, Any]], list[float | None]]:
        """What the classifier says of images, as records; and the share of a digit."""
        found, n = self.eye.judge(images, self.scale.resamples), len(images)
        records = [
            record("fid", found["fid"], sd=found["fid_sd"], n=n),
            record("digit_low", found["digit_low"], n=n),
            record("digit_high", found["digit_high"], n=n),
            record("sure", found["sure"], n=n),
        ]
        return records, [rounded(share, 4) for share in found["digits"]]

    def judged(self, record: Record, images: np.ndarray) -> dict[str, Any]:
        """A sampler's cell, but for its costs: records, and what the figures show."""
        records, digits = self.looks(record, images)
        few = images[: max(self.scale.neighbours, SHOWN_NEAREST)]
        closest, distances = self.nearest(few)
        values = energies(self.network("energy"), images, settings.SIGMA_MIN)
        records += [
            record("nearest", np.median(distances), n=len(few)),
            record("energy", np.median(values), n=len(values)),
        ]
        return {
            "records": records,
            "digits": digits,
            "images": pack(images[:SHOWN]),
            "nearest": pack(self.train_images[closest[:SHOWN_NEAREST]]),
            "energies": histogram(values),
        }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _for_this_device(network: Any) -> Any:
    """A network trained on a GPU, on a CPU: bfloat16 convolutions are slow there."""
    slow = jax.default_backend() == "cpu" and network.compute == "bfloat16"
    return computing_in(network, "float32") if slow else network
