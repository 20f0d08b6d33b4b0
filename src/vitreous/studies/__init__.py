"""Grids of runs: train several configurations (`compare`, `demo`, `transfer`), then report on them."""
