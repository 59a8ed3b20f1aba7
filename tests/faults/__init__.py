"""The fault campaign: what users, disks, networks and strangers do to the package.

Each module is one campaign: a function of a seed and a count that tries so many things
and returns a `Tally` of what was tried and what went wrong. `python -m tests.faults`
runs them and writes `results/faults.json`, from which `docs/reliability.md` is
rendered; a few seconds' worth is part of the fast tests (`tests/test_faults.py`).
"""
