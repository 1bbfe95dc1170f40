"""Yields the bytes of a file, gzipped or not, piece by piece, within the limits."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import BinaryIO

from allotment._formats.limits import Limits
from allotment.errors import FormatError

__all__ = ["unpacked"]

GZIP_MAGIC = b"\x1f\x8b"
GZIP_HEADER_AND_TRAILER = 31  # zlib's window bits for "a gzip stream with its checksum"
PIECE = 1 << 18

# A member costs far more time than its twenty bytes; block-wise compressors write one per 64 KiB or more.
MAX_MEMBERS = 1 << 16


def unpacked(stream: BinaryIO, limits: Limits) -> Iterator[bytes]:
    """Yield the content of `stream` in pieces of at most 256 KiB; gzip is recognised by its first bytes.

    Raises FormatError for a damaged or truncated gzip file and for content beyond the limits.
    """
    first = stream.read(PIECE)
    if len(first) == 1:  # a pipe may return less than requested
        first += stream.read(PIECE)
    pieces = _gunzipped(stream, first, limits) if first[:2] == GZIP_MAGIC else _plain(stream, first)
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > limits.max_bytes:
            raise FormatError(
                f"at byte {limits.max_bytes} of the content: it goes on; a higher max_bytes would allow it"
            )
        yield piece


def _plain(stream: BinaryIO, piece: bytes) -> Iterator[bytes]:
    while piece:
        yield piece
        piece = stream.read(PIECE)


def _gunzipped(stream: BinaryIO, packed: bytes, limits: Limits) -> Iterator[bytes]:
    consumed = produced = members = 0
    while packed:
        members += 1
        if members > MAX_MEMBERS:
            raise FormatError(f"at byte {consumed} of the gzip file: more than {MAX_MEMBERS} members")
        member = zlib.decompressobj(GZIP_HEADER_AND_TRAILER)
        while not member.eof:
            if not packed:
                packed = stream.read(PIECE)
                if not packed:
                    raise FormatError(f"at byte {consumed} of the gzip file: it ends before its content does")
            before = len(packed)
            try:
                piece = member.decompress(packed, PIECE)
            except zlib.error as error:
                raise FormatError(f"at byte {consumed} of the gzip file or soon after: {_one_line(error)}") from None
            packed = member.unused_data if member.eof else member.unconsumed_tail
            consumed += before - len(packed)
            produced += len(piece)
            if produced > limits.free_bytes + limits.max_ratio * consumed:
                raise FormatError(
                    f"at byte {consumed} of the gzip file: it unpacks to more than {limits.max_ratio} times "
                    "its size; a higher max_ratio would allow it"
                )
            if piece:
                yield piece
        packed = packed or stream.read(PIECE)
        while packed and not packed.strip(b"\0"):  # zeros may pad the end of a gzip file
            packed = stream.read(PIECE)


def _one_line(error: zlib.error) -> str:
    return " ".join(str(error).split())
