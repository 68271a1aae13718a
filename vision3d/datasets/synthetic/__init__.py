# SPDX-License-Identifier: Apache-2.0
"""Synthetic stereo scenes with exact ground truth."""

from vision3d.datasets.synthetic.scene import SceneOptions, SyntheticStereo, make_scene

__all__ = ["SceneOptions", "SyntheticStereo", "make_scene"]
