#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""``tools/benchmark.py ...`` is ``vision3d benchmark ...``."""

import sys

from vision3d.cli.benchmark import main

if __name__ == "__main__":
    sys.exit(main())
