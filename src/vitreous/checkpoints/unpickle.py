"""The child process of `files.py`: `torch.load(weights_only=True)` under limits, tensors out as safetensors.

Run as a script, with one JSON argument; it imports nothing of vitreous. `weights_only` has been broken twice
(mended in torch 2.6 and 2.10), so that even a third hole finds little here: limited memory, time and output, no
inherited environment. There is no fallback to full unpickling, here or anywhere.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from typing import Any

MAX_DEPTH = 8  # {"state_dict": {"model": {…}}} is 3


class Refused(Exception):
    """Why, as the end of a sentence."""


def limit(job: dict[str, Any]) -> None:
    try:
        import resource
    except ImportError:
        raise Refused("this system cannot limit a process, and a pickle is not read without: use safetensors") from None
    limits = {
        resource.RLIMIT_AS: job["address_space"],
        resource.RLIMIT_CPU: job["cpu_seconds"],
        resource.RLIMIT_FSIZE: job["tensor_bytes"] + 2**24,
        resource.RLIMIT_CORE: 0,
    }
    for kind, value in limits.items():
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (value, value))
        except (ValueError, OSError):
            if sys.platform == "linux":  # elsewhere some limits exist in name only
                raise


def check_zip(path: str, limit_bytes: int) -> None:
    """torch never compresses; an archive that declares more than its size is a bomb."""
    if not zipfile.is_zipfile(path):
        return  # the format before torch 1.6
    with zipfile.ZipFile(path) as archive:
        declared = sum(entry.file_size for entry in archive.infolist())
    if declared > limit_bytes:
        raise Refused(f"it would unpack to {declared:,} bytes; the limit for a file of its size is {limit_bytes:,}")


def load(path: str) -> Any:
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:
        text = str(error)
        found = re.search(r"(?:GLOBAL|global|Unsupported (?:class|global):?)\s+([\w.]+\.[\w.]+)", text)
        if found:
            raise Refused(
                f"it holds {found[1]!r}, which is no tensor and might run code: ask its author for safetensors,"
                " or save its state dict alone"
            ) from None
        if "weights_only" in text or "Unpickl" in type(error).__name__:
            raise Refused("it is not a plain pickle of tensors, and no other kind is loaded") from None
        raise Refused(f"torch cannot read it ({type(error).__name__})") from None


def flatten(value: Any, name: str, found: dict[str, Any], seen: set[int], depth: int = 0) -> None:
    """Nested dictionaries become dotted names; what is no tensor (epochs, settings) is left out."""
    import torch

    if isinstance(value, (dict, list, tuple)):
        if id(value) in seen:  # a few lists that hold each other many times would take for ever
            return
        seen.add(id(value))

    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized or value.device.type != "cpu":
            raise Refused(f"its tensor {name[:80]!r} is sparse, quantised or empty of data")
        if name in found:
            raise Refused(f"it names {name[:80]!r} twice")
        found[name] = value
    elif isinstance(value, dict):
        if depth > MAX_DEPTH:
            raise Refused("its dictionaries are nested too deeply")
        for key, inner in value.items():
            flatten(inner, f"{name}.{key}" if name else str(key), found, seen, depth + 1)
    elif isinstance(value, (list, tuple)) and depth <= MAX_DEPTH:
        for key, inner in enumerate(value):
            flatten(inner, f"{name}.{key}", found, seen, depth + 1)


def run(job: dict[str, Any]) -> None:
    limit(job)
    sys.path += [entry for entry in job["import_path"] if entry not in sys.path]
    check_zip(job["source"], job["tensor_bytes"])
    found: dict[str, Any] = {}
    contents = load(job["source"])
    flatten(contents, "", found, set())
    needed = sum(tensor.numel() * tensor.element_size() for tensor in found.values())
    if needed > job["tensor_bytes"]:  # a tensor that repeats one number a billion times is small only in the file
        raise Refused(
            f"its tensors would take {needed:,} bytes; the limit for a file of its size is {job['tensor_bytes']:,}"
        )
    if not found:
        raise Refused("there are no tensors in it")
    from safetensors.torch import save_file

    save_file({name: tensor.detach().clone().contiguous() for name, tensor in found.items()}, job["target"])


def main() -> None:
    try:
        run(json.loads(sys.argv[1]))
        answer: dict[str, Any] = {"done": True}
    except Refused as refused:
        answer = {"refused": str(refused)}
    except MemoryError:
        answer = {"refused": "it needs more memory than a file of its size may"}
    except zipfile.BadZipFile:
        answer = {"refused": "its zip directory is broken"}
    except Exception as error:
        answer = {"refused": f"it cannot be read ({type(error).__name__})"}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
