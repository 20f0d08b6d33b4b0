"""The program of one decoding process: requests on standard input, results on standard output, until the input ends.

A request is a line of JSON: the target (null: extents only) and the items. The response is a line of JSON, with one
entry per item and the number of bytes that follow, and then the pixels. It imports no torch, so that it starts quickly.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys

from vitreous.data.decoding import decode_item, measure_item, pack
from vitreous.data.items import Item
from vitreous.data.target import Target


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends this process
    responses = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library may print is no response
    with contextlib.suppress(BrokenPipeError):  # the parent was killed
        for line in sys.stdin.buffer:
            request = json.loads(line)
            items = [Item(name, path, 0, "train", offset, size) for name, path, offset, size in request["items"]]
            given = request["target"]
            target = None if given is None else Target(**{**given, "size": tuple(given["size"])})
            results = [measure_item(item) if target is None else decode_item(item, target) for item in items]
            rows, pixels = pack(results)
            head = json.dumps({"rows": rows, "bytes": sum(map(len, pixels))})
            responses.write(head.encode("ascii") + b"\n" + b"".join(pixels))
            responses.flush()
    os._exit(0)  # without the flush of `responses`, whose reader may be gone


if __name__ == "__main__":
    main()
