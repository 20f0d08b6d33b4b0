"""The child process of `files.py`: `torch.load(weights_only=True)` under limits, tensors out as safetensors.

Run as a script with one JSON argument; it imports nothing of vitreous. `weights_only` has been broken twice (fixed in
torch 2.6 and 2.10), so the process has limited memory, time and output and no inherited environment: a third hole
would gain little. There is no fallback to full unpickling, here or anywhere.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from typing import Any

MAX_DEPTH = 8  # {"state_dict": {"model": {…}}} is 3


class Refused(Exception):
    """Why a file is refused: the end of a sentence that begins with its name."""


def limit(job: dict[str, Any]) -> None:
    try:
        import resource
    except ImportError:
        raise Refused("this system cannot limit a process, which reading a pickle requires: use safetensors") from None
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
            if sys.platform == "linux":  # other systems define limits that they do not implement
                raise


def check_zip(path: str, limit_bytes: int) -> None:
    """Refuse a zip bomb (torch never compresses, so an archive cannot declare more than its size) and damage.

    torch.load itself ignores the checksums: a flipped bit would be a changed weight.
    """
    if not zipfile.is_zipfile(path):
        return  # the format before torch 1.6
    with zipfile.ZipFile(path) as archive:
        declared = sum(entry.file_size for entry in archive.infolist())
        if declared > limit_bytes:
            raise Refused(f"it would unpack to {declared:,} bytes; the limit for a file of its size is {limit_bytes:,}")
        if (damaged := archive.testzip()) is not None:
            raise Refused(
                f"its part {damaged[:80]!r} does not match its checksum: it is damaged, or torch was asked to save it"
                " without checksums; download it or save it again"
            )


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
                f"it holds {found[1]!r}, which is not a tensor and might run code: ask its author for safetensors,"
                " or save only its state dict"
            ) from None
        if "weights_only" in text or "Unpickl" in type(error).__name__:
            raise Refused("it is not a pickle of tensors alone, and no other kind is read") from None
        raise Refused(f"torch cannot read it ({type(error).__name__})") from None


def flatten(value: Any, name: str, found: dict[str, Any], seen: set[int], depth: int = 0) -> None:
    """Collect the tensors of nested containers under dotted names; skip everything else (epochs, settings)."""
    import torch

    if isinstance(value, (dict, list, tuple)):
        if id(value) in seen:  # nested references to the same few lists would take exponential time
            return
        seen.add(id(value))
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized or value.device.type != "cpu":
            raise Refused(f"its tensor {name[:80]!r} is sparse, quantised or has no data")
        if name in found:
            raise Refused(f"it repeats the name {name[:80]!r}")
        found[name] = value
    elif isinstance(value, (dict, list, tuple)):
        if depth > MAX_DEPTH:
            raise Refused("its dictionaries and lists are nested too deeply")
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            flatten(inner, f"{name}.{key}" if name else str(key), found, seen, depth + 1)


def run(job: dict[str, Any]) -> None:
    limit(job)
    sys.path += [entry for entry in job["import_path"] if entry not in sys.path]
    check_zip(job["source"], job["tensor_bytes"])
    found: dict[str, Any] = {}
    flatten(load(job["source"]), "", found, set())
    needed = sum(tensor.numel() * tensor.element_size() for tensor in found.values())
    if needed > job["tensor_bytes"]:  # an expanded tensor is small in the file only
        raise Refused(
            f"its tensors would take {needed:,} bytes; the limit for a file of its size is {job['tensor_bytes']:,}"
        )
    if not found:
        raise Refused("it has no tensors")
    from safetensors.torch import save_file

    save_file({name: tensor.detach().clone().contiguous() for name, tensor in found.items()}, job["target"])


def main() -> None:
    """Print why the file is refused, or nothing once its tensors are written."""
    try:
        run(json.loads(sys.argv[1]))
        return
    except Refused as refused:
        reason = str(refused)
    except MemoryError:
        reason = "it needs more memory than a file of its size may"
    except zipfile.BadZipFile:
        reason = "its zip directory is broken"
    except Exception as error:
        reason = f"it cannot be read ({type(error).__name__})"
    sys.stdout.buffer.write(reason.encode("utf-8", "replace"))


if __name__ == "__main__":
    main()
