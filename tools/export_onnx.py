#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""``tools/export_onnx.py ...`` is ``vision3d export onnx ...``."""

import sys

from vision3d.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["export", "onnx", *sys.argv[1:]]))
