#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Train a network: the same as ``vision3d train``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from vision3d.cli.train import main

if __name__ == "__main__":
    sys.exit(main())
