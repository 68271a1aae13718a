#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""``tools/learning_curve.py RUN_FOLDER OUT_PREFIX``: OUT_PREFIX.csv and OUT_PREFIX.png of a training run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from vision3d.errors import Vision3DError
from vision3d.training.curve import write_learning_curve


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", metavar="RUN_FOLDER", type=Path, help="folder with metrics.csv, or that file")
    parser.add_argument("prefix", metavar="OUT_PREFIX", type=Path, help="models/<family>/training/<name>")
    parser.add_argument("--window", type=int, help="steps that the training loss is averaged over (default: by length)")
    arguments = parser.parse_args()
    try:
        for path in write_learning_curve(arguments.run, arguments.prefix, arguments.window):
            print(path)
    except Vision3DError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
