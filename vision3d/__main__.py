# SPDX-License-Identifier: Apache-2.0
"""``python -m vision3d`` is the ``vision3d`` command."""

import sys

from vision3d.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
