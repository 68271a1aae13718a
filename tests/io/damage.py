# SPDX-License-Identifier: Apache-2.0
"""Damaged copies of good files, for the fuzz tests of the parsers."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from hypothesis import strategies as st

INSERTS = [b"nan", b"inf", b"-inf", b"1e999", b"-1", b"0", b"9" * 30, b"9" * 5000, b"\n", b"\r", b" ", b"#", b"{", b"["]
INSERTS += [b"]", b"null", b":", b"*a", b"&a ", b"!!python/object:os.system ", b"\xff" * 8, b"\0" * 8]
INSERTS += ["\u0663".encode()]
KEEPS = (0, 0, 0, 1, 5, 17, 40)  # bytes cut from the end

# Up to three edits (place, bytes removed, bytes inserted), and how much is cut.
EDITS = st.lists(
    st.tuples(st.integers(0, 1 << 12), st.integers(0, 12), st.sampled_from(INSERTS) | st.binary(max_size=9)), max_size=3
)
CUTS = st.sampled_from(KEEPS)


def mutate(content: bytes, edits: list[tuple[int, int, bytes]], keep: int) -> bytes:
    """The content with its edits applied in order and ``keep`` bytes cut from the end."""
    for place, length, insert in edits:
        start = place % (len(content) + 1)
        content = content[:start] + insert + content[start + length :]
    return content[: len(content) - keep]


def damaged(content: bytes, count: int, seed: str) -> Iterator[bytes]:
    """``count`` damaged copies, drawn without Hypothesis, which needs several milliseconds for each."""
    random = Random(seed)
    for _ in range(count):
        edits = [
            (
                random.randrange(len(content) + 1),
                random.randrange(13),
                random.choice(INSERTS) if random.random() < 0.5 else random.randbytes(random.randrange(10)),
            )
            for _ in range(random.randrange(4))
        ]
        yield mutate(content, edits, random.choice(KEEPS))
