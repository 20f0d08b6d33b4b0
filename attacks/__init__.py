"""Hostile inputs, rerun by `make attacks`: `python -m attacks --help`. docs/reliability.md has the results.

A family is a module with `warm_up()`, `cases(seed)`, `prepare(case, folder)` and `attack(case, folder)`; `families.py`
lists them. Every case runs in a process of its own with limited memory and time (`child.py`). For Linux: memory and
processes are read from /proc.
"""
