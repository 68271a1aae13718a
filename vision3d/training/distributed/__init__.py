# SPDX-License-Identifier: Apache-2.0
"""Training with several processes: communication hooks, their state in checkpoints, a report: docs/distributed.md."""
