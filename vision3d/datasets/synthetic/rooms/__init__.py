# SPDX-License-Identifier: Apache-2.0
"""Ray-cast furnished rooms with exact truth: stereo pairs with normals, panoramas, multi-view sets, sequences."""

from vision3d.datasets.synthetic.rooms.layout import make_room
from vision3d.datasets.synthetic.rooms.options import RoomOptions
from vision3d.datasets.synthetic.rooms.samples import make_room_panorama, make_room_views
from vision3d.datasets.synthetic.rooms.sequence import RoomSequence, make_room_sequence, write_room_sequence
from vision3d.datasets.synthetic.rooms.stereo import RoomStereo, make_room_stereo

__all__ = [
    "RoomOptions",
    "RoomSequence",
    "RoomStereo",
    "make_room",
    "make_room_panorama",
    "make_room_sequence",
    "make_room_stereo",
    "make_room_views",
    "write_room_sequence",
]
