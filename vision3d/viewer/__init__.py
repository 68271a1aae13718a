# SPDX-License-Identifier: Apache-2.0
"""The viewer page: one self-contained HTML file with the pair, the maps, the figures and a cloud to turn."""

from vision3d.viewer.page import cloud_payload, write_cloud_view, write_view

__all__ = ["cloud_payload", "write_cloud_view", "write_view"]
