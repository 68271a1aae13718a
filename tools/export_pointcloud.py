#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""``tools/export_pointcloud.py ...`` is ``vision3d cloud ...``."""

import sys

from vision3d.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["cloud", *sys.argv[1:]]))
