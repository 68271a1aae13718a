# SPDX-License-Identifier: Apache-2.0
"""Radiance fields with learnt cameras: rays, encodings, networks, sampling, compositing and CF-NeRF's model."""
