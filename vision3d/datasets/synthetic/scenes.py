# SPDX-License-Identifier: Apache-2.0
"""Synthetic scenes as an indexed data set."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

from vision3d.datasets.synthetic.scene import SceneOptions, make_scene
from vision3d.types import StereoSample


class SyntheticScenes(Dataset[StereoSample]):
    """Scenes made on the fly, numbered by their seed.

    Args:
        height, width: size of the pairs.
        seed: the first scene's number.
        scenes: how many there are; None: no end, no scene is seen twice.
        options: those of ``SceneOptions``.

    Attributes:
        scenes: the names, or None where there is no end.
    """

    name = "synthetic"

    def __init__(
        self, height: int = 384, width: int = 640, seed: int = 0, scenes: int | None = None, **options: Any
    ) -> None:
        self.height, self.width, self.seed, self.count = height, width, seed, scenes
        self.scenes = None if scenes is None else [f"synthetic_{seed + index:08d}" for index in range(scenes)]
        plain: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in options.items()
        }
        self.options = SceneOptions(**plain)

    def __len__(self) -> int:
        if self.count is None:
            raise TypeError("these scenes have no end")
        return self.count

    def __getitem__(self, index: int) -> StereoSample:
        """Make the scene of seed ``self.seed + index``."""
        if self.count is not None and not 0 <= index < self.count:
            raise IndexError(index)
        return make_scene(self.seed + index, self.height, self.width, self.options)
