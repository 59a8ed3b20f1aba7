"""Corrupted files: refused, or no different from what was written."""

import json
import random
import shutil
import tempfile
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

import pushforward as pf
from pushforward import _io, methods, networks
from pushforward.errors import DamageWarning, FileError
from pushforward.sampler import Sampler
from pushforward.targets.preconditioner import Preconditioner
from pushforward.targets.structure import Structure

from .tally import Tally

KEY = jax.random.key(7)
METHOD = methods.Gaussian(steps=20, batch_size=8, particles=16)
NASTY = (
    None, True, -1, 0, 1, 2, 3, 1.5, 60_000, 10**7, 2**31, 2**63, 10**30, "", "x",
    "../../evil", "\x1b[2J", "nan", float("nan"), float("inf"), [], [1], {}, {"a": 1},
    "os.system", [[[[]]]],
)  # fmt: skip


def samplers() -> dict[str, tuple[Sampler, str | None]]:
    """One of each kind, and the precision that it is stored in."""
    key = jax.random.key(0)
    tree = pf.Target(
        lambda p: 0.0,
        example={"tau": 1.0, "w": jnp.ones(3) / 3},
        constraints={"tau": "positive", "w": "simplex"},
    ).structure
    wide = Preconditioner.affine(jnp.ones(2), jnp.array([[1.0, 0.0], [0.5, 2.0]]))
    plain = Preconditioner.identity
    line = Structure.of(0.0)
    return {
        "affine": (Sampler(networks.AffineMap(2), wide, Structure.vector(2)), None),
        "mixture": (
            Sampler(
                networks.MixtureMap(3, 4, 1, 2, 2, 4, key=key),
                wide,
                Structure.vector(2, ("a", "b")),
            ),
            None,
        ),
        "tree": (
            Sampler(networks.CouplingMap(3, 2, 5, 1, key=key), plain(3), tree),
            None,
        ),
        "line": (Sampler(networks.SplineMap(1, 6), plain(1), line, 0.2), None),
        "half": (
            Sampler(networks.MLP(4, 2, 5, 2, key=key), plain(2), Structure.vector(2)),
            "bfloat16",
        ),
    }


def spoiled(dice: random.Random, data: bytes) -> bytes:
    """The bytes of a file as a disk or a network may change them."""
    at = dice.randrange(len(data))
    length = min(dice.choice((1, 2, 8, 64, 512)), len(data) - at)
    other = dice.randrange(len(data))
    match dice.randrange(9):
        case 0:
            found = bytearray(data)
            for _ in range(dice.choice((1, 1, 1, 2, 5, 50))):
                found[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
            return bytes(found)
        case 1:
            return data[:at] + dice.randbytes(length) + data[at + length :]
        case 2:
            return data[:at] + bytes(length) + data[at + length :]
        case 3:
            return data[:at]
        case 4:
            return data + dice.randbytes(length)
        case 5:
            return data[:at] + dice.randbytes(length) + data[at:]
        case 6:
            return data[:at] + data[at + length :]
        case 7:
            block = data[other : other + length]
            return data[:at] + block + data[at + len(block) :]
        case _:
            return data[: 8 + at % 64] + data[at:]


def _nodes(node, path=()):
    yield path
    inner = node.items() if isinstance(node, dict) else ()
    inner = enumerate(node) if isinstance(node, list) else inner
    for key, value in inner:
        yield from _nodes(value, (*path, key))


def changed(dice: random.Random, header):
    """A header with one value changed, or one entry gone."""
    header = json.loads(json.dumps(header))
    path = dice.choice([p for p in _nodes(header) if p])
    node = header
    for key in path[:-1]:
        node = node[key]
    old = node[path[-1]]
    if dice.random() < 0.15:
        del node[path[-1]]
    elif dice.random() < 0.3 and isinstance(old, int | float):
        node[path[-1]] = dice.choice((old + 1, old - 1, -old, old * 2, float(old)))
    elif dice.random() < 0.05:
        nested: list = []
        for _ in range(dice.choice((50, 5000))):
            nested = [nested]
        node[path[-1]] = "DEEP"
    else:
        node[path[-1]] = dice.choice(NASTY)
    return header


def rearranged(dice: random.Random, arrays):
    """Arrays with one of them changed."""
    arrays = dict(arrays)
    name = dice.choice(list(arrays))
    array = arrays[name]
    match dice.randrange(7):
        case 0:
            del arrays[name]
        case 1:
            arrays["extra"] = array
        case 2:
            arrays[name] = np.full_like(array, dice.choice((np.nan, np.inf, -np.inf)))
        case 3:
            arrays[name] = array.astype(dice.choice((np.int32, np.float64, np.bool_)))
        case 4:
            arrays[name] = array.reshape(-1)[: dice.randrange(array.size + 1)]
        case 5:
            arrays[name] = np.zeros((*array.shape, 1), array.dtype)
        case _:
            arrays[name] = np.zeros((0,), array.dtype)
    return arrays


def crafted(dice: random.Random, data: bytes, folder: Path) -> bytes:
    """A file that somebody made: its parts changed, and mostly with a fit checksum."""
    path = folder / "original"
    path.write_bytes(data)
    with safetensors.safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["pushforward"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if dice.random() < 0.7:
        header = changed(dice, header)
    if dice.random() < 0.5:
        arrays = rearranged(dice, arrays)
    if dice.random() < 0.1:
        header.pop("checksum", None)
    elif dice.random() < 0.9:
        header["checksum"] = _io.checksum(header, arrays)
    text = json.dumps(header)
    # Nested as deeply as Python itself cannot write.
    text = text.replace('"DEEP"', "[" * 10**5 + "]" * 10**5)
    return safetensors.numpy.save(arrays, {"pushforward": text})


def same(a, b) -> bool:
    """Whether two samplers are the same, bit for bit."""
    if a.structure != b.structure or jax.tree.structure(a) != jax.tree.structure(b):
        return False
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(np.asarray(x), np.asarray(y)) for x, y in pairs)


def _sampler_files(tally: Tally, dice: random.Random, count: int, folder: Path) -> None:
    originals = {}
    for name, (sampler, dtype) in samplers().items():
        path = sampler.save(folder / f"{name}.pf", dtype)
        originals[name] = pf.load(path), path.read_bytes()
    for _ in range(count):
        name = dice.choice(list(originals))
        whole, data = originals[name]
        path = folder / "spoiled.pf"
        by_hand = dice.random() < 0.4
        kind = "crafted sampler files" if by_hand else "damaged sampler files"
        found = crafted(dice, data, folder) if by_hand else spoiled(dice, data)
        path.write_bytes(found)
        with tally.guarded(kind, FileError):
            sampler = pf.load(path)
            if by_hand:
                # Then it is another file, and must be one that can be used.
                jax.eval_shape(lambda s=sampler: s.sample(KEY, 3))
                leaves = jax.tree.leaves(sampler)
                assert all(np.isfinite(np.asarray(a)).all() for a in leaves)
            else:
                assert same(whole, sampler), f"{name} was changed without a word"


def _run_files(tally: Tally, dice: random.Random, count: int, folder: Path) -> None:
    target = pf.targets.get("gaussian")
    options = {"progress": False, "resume": True}
    out = folder / "run"
    whole = pf.fit(KEY, target, METHOD, out=out, **options).sampler
    kept = {path.name: path.read_bytes() for path in out.iterdir()}
    for _ in range(count):
        shutil.rmtree(out)
        out.mkdir()
        for name, data in kept.items():
            (out / name).write_bytes(data)
        name = dice.choice(("config.json", "state.safetensors", "metrics.jsonl"))
        by_hand = name.startswith("state") and dice.random() < 0.4
        kind = f"crafted {name}" if by_hand else f"damaged {name}"
        data = kept[name]
        found = crafted(dice, data, folder) if by_hand else spoiled(dice, data)
        (out / name).write_bytes(found)
        with tally.guarded(kind, FileError), warnings.catch_warnings():
            warnings.simplefilter("ignore", DamageWarning)
            fit = pf.fit(KEY, target, METHOD, out=out, **options)
            assert by_hand or same(whole, fit.sampler), "another sampler, silently"


def campaign(seed: int, count: int) -> Tally:
    """A tenth of the files are those of runs: to go on takes longer than to load."""
    tally, dice = Tally(), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        _sampler_files(tally, dice, count - count // 10, Path(folder))
        _run_files(tally, dice, count // 10, Path(folder))
    return tally
