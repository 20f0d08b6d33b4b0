"""Predict, evaluate, measure."""
