#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""``tools/evaluate.py ...`` is ``vision3d evaluate ...``."""

import sys

from vision3d.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["evaluate", *sys.argv[1:]]))
