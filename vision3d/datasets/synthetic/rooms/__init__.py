# SPDX-License-Identifier: Apache-2.0
"""Ray-cast furnished rooms with exact truth: stereo pairs with normals, panoramas, multi-view sets."""

from vision3d.datasets.synthetic.rooms.layout import make_room
from vision3d.datasets.synthetic.rooms.options import RoomOptions
from vision3d.datasets.synthetic.rooms.samples import make_room_panorama, make_room_views
from vision3d.datasets.synthetic.rooms.stereo import RoomStereo, make_room_stereo

__all__ = ["RoomOptions", "RoomStereo", "make_room", "make_room_panorama", "make_room_stereo", "make_room_views"]
