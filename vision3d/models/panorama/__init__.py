# SPDX-License-Identifier: Apache-2.0
"""Networks that estimate the depth of a panorama."""
