# SPDX-License-Identifier: Apache-2.0
"""Search for the sub-network of a trained supernet that fits a device.

The package stands beside ``training`` and ``evaluation``: it joins networks, data sets, error figures and latencies, of
which none may know the others.
"""

RANKERS = ("predictor", "measured", "i0", "i1", "i2")
