"""The binary form of numbers for a page: one JSON object, then arrays as they are in memory.

A picture has a few hundred thousand numbers. As text they would cost more than everything else together.

    length of the JSON, 4 bytes | JSON, blanks up to a multiple of 8 | array | blanks ... | array | ...

The JSON has the arrays in order under "arrays": name, kind as JavaScript calls it, count. All is little-endian.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["pack"]

_KINDS = {"u1": "Uint8Array", "i4": "Int32Array", "f8": "Float64Array"}
_ALIGNMENT = 8


def pack(about: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return one message of an object and arrays. 64-bit integers become floating-point numbers, as in JavaScript."""
    parts = {name: _plain(array) for name, array in arrays.items()}
    listed = [[name, _KINDS[f"{array.dtype.kind}{array.itemsize}"], array.size] for name, array in parts.items()]
    head = json.dumps({**about, "arrays": listed}, separators=(",", ":"), allow_nan=False).encode()
    head += b" " * (-(4 + len(head)) % _ALIGNMENT)
    body = [len(head).to_bytes(4, "little"), head]
    for array in parts.values():
        body += [array.tobytes(), bytes(-array.nbytes % _ALIGNMENT)]
    return b"".join(body)


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind == "f" or array.dtype.itemsize == 8:
        return np.ascontiguousarray(array, dtype="<f8")
    return np.ascontiguousarray(array, dtype="u1" if array.dtype.itemsize == 1 else "<i4")
