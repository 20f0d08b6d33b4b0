"""What a training would take: FLOPs, time, memory per rank, network traffic and disk, by a small calculator."""

from vitreous.planning.plan import A100_TFLOPS, Cluster, TrainingPlan, make_plan
from vitreous.planning.text import plan_text

__all__ = ["A100_TFLOPS", "Cluster", "TrainingPlan", "make_plan", "plan_text"]
