"""A sampler file read with NumPy alone, for programs that cannot have JAX.

This file needs nothing but NumPy: copy it where you need it.

    from numpy_reader import load

    sampler = load("posterior.pf")
    draws = sampler.sample(np.random.default_rng(0), 1000)
    log_p = sampler.log_prob(draws)

It reads what `Sampler.save` writes now, of networks that the methods `Adaptive`,
`Transport`, `Flow` and `Gaussian` train. The draws follow the same distribution as
those of pushforward, by other random numbers.
"""

import functools
import hashlib
import json
import math
import statistics
import struct
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Sampler", "load"]

Arrays = dict[str, np.ndarray]

# The versions of sampler files that are read here; version 2 knew no symmetry.
_FORMATS = 2, 3
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}
_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def load(path: Any) -> "Sampler":
    """Reads a sampler from a file of `Sampler.save`, or from a run directory.

    Raises:
        ValueError: The file is damaged, of another version, or holds a network that
            this module does not know.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "sampler.safetensors"
    header, arrays = _read(path)
    if header.get("kind") != "sampler":
        raise ValueError(f"{path} is not a pushforward sampler file.")
    if header.get("format") not in _FORMATS:
        raise ValueError(
            f"{path} has the format {header.get('format')}, and this reads 2 and 3: "
            "load and save it with pushforward, or take the numpy_reader.py that "
            "belongs to it."
        )
    return Sampler(header, arrays)


def _read(path: Path) -> tuple[dict[str, Any], Arrays]:
    """The header and the arrays of a safetensors file, held against its checksum."""
    data = path.read_bytes()
    try:
        (size,) = struct.unpack("<Q", data[:8])
        table = json.loads(data[8 : 8 + size])
        header = json.loads(table.pop("__metadata__")["pushforward"])
        arrays, raw = {}, {}
        for name, about in table.items():
            start, end = about["data_offsets"]
            raw[name] = data[8 + size + start : 8 + size + end]
            arrays[name] = _array(raw[name], about["dtype"], about["shape"])
    except (KeyError, TypeError, ValueError, struct.error) as error:
        raise ValueError(f"{path} is damaged, or is no pushforward file.") from error
    wanted = header.pop("checksum", None)
    found = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, about in sorted(table.items()):
        kind = _NAMES.get(about["dtype"], str(arrays[name].dtype))
        found.update(f"{name}\0{kind}\0{tuple(about['shape'])}\0".encode())
        found.update(raw[name])
    if wanted is not None and wanted != f"sha256:{found.hexdigest()}":
        raise ValueError(f"{path} is damaged: its content does not fit its checksum.")
    return header, arrays


def _array(raw: bytes, dtype: str, shape: list[int]) -> np.ndarray:
    if dtype == "BF16":
        # The upper half of a float of 32 bits.
        wide = np.frombuffer(raw, "<u2").astype("<u4") << 16
        return wide.view("<f4").reshape(shape)
    return np.frombuffer(raw, _DTYPES[dtype]).reshape(shape)


class Sampler:
    """A distribution over the user's parameters.

    Attributes:
        dim: The number of unconstrained coordinates.
        names: The name of each parameter; "" is a bare vector.
    """

    def __init__(self, header: dict[str, Any], arrays: Arrays):
        wide = {k: np.asarray(v, np.float64) for k, v in arrays.items()}
        description, structure = header["network"], header["structure"]
        self._network = _network(description, _part(wide, "network"))
        if header.get("symmetry") is not None:
            raise ValueError(
                "This sampler is symmetric under a group, which NumPy alone cannot "
                "apply to its draws; use pushforward."
            )
        self._noise = float(wide.get("noise_scale", 0.0))
        self._preconditioner = _part(wide, "preconditioner")
        self._tree = structure["tree"]
        if self._tree is None:
            raise ValueError(
                "The parameters of this sampler are placed by a model or a class of "
                "the author's own, which NumPy alone cannot do; use pushforward."
            )
        self._leaves = [_Leaf(**leaf) for leaf in structure["leaves"]]
        self.names = tuple(leaf.name for leaf in self._leaves)
        self.dim = sum(leaf.size for leaf in self._leaves)

    def sample(self, rng: np.random.Generator, n: int) -> Any:
        """`n` draws: the user's tree of arrays with a leading axis."""
        z = rng.standard_normal((n, self._network.in_size))
        noise = rng.standard_normal((n, self.dim)) if self._noise else None
        return self.constrain(self.push(z, noise))

    def push(self, z: np.ndarray, noise: np.ndarray | None = None) -> np.ndarray:
        """The unconstrained coordinates of latent points, an n by dim array."""
        u, _ = self._network.forward(np.asarray(z, np.float64))
        if noise is not None:
            u = u + self._noise * noise
        p = self._preconditioner
        if not p:
            return u
        return p["centre"] + p["scale"] * self._bend(p["shift"] + u @ p["factor"].T)

    def _bend(self, v: np.ndarray) -> np.ndarray:
        tails = self._preconditioner["tails"]
        bent = tails > 0
        t = np.where(bent, tails, 1.0)
        return np.where(bent, np.sinh(t * np.where(bent, v, 0.0)) / t, v)

    def constrain(self, x: np.ndarray) -> Any:
        """The user's tree for unconstrained coordinates, an n by dim array."""
        ends = np.cumsum([leaf.size for leaf in self._leaves])[:-1]
        parts = np.split(np.asarray(x, np.float64), ends, axis=-1)
        leaves = [leaf.forward(u) for leaf, u in zip(self._leaves, parts, strict=True)]
        return _build(self._tree, leaves)

    def log_prob(self, draws: Any) -> np.ndarray:
        """The log density at draws, -inf outside the constraints.

        Args:
            draws: The user's tree, each array with a leading axis.

        Raises:
            ValueError: The network has no density, or the draws do not fit.
        """
        if self._noise:
            raise ValueError("This sampler adds noise, so its density is not known.")
        leaves: list[Any] = [None] * len(self._leaves)
        _flatten(self._tree, draws, leaves)
        values = [np.asarray(leaf, np.float64) for leaf in leaves]
        inside = np.ones(len(values[0]), bool)
        log_det, parts = np.zeros(len(values[0])), []
        with np.errstate(all="ignore"):
            for leaf, value in zip(self._leaves, values, strict=True):
                if value.shape[1:] != leaf.shape:
                    raise ValueError(
                        f"The draws of {leaf.name!r} have the shape {value.shape}, not "
                        f"(n, {', '.join(map(str, leaf.shape))})."
                    )
                inside &= leaf.inside(value)
                u = leaf.inverse(value)
                log_det += leaf.log_det(u)
                parts.append(u)
            x = np.concatenate(parts, axis=1)
            log_p = self.log_prob_unconstrained(x) - log_det
        return np.where(inside, log_p, -np.inf)

    def log_prob_unconstrained(self, x: np.ndarray) -> np.ndarray:
        """The log density of unconstrained coordinates, an n by dim array."""
        p, log_det = self._preconditioner, 0.0
        if p:
            y = (x - p["centre"]) / p["scale"]
            t = np.where(p["tails"] > 0, p["tails"], 1.0)
            v = np.where(p["tails"] > 0, np.arcsinh(t * y) / t, y)
            a = np.abs(p["tails"] * v)
            slopes = a + np.log1p(np.exp(-2 * a)) - math.log(2)
            log_det = np.log(p["scale"]).sum() + slopes.sum(axis=1)
            log_det = log_det + np.log(np.abs(np.diag(p["factor"]))).sum()
            x = np.linalg.solve(p["factor"], (v - p["shift"]).T).T
        return self._network.log_density(x) - log_det


def _part(arrays: Arrays, prefix: str) -> Arrays:
    """The arrays whose names begin with `prefix.`, without it."""
    start = f"{prefix}."
    return {k[len(start) :]: v for k, v in arrays.items() if k.startswith(start)}


def _build(node: Any, leaves: list[Any]) -> Any:
    ((kind, value),) = node.items()
    if kind == "leaf":
        return leaves[value]
    if kind == "dict":
        return {k: _build(v, leaves) for k, v in value.items()}
    return {"list": list, "tuple": tuple}[kind](_build(v, leaves) for v in value)


def _flatten(node: Any, tree: Any, leaves: list[Any]) -> None:
    ((kind, value),) = node.items()
    if kind == "leaf":
        leaves[value] = tree
        return
    try:
        for k, v in value.items() if kind == "dict" else enumerate(value):
            _flatten(v, tree[k], leaves)
    except (IndexError, KeyError, TypeError):
        raise ValueError(
            "The draws do not have the parameters of the sampler."
        ) from None


# --- networks: each maps an n by in_size array, and knows its density ----------------


def _network(description: dict[str, Any], arrays: Arrays) -> Any:
    kinds = {
        "AffineMap": _Affine,
        "CouplingMap": _Coupling,
        "MixtureMap": _Mixture,
        "SplineMap": _Spline,
    }
    kind = description.get("kind")
    if kind not in kinds or (kind == "MixtureMap" and not _has_density(description)):
        raise ValueError(
            f"The file holds a network of the kind {kind!r}, which this reader does "
            "not know; use pushforward."
        )
    return kinds[kind](description, arrays)


def _has_density(description: dict[str, Any]) -> bool:
    return bool(description.get("layers") or description.get("bins"))


def _normal(z: np.ndarray) -> np.ndarray:
    return -0.5 * (z**2).sum(axis=1) - 0.5 * z.shape[1] * math.log(2 * math.pi)


class _Affine:
    def __init__(self, description: dict[str, Any], arrays: Arrays):
        self.in_size = description["in_size"]
        lower = arrays["lower"]
        self.mean, self.log_det = arrays["mean"], np.trace(lower)
        self.factor = np.tril(lower, -1) + np.diag(np.exp(np.diag(lower)))

    def forward(self, z):
        return self.mean + z @ self.factor.T, self.log_det

    def log_density(self, x):
        z = np.linalg.solve(self.factor, (x - self.mean).T).T
        return _normal(z) - self.log_det


_ACTIVATIONS: dict[str, Any] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "gelu": lambda x: (
        0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "tanh": np.tanh,
    "leaky_relu": lambda x: np.where(x > 0, x, 0.2 * x),
}


class _Coupling:
    def __init__(self, description: dict[str, Any], arrays: Arrays):
        self.in_size = dim = description["in_size"]
        self.layers = description["layers"]
        self.log_bound = description.get("log_bound", 2.0)
        self.bins = description.get("bins", 0)
        self.bound = description.get("bound", 5.0)
        self.activation = _ACTIVATIONS[description.get("activation", "silu")]
        alternating = description.get("halves", "mixed") == "alternating"
        self.masks = (_alternating if alternating else _mixed)(dim, self.layers)
        self.weights = [arrays[f"weights.{i}"] for i in range(len(arrays))]

    def _bends(self, x, i):
        """Log scales, shifts and splines of layer `i`, for what it changes."""
        mask, dim = self.masks[i], self.in_size
        *hidden, weight, bias = (w[i] for w in self.weights)
        h = mask * x
        with np.errstate(over="ignore"):
            for w, b in zip(hidden[::2], hidden[1::2], strict=True):
                h = self.activation(h @ w.T + b)
        out = h @ weight.T + bias
        t = self.log_bound * np.tanh(out[:, :dim] / self.log_bound)
        t, b = (1 - mask) * t, (1 - mask) * out[:, dim : 2 * dim]
        if not self.bins:
            return mask, t, b, None
        free = out[:, 2 * dim :].reshape(len(x), dim, -1)
        k = self.bins
        knots = _Knots(free[..., :k], free[..., k : 2 * k], free[..., 2 * k :])
        return mask, t, b, knots.scaled(self.bound)

    def forward(self, x):
        log_det = np.zeros(len(x))
        for i in range(self.layers):
            mask, t, b, knots = self._bends(x, i)
            log_slopes, y = t, x
            if knots is not None:
                bent, bends = knots.bend(x)
                y = np.where(mask > 0, x, bent)
                log_slopes = t + (1 - mask) * bends
            x = y * np.exp(t) + b
            log_det += log_slopes.sum(axis=1)
        return x, log_det

    def inverse(self, y):
        log_det = np.zeros(len(y))
        for i in reversed(range(self.layers)):
            mask, t, b, knots = self._bends(y, i)
            log_slopes, x = t, (y - b) * np.exp(-t)
            if knots is not None:
                bent, bends = knots.unbend(x)
                x = np.where(mask > 0, y, bent)
                log_slopes = t + (1 - mask) * bends
            y = x
            log_det += log_slopes.sum(axis=1)
        return y, log_det

    def log_density(self, x):
        z, log_det = self.inverse(x)
        return _normal(z) - log_det


class _Spline:
    """A spline for each coordinate by itself."""

    def __init__(self, description: dict[str, Any], arrays: Arrays):
        self.in_size, bound = description["in_size"], description.get("bound", 8.0)
        free = (arrays["widths"], arrays["heights"], arrays["slopes"])
        self.knots = _Knots(*(a[None] for a in free)).scaled(bound)

    def forward(self, x):
        y, log_slopes = self.knots.bend(x)
        return y, log_slopes.sum(axis=1)

    def inverse(self, y):
        x, log_slopes = self.knots.unbend(y)
        return x, log_slopes.sum(axis=1)

    def log_density(self, x):
        z, log_det = self.inverse(x)
        return _normal(z) - log_det


class _Mixture:
    """A map of a Gaussian mixture; the last latent number picks the component."""

    def __init__(self, description: dict[str, Any], arrays: Arrays):
        self.in_size = description["in_size"]
        self.dim = self.in_size - 1
        logits = arrays["logits"] - arrays["logits"].max()
        self.log_weights = logits - np.log(np.exp(logits).sum())
        self.means, self.factors = arrays["means"], np.tril(arrays["factors"])
        inner = _part(arrays, "map")
        if description.get("layers"):
            bins, layers = description.get("bins", 0), description["layers"]
            about = {"in_size": self.dim, "layers": layers, "bins": bins}
            self.map: Any = _Coupling(about, inner)
        else:
            self.map = _Spline({"in_size": self.dim}, inner)

    def forward(self, z):
        edges = np.cumsum(np.exp(self.log_weights))[:-1]
        chance = [0.5 * math.erfc(-u / math.sqrt(2)) for u in z[:, -1].tolist()]
        c = np.searchsorted(edges, chance, side="left")
        b = self.means[c] + np.einsum("nij,nj->ni", self.factors[c], z[:, :-1])
        return self.map.forward(b)

    def log_density(self, x):
        b, log_det = self.map.inverse(x)
        parts = []
        for log_weight, mean, factor in zip(
            self.log_weights, self.means, self.factors, strict=True
        ):
            z = np.linalg.solve(factor, (b - mean).T).T
            size = np.log(np.abs(np.diag(factor))).sum()
            parts.append(log_weight + _normal(z) - size)
        stacked = np.stack(parts)
        highest = stacked.max(axis=0)
        return highest + np.log(np.exp(stacked - highest).sum(axis=0)) - log_det


def _mixed(dim: int, layers: int) -> np.ndarray:
    """The coordinates that each layer keeps, in pairs of halves."""
    generator = np.random.default_rng(0)
    rounds = max((dim - 1).bit_length(), 1)
    masks = np.zeros((layers, dim))
    places = np.arange(dim)
    for i in range(0, layers, 2):
        digit = i // 2 % rounds
        if digit == 0:
            places = generator.permutation(dim)
        masks[i] = (places * 2 ** (digit + 1) // dim) % 2 == 0
        masks[i + 1 : i + 2] = 1 - masks[i]
    return masks


def _alternating(dim: int, layers: int) -> np.ndarray:
    masks = np.zeros((layers, dim))
    for i in range(layers):
        kept = slice(dim // 2) if (layers - i) % 2 == 0 else slice(dim - dim // 2, dim)
        masks[i, kept] = 1
    return masks


class _Knots:
    """The knots of rational-quadratic splines (Durkan et al., 2019)."""

    least = 1e-3

    def __init__(self, widths: np.ndarray, heights: np.ndarray, slopes: np.ndarray):
        self.x, self.y = self._ends(widths), self._ends(heights)
        shift = math.log(math.expm1(1 - self.least))
        inner = self.least + np.logaddexp(0, slopes + shift)
        one = np.ones((*inner.shape[:-1], 1))
        self.slope = np.concatenate([one, inner, one], axis=-1)

    def _ends(self, logits: np.ndarray) -> np.ndarray:
        count = logits.shape[-1]
        e = np.exp(logits - logits.max(axis=-1, keepdims=True))
        share = e / e.sum(axis=-1, keepdims=True)
        shares = (self.least + (1 - self.least) * count * share) / count
        ends = 2 * np.cumsum(shares, axis=-1)[..., :-1] - 1
        one = np.ones((*ends.shape[:-1], 1))
        return np.concatenate([-one, ends, one], axis=-1)

    def scaled(self, bound: float) -> "_Knots":
        self.x, self.y = bound * self.x, bound * self.y
        return self

    def _bin(self, at: np.ndarray, ends: np.ndarray):
        ends = np.broadcast_to(ends, (*at.shape, ends.shape[-1]))
        i = (at[..., None] >= ends[..., 1:-1]).sum(axis=-1)[..., None]

        def pick(values):
            values = np.broadcast_to(values, (*at.shape, values.shape[-1]))
            return np.take_along_axis(values, i, axis=-1)[..., 0]

        x0, y0 = pick(self.x[..., :-1]), pick(self.y[..., :-1])
        width, height = pick(np.diff(self.x)), pick(np.diff(self.y))
        return (
            x0,
            y0,
            width,
            height,
            pick(self.slope[..., :-1]),
            pick(self.slope[..., 1:]),
        )

    def bend(self, x):
        """The image of `x`, and the logarithm of the slope there."""
        inside = (x > self.x[..., 0]) & (x < self.x[..., -1])
        x0, y0, width, height, d0, d1 = self._bin(x, self.x)
        s = height / width
        t = np.where(inside, (x - x0) / width, 0.5)
        y = y0 + height * (s * t**2 + d0 * t * (1 - t)) / self._below(t, d0, d1, s)
        log_slope = self._log_slope(t, d0, d1, s)
        return np.where(inside, y, x), np.where(inside, log_slope, 0.0)

    def unbend(self, y):
        """The point whose image is `y`, and the logarithm of the slope there."""
        inside = (y > self.y[..., 0]) & (y < self.y[..., -1])
        x0, y0, width, height, d0, d1 = self._bin(y, self.y)
        s = height / width
        rise = np.where(inside, y - y0, 0.5 * height)
        bent = rise * (d0 + d1 - 2 * s)
        a, b, c = height * (s - d0) + bent, height * d0 - bent, -s * rise
        root = np.sqrt(np.maximum(b**2 - 4 * a * c, 1e-12))
        t = np.clip(2 * c / (-b - root), 0.0, 1.0)
        log_slope = self._log_slope(t, d0, d1, s)
        return np.where(inside, x0 + width * t, y), np.where(inside, log_slope, 0.0)

    def _below(self, t, d0, d1, s):
        return s + (d0 + d1 - 2 * s) * t * (1 - t)

    def _log_slope(self, t, d0, d1, s):
        inner = d1 * t**2 + 2 * s * t * (1 - t) + d0 * (1 - t) ** 2
        return 2 * np.log(s) + np.log(inner) - 2 * np.log(self._below(t, d0, d1, s))


# --- constraints: functions of arrays with a leading axis, the draws -----------------


class _Leaf:
    """One array of the user's tree."""

    def __init__(self, name: str, shape: list[int], constraint: str):
        self.name, self.shape = name, tuple(shape)
        self.kind, _, rest = constraint.partition("(")
        text = rest.rstrip(")")
        self.bounds = [np.array(b, float) for b in json.loads(f"[{text}]")]
        if self.kind not in _KINDS:
            raise ValueError(
                f"The constraint {constraint!r} on {name!r} is not known to this "
                "reader; use pushforward."
            )
        self._forward, self._inverse, self._log_det, self._inside = _KINDS[self.kind]
        n = self.shape[-1] if self.shape else 1
        self.free_shape = self.shape
        if self.kind == "centred":
            # It holds along the first axis of an array, and the functions are of the
            # last.
            axis = -len(self.shape)
            self._forward, self._inverse = (
                functools.partial(_along, function, axis)
                for function in (self._forward, self._inverse)
            )
            self.free_shape = (self.shape[0] - 1, *self.shape[1:])
        if self.kind in ("simplex", "zero_sum", "unit_vector"):
            self.free_shape = (*self.shape[:-1], n - 1)
        elif self.kind in ("correlation", "cholesky_correlation"):
            self.free_shape = (*self.shape[:-2], n * (n - 1) // 2)
        elif self.kind in ("covariance", "cholesky_covariance"):
            self.free_shape = (*self.shape[:-2], n * (n + 1) // 2)
        self.size = math.prod(self.free_shape)

    def forward(self, u: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            free = u.reshape(*u.shape[:-1], *self.free_shape)
            return self._forward(free, *self.bounds)

    def inverse(self, x: np.ndarray) -> np.ndarray:
        return self._inverse(x, *self.bounds).reshape(len(x), -1)

    def log_det(self, u: np.ndarray) -> np.ndarray:
        free = u.reshape(len(u), *self.free_shape)
        return self._log_det(free, *self.bounds).reshape(len(u), -1).sum(axis=1)

    def inside(self, x: np.ndarray) -> np.ndarray:
        if self.kind == "centred":
            largest = np.abs(x).max(axis=tuple(range(1, x.ndim)))
            mean = np.abs(x.mean(axis=1)).reshape(len(x), -1).max(axis=1)
            return mean <= 1e-4 * (1 + largest)
        return self._inside(x, *self.bounds).reshape(len(x), -1).all(axis=1)


def _along(function, axis, x):
    return np.moveaxis(function(np.moveaxis(x, axis, -1)), -1, axis)


_GAUSSIAN = statistics.NormalDist()
_normal_cdf = np.vectorize(_GAUSSIAN.cdf, otypes=[float])
_normal_quantile = np.vectorize(_GAUSSIAN.inv_cdf, otypes=[float])
_EPS = float(np.finfo(np.float32).eps)


def _to_angle(u):
    angle = 2 * math.pi * _normal_cdf(u) - math.pi
    return np.clip(angle, -math.pi, np.nextafter(math.pi, 0))


def _from_angle(x):
    share = (x + math.pi) / (2 * math.pi)
    share = share - np.floor(share)
    return _normal_quantile(np.clip(share, 0.5 * _EPS, 1 - 0.5 * _EPS))


def _sigmoid(u):
    return 0.5 * (1 + np.tanh(0.5 * u))


def _sigmoid_log_det(u):
    return -np.logaddexp(0, u) - np.logaddexp(0, -u)


def _log_softmax0(u):
    padded = np.concatenate([u, np.zeros_like(u[..., :1])], axis=-1)
    return padded - np.logaddexp.reduce(padded, axis=-1, keepdims=True)


def _ordered(u):
    return np.cumsum(np.concatenate([u[..., :1], np.exp(u[..., 1:])], -1), axis=-1)


def _unordered(x):
    return np.concatenate([x[..., :1], np.log(np.diff(x, axis=-1))], axis=-1)


def _helmert(n):
    k = np.arange(1, n)[:, None]
    rows = np.where(np.arange(n)[None] < k, 1.0, 0.0) - k * np.eye(n)[1:]
    return rows / np.sqrt(k * (k + 1.0))


def _length(u):
    return np.sqrt((u**2).sum(axis=-1, keepdims=True) + 1e-30)


def _log_sech(r):
    return math.log(2) - r - np.log1p(np.exp(-2 * r))


def _to_sphere(u):
    r = _length(u)
    sech = np.exp(_log_sech(r))
    return np.concatenate([2 * np.tanh(r) * sech * (u / r), 2 * sech**2 - 1], axis=-1)


def _from_sphere(x):
    side, last = x[..., :-1], x[..., -1:]
    sine = _length(side)
    near = sine / np.where(last >= 0, 1 + last, 1.0)
    far = (1 - np.where(last < 0, last, 0.0)) / sine
    return side / sine * np.arcsinh(np.where(last >= 0, near, far))


def _sphere_log_det(u):
    r, k = _length(u), u.shape[-1]
    return k * (math.log(2) + _log_sech(r)) + (k - 1) * np.log(np.tanh(r) / r)


def _triangle(numbers, n, diagonal):
    square = np.zeros((*numbers.shape[:-1], n, n))
    rows, columns = np.tril_indices(n, 0 if diagonal else -1)
    square[..., rows, columns] = numbers
    return square


def _below(square, diagonal):
    rows, columns = np.tril_indices(square.shape[-1], 0 if diagonal else -1)
    return square[..., rows, columns]


def _diagonal(square):
    return np.diagonal(square, axis1=-2, axis2=-1)


def _side(k, diagonal):
    return round((1 + math.sqrt(1 + 8 * k)) / 2) - (1 if diagonal else 0)


def _log_sech_squared(u):
    a = np.abs(u)
    return 2 * (math.log(2) - a - np.log1p(np.exp(-2 * a)))


def _to_correlation_factor(u):
    n = _side(u.shape[-1], False)
    free = _triangle(u, n, False)
    logs = 0.5 * _log_sech_squared(free)
    left = np.exp(np.cumsum(logs, axis=-1) - logs)
    return np.tanh(free) * left + left * np.eye(n)


def _from_correlation_factor(x):
    rest = np.flip(np.cumsum(np.flip(x**2, -1), axis=-1), -1)
    after = np.concatenate([rest[..., 1:], np.zeros_like(rest[..., :1])], axis=-1)
    return np.arcsinh(
        _below(x, False) / np.sqrt(np.maximum(_below(after, False), 1e-30))
    )


def _correlation_log_det(u, whole):
    n = _side(u.shape[-1], False)
    rows, columns = np.tril_indices(n, -1)
    power = 1 + 0.5 * (rows - 1 - columns) + (0.5 * (n - 1 - rows) if whole else 0)
    return _log_sech_squared(u) * power


def _to_covariance_factor(u):
    square = _triangle(u, _side(u.shape[-1], True), True)
    return np.where(np.eye(square.shape[-1], dtype=bool), np.exp(square), square)


def _from_covariance_factor(x):
    eye = np.eye(x.shape[-1], dtype=bool)
    return _below(np.where(eye, np.log(np.where(eye, x, 1.0)), x), True)


def _covariance_log_det(u, whole):
    logs = _diagonal(_triangle(u, _side(u.shape[-1], True), True))
    n = logs.shape[-1]
    return math.log(2) + (1 + n - np.arange(n)) * logs if whole else logs


def _square(factor):
    return factor @ np.swapaxes(factor, -1, -2)


def _factor(x):
    """Cholesky factors; nan where there is none."""
    flat = x.reshape(-1, *x.shape[-2:])
    out = np.full_like(flat, np.nan)
    for i, square in enumerate(flat):
        try:
            out[i] = np.linalg.cholesky(square)
        except np.linalg.LinAlgError:
            continue
    return out.reshape(x.shape)


def _is_triangle(x):
    empty = (np.triu(x, 1) == 0).all(axis=(-2, -1))
    return empty & (_diagonal(x) > 0).all(axis=-1)


def _is_covariance(x):
    scale = np.sqrt(np.abs(_diagonal(x)))
    size = 1e-3 * scale[..., :, None] * scale[..., None, :]
    alike = (np.abs(x - np.swapaxes(x, -1, -2)) <= size).all(axis=(-2, -1))
    return alike & np.isfinite(_factor(x)).all(axis=(-2, -1))


def _sums_to(x, value):
    return np.abs(x.sum(axis=-1, keepdims=True) - value) < 1e-3


def _has_unit_rows(x):
    return (np.abs((x**2).sum(axis=-1) - 1) < 1e-3).all(axis=-1)


# Forward, inverse, the parts of the log-determinant, and what is inside.
_KINDS: dict[str, tuple[Any, Any, Any, Any]] = {
    "real": (lambda u: u, lambda x: x, np.zeros_like, np.isfinite),
    "positive": (np.exp, np.log, lambda u: u, lambda x: x > 0),
    "greater_than": (
        lambda u, a: a + np.exp(u),
        lambda x, a: np.log(x - a),
        lambda u, a: u,
        lambda x, a: x > a,
    ),
    "less_than": (
        lambda u, b: b - np.exp(u),
        lambda x, b: np.log(b - x),
        lambda u, b: u,
        lambda x, b: x < b,
    ),
    "unit_interval": (
        _sigmoid,
        lambda x: np.log(x) - np.log1p(-x),
        _sigmoid_log_det,
        lambda x: (x > 0) & (x < 1),
    ),
    "interval": (
        lambda u, a, b: a + (b - a) * _sigmoid(u),
        lambda x, a, b: np.log(x - a) - np.log(b - x),
        lambda u, a, b: _sigmoid_log_det(u) + np.log(b - a),
        lambda x, a, b: (x > a) & (x < b),
    ),
    "ordered": (
        _ordered,
        _unordered,
        lambda u: u[..., 1:],
        lambda x: np.diff(x, axis=-1) > 0,
    ),
    "simplex": (
        lambda u: np.exp(_log_softmax0(u)),
        lambda x: np.log(x[..., :-1]) - np.log(x[..., -1:]),
        _log_softmax0,
        lambda x: (x > 0) & _sums_to(x, 1),
    ),
    "zero_sum": (
        lambda u: u @ _helmert(u.shape[-1] + 1),
        lambda x: x @ _helmert(x.shape[-1]).T,
        np.zeros_like,
        lambda x: _sums_to(x / np.maximum(np.abs(x).sum(-1, keepdims=True), 1), 0),
    ),
    "centred": (
        lambda u: u @ _helmert(u.shape[-1] + 1),
        lambda x: x @ _helmert(x.shape[-1]).T,
        np.zeros_like,
        np.isfinite,
    ),
    "circular": (
        _to_angle,
        _from_angle,
        lambda u: -0.5 * u**2 + 0.5 * math.log(2 * math.pi),
        np.isfinite,
    ),
    "unit_vector": (
        _to_sphere,
        _from_sphere,
        _sphere_log_det,
        lambda x: np.abs((x**2).sum(axis=-1) - 1) < 1e-3,
    ),
    "cholesky_correlation": (
        _to_correlation_factor,
        _from_correlation_factor,
        lambda u: _correlation_log_det(u, False),
        lambda x: _is_triangle(x) & _has_unit_rows(x),
    ),
    "correlation": (
        lambda u: _square(_to_correlation_factor(u)),
        lambda x: _from_correlation_factor(_factor(x)),
        lambda u: _correlation_log_det(u, True),
        lambda x: _is_covariance(x) & (np.abs(_diagonal(x) - 1) < 1e-3).all(axis=-1),
    ),
    "cholesky_covariance": (
        _to_covariance_factor,
        _from_covariance_factor,
        lambda u: _covariance_log_det(u, False),
        _is_triangle,
    ),
    "covariance": (
        lambda u: _square(_to_covariance_factor(u)),
        lambda x: _from_covariance_factor(_factor(x)),
        lambda u: _covariance_log_det(u, True),
        _is_covariance,
    ),
}
