# SPDX-License-Identifier: Apache-2.0
"""Scenes that pose-free radiance fields are measured on, with their reference poses of COLMAP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vision3d.datasets.posed_images import PosedImages


class _Scenes(PosedImages):
    """One scene of a set: ``ROOT/<scene>/images`` and ``ROOT/<scene>/sparse``.

    Args:
        root: folder of the set, or of a scene where ``scene`` is None.
        scene: name of the scene.
        options: see :class:`PosedImages`.
    """

    def __init__(self, root: str | os.PathLike[str], *, scene: str | None = None, **options: Any) -> None:
        super().__init__(root if scene is None else Path(root) / scene, **options)


class NerfBuster(_Scenes):
    """The frames of Nerfbusters (arXiv 2304.10532) as CF-NeRF uses them: 12 scenes of about 50 phone images."""

    name = "nerfbuster"
    tree = "ROOT/<scene>/images/*.png|jpg and ROOT/<scene>/sparse/{cameras,images,points3D}.{txt,bin}"


class Llff(_Scenes):
    """Forward-facing scenes of LLFF (arXiv 1905.00889)."""

    name = "llff"
    tree = "ROOT/<scene>/images/* and ROOT/<scene>/sparse (or sparse/0)"
