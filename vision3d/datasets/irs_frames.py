# SPDX-License-Identifier: Apache-2.0
"""How many frames each scene folder of IRS has (counted from the published lists)."""

from __future__ import annotations

from functools import cache
from itertools import accumulate

# category -> base scene -> variant -> frames; frames are numbered 1..N
_COUNTS: dict[str, dict[str, dict[str, int]]] = {
    "Home": {
        "ArchVizInterior03Data": {
            "": 174, "_Dark": 654, "_LensFlares": 654, "_Night": 654, "_NightFall": 654, "_T1": 661, "_T2": 716
        },
        "ArchvizKitchen": {"": 227, "_Dark": 575, "_Night": 575, "_T1": 543, "_T2": 667},
        "ModernClassicInterior": {
            "": 693, "_Dark": 1470, "_Night": 1470, "_NightFall": 1470, "_NightFall_BL2": 1470, "_T1": 1178, "_T2": 1793
        },
        "ModernHotelRoom": {"": 278, "_Dark": 999, "_Night": 999, "_NightFall": 999, "_T1": 600},
        "RealisticRenderingDay": {"": 569, "_T1": 793},
        "RealisticRenderingNight": {"": 546, "_T1": 818},
        "RoyalRoom": {"": 562, "_BL2": 1680, "_Dark": 1680, "_Night": 1680, "_NightFall": 1680, "_T1": 964},
    },
    "Office": {
        "ModernModularOffice": {"": 448, "_BL2": 1412, "_Dark": 1412, "_NightFall": 1412},
        "OfficeBuildingEnvironment": {"": 2486, "_Dark": 3085},
        "OfficeKIT": {"": 648, "_Dark": 1177, "_Night": 1177, "_NightFall": 1177},
        "OfficeMedley1": {"": 1011, "_Dark": 1175, "_Night": 1175, "_NightFall": 1175},
        "OfficeMedley2": {"": 1287, "_Dark": 3019},
        "OfficeMedley3": {"": 3019, "_BL2": 3018, "_Dark": 3019},
        "QAOfficeAndSecurityRoom1": {"": 452},
        "QAOfficeAndSecurityRoom2": {"": 1011, "_Night": 4811, "_NightFall": 4811},
    },
    "Restaurant": {
        "BistroRestaurantScene": {"": 544, "_BL2": 411},
        "ContemporaryRestaurant1": {"": 770, "_BL2": 744},
        "ContemporaryRestaurant2": {"": 838, "_BL2": 705},
        "DinerEnvironment": {"": 1762, "_BL2": 1514, "_Dark": 2984, "_Night": 2983},
        "SCLRestaurant001": {"": 887, "_BL2": 959, "_Dark": 2319, "_Night": 2319, "_NightFall": 2319},
    },
    "Store": {
        "ConvenienceStore": {"": 1044, "_Day": 1045},
        "Supermarket": {"": 2303, "_Dark": 2304},
    },
}  # fmt: skip

# The only folder whose numbers have gaps.
_ABSENT = {"RoyalRoom_T1": (803, 804, *range(960, 971))}


def frame_counts(category: str) -> dict[str, int]:
    """Frames of each scene folder of a category, in ASCII order of the folders."""
    scenes = _COUNTS[category]
    return dict(sorted((base + suffix, count) for base, kinds in scenes.items() for suffix, count in kinds.items()))


def published_index(category: str, scene: str, number: int) -> int | None:
    """The place of a frame in the published order of its category, or None for a frame that the lists do not have."""
    if scene not in _offsets(category):
        return None
    offset, count = _offsets(category)[scene]
    absent = _ABSENT.get(scene, ())
    if number in absent or not 1 <= number <= count + len(absent):
        return None
    return offset + number - 1 - sum(gap < number for gap in absent)


@cache
def _offsets(category: str) -> dict[str, tuple[int, int]]:
    """(frames before it, frames) of each scene folder."""
    counts = frame_counts(category)
    starts = accumulate(counts.values(), initial=0)
    return {scene: (start, count) for (scene, count), start in zip(counts.items(), starts, strict=False)}
