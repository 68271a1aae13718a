#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""``tools/predict.py ...`` is ``vision3d predict ...``."""

import sys

from vision3d.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["predict", *sys.argv[1:]]))
