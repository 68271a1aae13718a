# SPDX-License-Identifier: Apache-2.0
"""Multi-view stereo networks."""
