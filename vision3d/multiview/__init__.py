# SPDX-License-Identifier: Apache-2.0
"""Multi-view stereo as a whole: a folder of posed images in, depth maps, a point cloud and a mesh out."""
