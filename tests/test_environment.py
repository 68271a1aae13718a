# SPDX-License-Identifier: Apache-2.0
"""The report on the installation: what is broken or missing comes with its mend."""

from __future__ import annotations

import pytest
import torch

from vision3d import environment


def test_this_machine() -> None:
    report = environment.examine()
    assert report["packages"]["torch"].startswith(torch.__version__.split("+")[0])
    assert report["cpu"]["usable_cores"] >= 1
    assert report["cuda"]["available"] == torch.cuda.is_available()
    assert all(report["data"]["folders"].values())


def test_broken_and_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(environment.CORE, "no-such-package", "no_such_package")
    monkeypatch.setitem(environment.EXTRAS, "no_such_extra", ("train", "nothing"))
    report = environment.examine()
    assert report["packages"]["no-such-package"] == "missing"
    (problem,) = [text for text in report["problems"] if "no-such-package" in text]
    assert problem.endswith("pip install no-such-package")
    assert report["extras"]["no_such_extra"]["mend"] == 'pip install "vision3d-zoo[train]"'
