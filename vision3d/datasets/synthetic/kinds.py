# SPDX-License-Identifier: Apache-2.0
"""The kinds of synthetic stereo pairs under one function: layered scenes, rooms, and a mixture of both."""

from __future__ import annotations

from typing import Literal, get_args

from vision3d.datasets.synthetic.scene import SceneOptions, make_scene
from vision3d.errors import UnknownNameError
from vision3d.types import StereoSample

Kind = Literal["layered", "rooms", "mixture"]
KINDS: tuple[str, ...] = get_args(Kind)


def make_pair(
    seed: int,
    height: int,
    width: int,
    kind: str = "layered",
    layered: SceneOptions | None = None,
    rooms: dict[str, object] | None = None,
) -> StereoSample:
    """Make the stereo pair of a seed.

    Args:
        seed: the same seed, size, kind and options give the same pair.
        height, width: image size, pixels.
        kind: ``layered`` (:func:`make_scene`), ``rooms`` (:func:`make_room_stereo`, with normals) or ``mixture``: rooms
            where the seed is even, layered scenes where it is odd.
        layered, rooms: the options of both; those of ``RoomOptions`` by name.

    Raises:
        UnknownNameError: unknown kind.
    """
    if kind not in KINDS:
        raise UnknownNameError("kind of scenes", kind, KINDS)
    if kind == "layered" or (kind == "mixture" and seed % 2):
        return make_scene(seed, height, width, layered)
    from vision3d.datasets.synthetic.rooms import RoomOptions, make_room_stereo

    return make_room_stereo(seed, height, width, options=RoomOptions(**(rooms or {})))  # type: ignore[arg-type]
