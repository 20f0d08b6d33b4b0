"""Grids of runs: train several configurations, then compare them."""
