"""One short program in the settings that people run things in."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from .tally import Tally

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np, pushforward as pf
from pushforward import methods
def log_density(x): return -0.5 * jnp.sum(x**2)
def program():
    target = pf.Target(log_density, dim=2)
    method = methods.Gaussian(steps=4, batch_size=8, particles=16)
    key = jax.random.key(0)
    fit = pf.fit(key, target, method, out="run", resume=True)
    assert fit.finished
    fit.sampler.save("a.pf")
    draws = pf.load("a.pf").sample(key, 20)
    assert np.isfinite(np.asarray(draws)).all()
    fit.sampler.stream(key, 20, "a.npz", progress=True)
"""
MAIN = PROGRAM + "program()\n"
THREAD = (
    PROGRAM
    + """
import threading
failed = []
def guarded():
    try:
        program()
    except BaseException as error:
        failed.append(error)
thread = threading.Thread(target=guarded)
thread.start()
thread.join()
if failed:
    raise failed[0]
"""
)
CHECK = (
    "import sys; from pushforward.cli import main; "
    "sys.exit(main(['fit', 'gaussian', '--method', 'gaussian', '--steps', '4', "
    "'--batch-size', '8', '--out', 'run']))"
)
# The first is what the fast tests try.
SETTINGS = {
    "64-bit": (MAIN, {"JAX_ENABLE_X64": "1"}, ""),
    "the C locale, in ASCII": (CHECK, {"LC_ALL": "C", "PYTHONIOENCODING": "ascii",
        "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, ""),
    "without jit": (MAIN, {"JAX_DISABLE_JIT": "1"}, ""),
    "debug-nans": (MAIN, {"JAX_DEBUG_NANS": "1"}, ""),
    "stdout closed": (MAIN, {}, ">&-"),
    "all streams closed": (CHECK, {}, "<&- >&- 2>&-"),
    "a home that cannot be written": (MAIN, {"HOME": "/proc",
        "XDG_CACHE_HOME": "/proc"}, ""),
    "in a thread": (THREAD, {}, ""),
    "without assertions": (MAIN, {"PYTHONOPTIMIZE": "2"}, ""),
    "warnings are errors": (MAIN, {"PYTHONWARNINGS": "error:::pushforward"}, ""),
    "strict promotion": (MAIN, {"JAX_NUMPY_DTYPE_PROMOTION": "strict",
        "JAX_NUMPY_RANK_PROMOTION": "raise"}, ""),
    "four devices": (MAIN, {"XLA_FLAGS":
        "--xla_force_host_platform_device_count=4"}, ""),
}  # fmt: skip


def campaign(seed: int, count: int) -> Tally:
    """The first `count` settings; chance has no part in it."""
    tally = Tally()
    source = Path(__file__).parents[2] / "src"
    for kind, (program, settings, streams) in list(SETTINGS.items())[:count]:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "program.py").write_text(program)
            environment = {**os.environ, "PYTHONPATH": str(source), **settings}
            done = subprocess.run(
                ["bash", "-c", f"exec {sys.executable} program.py {streams}"],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=600,
            )
            fine = done.returncode == 0 and "Traceback" not in done.stderr
            tally.expect(kind, fine, f"status {done.returncode}: {done.stderr[-400:]}")
    return tally
