"""From an energy in PyTorch to a target."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pushforward._optional import require
from pushforward.bridges.numpy import probe_points
from pushforward.errors import UsageError
from pushforward.targets import Target
from pushforward.targets.base import Constraints, make_structure
from pushforward.targets.foreign import CallbackDensity, as_batches


def from_torch(
    energy: Callable[[Any], Any],
    dim: int,
    *,
    device: Any = None,
    dtype: Any = None,
    constraints: Constraints | None = None,
    names: tuple[str, ...] | None = None,
) -> Target:
    """A target from an energy in PyTorch: its density is `exp(-energy)`.

    Gradients, and products with the Hessian for methods that differentiate the score,
    are those of autograd. Each evaluation is a call of the host: what it costs is
    measured, and `fit` says so where it is much.

    Args:
        energy: A function, or a `torch.nn.Module`, of an n by dim tensor of points that
            returns n numbers; or of one point that returns one, which is slower.
        dim: The number of coordinates.
        device: Where the tensors are made, such as "cuda"; by default the CPU.
        dtype: Their kind; by default `torch.get_default_dtype()`.
        constraints: As for `Target`; the energy is of the constrained point.
        names: A name for each coordinate.
    """
    torch = require("torch", "torch", "from_torch")
    if not callable(energy):
        raise UsageError(
            "from_torch needs an energy, a function of a tensor of points, not a "
            f"{type(energy).__name__}."
        )
    kind = dtype or torch.get_default_dtype()

    def tensor(x: np.ndarray) -> Any:
        # A copy, for the arrays of a callback must not be written to.
        return torch.tensor(np.array(x), dtype=kind, device=device)

    def array(y: Any) -> np.ndarray:
        return y.detach().cpu().double().numpy()

    # Many points at once where that gives the same.
    structure = make_structure(dim, None, names, constraints)
    probe = probe_points(structure)
    found = as_batches("from_torch", lambda x: energy(tensor(x)), probe, array)
    together = found.together

    def total(x: Any) -> tuple[Any, Any]:
        values = energy(x) if together else torch.stack([energy(p) for p in x])
        return values, values.sum()

    def value_and_gradient(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        points = tensor(x).requires_grad_()
        with torch.enable_grad():
            values, summed = total(points)
            (gradient,) = torch.autograd.grad(summed, points)
        return -array(values), -array(gradient)

    def hessian_product(x: np.ndarray, v: np.ndarray) -> np.ndarray:
        points = tensor(x).requires_grad_()
        with torch.enable_grad():
            _, summed = total(points)
            (gradient,) = torch.autograd.grad(summed, points, create_graph=True)
            if not gradient.requires_grad:
                # A linear energy.
                return np.zeros_like(x)
            (product,) = torch.autograd.grad(
                (gradient * tensor(v)).sum(), points, allow_unused=True
            )
        return np.zeros_like(x) if product is None else -array(product)

    density = CallbackDensity(
        "from_torch", dim, value_and_gradient, hessian_product, probe=probe
    )
    return Target(density, example=structure)
