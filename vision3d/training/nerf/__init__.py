# SPDX-License-Identifier: Apache-2.0
"""Joint optimisation of radiance fields and cameras: stages, the optimiser, image pyramids."""
