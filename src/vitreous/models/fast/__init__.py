"""Faster paths for the CPU, each equal to the readable model by test."""
