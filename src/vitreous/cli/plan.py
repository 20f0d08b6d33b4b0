"""`vitreous plan`: print what a training would take, by `vitreous.planning`."""

import json
from typing import Annotated

from typer import Argument, Option

from vitreous.cli.options import JsonOption, SetOption
from vitreous.cli.output import print_result


def plan(
    preset: Annotated[str, Argument(help="A preset with a ViT or the CNN.")],
    images: Annotated[int, Option(help="Training images.", min=1, max=10**15)],
    gpus: Annotated[int, Option(help="GPUs, of one host or many.", min=1, max=10**6)] = 1,
    gpu_tflops: Annotated[
        float | None, Option(help="Peak TFLOP/s of one GPU; default: an A100's in that precision.")
    ] = None,
    gpu_memory: Annotated[float, Option(help="Memory of one GPU in GB.")] = 80.0,
    utilisation: Annotated[float, Option(help="Share of the peak that the training reaches.")] = 0.4,
    epochs: Annotated[float | None, Option(help="Passes over the training images.")] = None,
    batch_size: Annotated[int | None, Option(help="Images per step, over all GPUs.")] = None,
    precision: Annotated[str | None, Option(help="float32, bfloat16, float64, or auto: bfloat16 on a GPU.")] = None,
    shard: Annotated[bool, Option("--shard", help="Shard the model over the GPUs (FSDP) instead of DDP.")] = False,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the FLOPs, time, memory, network traffic and disk that a training would take."""
    from vitreous.config import configure
    from vitreous.planning import A100_TFLOPS, Cluster, make_plan, plan_text

    flags = {"train.epochs": epochs, "train.batch_size": batch_size, "train.precision": precision}
    flags["train.shard"] = shard or None
    given = [f"{key}={json.dumps(value)}" for key, value in flags.items() if value is not None]
    config = configure(preset, settings=[*(settings or ()), *given])
    tflops = A100_TFLOPS[config.train.precision] if gpu_tflops is None else gpu_tflops
    made = make_plan(config, images, Cluster(gpus, tflops, utilisation, gpu_memory))
    print_result(plan_text(made), value=made.as_json(), as_json=as_json)
