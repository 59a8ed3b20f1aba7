"""`fit` with no option, and `check` with no option: does the product work?"""

import json
import os
import platform
from pathlib import Path

import jax
import pytest

import pushforward as pf
from pushforward.diagnostics import Outcome

RESULTS = Path(__file__).resolve().parents[1] / "results" / "default_passes.json"
TARGETS = ("gaussian", "mog2", "donut", "eight_schools_noncentred")
SEED = 0


@pytest.mark.slow
def test_the_default_passes_its_own_check():
    """Four targets; the result file says what came of each, whatever it was."""
    records, verdicts = [], {}
    for name in TARGETS:
        target = pf.targets.get(name)
        fit_key, check_key = jax.random.split(jax.random.key(SEED))
        fit = pf.fit(fit_key, target, progress=False)
        verdict = pf.check(check_key, target, fit.sampler)
        verdicts[name] = verdict
        records.append(
            {
                "target": name,
                "dim": target.dim,
                "seed": SEED,
                "fit_seconds": round(fit.seconds, 1),
                "fit_evaluations": int(fit.evaluations),
                "check_evaluations": verdict.evaluations,
                **verdict.to_dict(),
            }
        )
    device = jax.devices()[0]
    result = {
        "device": f"{device.platform}: {device.device_kind}",
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "versions": {"pushforward": pf.__version__, "jax": jax.__version__},
        "records": records,
    }
    RESULTS.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    bad = [str(v) for v in verdicts.values() if v.outcome is not Outcome.PASSED]
    assert not bad, "\n".join(bad)
