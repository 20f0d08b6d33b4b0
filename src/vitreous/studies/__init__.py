"""Grids of runs: train several configurations (`compare`, `demo`, `study`, `transfer`), then report on them."""
