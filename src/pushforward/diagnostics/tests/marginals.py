"""Every coordinate alone, and the log density as one more."""

import numpy as np

from pushforward.diagnostics.results import TestResult
from pushforward.diagnostics.tests.base import Need, StatisticalTest
from pushforward.diagnostics.two_sample import kolmogorov_smirnov


def _run(key, evidence, level):
    """Kolmogorov-Smirnov tests, with Bonferroni's correction for their number."""
    sample, reference, far = evidence.sample, evidence.reference, evidence.far
    names = [f"'{name}'" for name in evidence.target.names]
    tables = [sample.draws, reference.draws, far.draws]
    columns = [sample.log_densities, reference.log_densities, far.log_densities]
    if reference.log_densities is not None:
        tables = [np.column_stack(pair) for pair in zip(tables, columns, strict=True)]
        names.append("the log density")
    own, whole, part = tables
    statistics, p_values = kolmogorov_smirnov(own, whole, reference.ess)
    baselines, _ = kolmogorov_smirnov(part, whole, reference.ess)
    worst = int(np.argmin(p_values))
    return TestResult.of_p_value(
        MARGINALS.name,
        float(min(1.0, len(names) * p_values[worst])),
        level,
        failed=f"{names[worst]} is distributed differently in the draws and in the "
        "reference (Kolmogorov-Smirnov)",
        passed="largest Kolmogorov-Smirnov distance of a coordinate",
        statistic=float(statistics[worst]),
        reference=float(np.max(baselines)),
    )


MARGINALS = StatisticalTest("marginals", frozenset({Need.REFERENCE}), _run)
