"""What a program costs: floating-point operations, and the time to compile it."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax


def flops(function: Callable[..., Any], *arguments: Any) -> float:
    """The floating-point operations of a call, as XLA counts them."""
    jitted = jax.jit(lambda *arguments: function(*arguments))
    found: Any = jitted.lower(*arguments).cost_analysis()
    return float(found["flops"])


# JAX reports the durations of lowering and of XLA's compilation under these names
# (tracing too, but nested: it would be counted twice).
_STAGES = (
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
)


@dataclasses.dataclass
class Compiled:
    """Seconds spent compiling so far."""

    seconds: float = 0.0


@contextlib.contextmanager
def compiling() -> Iterator[Compiled]:
    """Counts the seconds JAX spends lowering and compiling inside."""
    counted, listening = Compiled(), True

    def listen(event: str, duration_secs: Any, **_: Any) -> None:
        # Other events pass through here too, some with numbers that are no durations.
        if listening and event in _STAGES:
            counted.seconds += float(duration_secs)

    # JAX has no public way to stop listening: the listener falls silent instead.
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield counted
    finally:
        listening = False
