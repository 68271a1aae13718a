# SPDX-License-Identifier: Apache-2.0
"""The public names, what an import costs, and rules that every source file keeps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import vision3d

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "vision3d"
SOURCES = sorted(
    path
    for folder in ("vision3d", "tests", "tools")
    for path in (REPOSITORY / folder).rglob("*.py")
    if "__pycache__" not in path.parts
)
HEAVY = ("lightning", "pytorch_lightning", "matplotlib", "open3d", "albumentations", "trimesh", "skimage", "onnx")


def imported_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after ``statement``."""
    result = subprocess.run(
        [sys.executable, "-c", f"{statement}; import sys; print(' '.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
    )
    return set(result.stdout.split())


def test_the_public_names_are_frozen() -> None:
    assert sorted(vision3d.__all__) == [
        "Camera",
        "PanoramaResult",
        "PointCloud",
        "StereoOutput",
        "StereoResult",
        "StereoRig",
        "StereoSample",
        "Vision3DError",
        "__version__",
        "create_model",
        "fit_radiance_field",
        "list_models",
        "load_card",
        "predict_mvs",
        "predict_panorama",
        "predict_stereo",
    ]


@pytest.mark.parametrize("name", vision3d.__all__)
def test_each_public_name_exists(name: str) -> None:
    assert getattr(vision3d, name) is not None
    assert name in dir(vision3d)


def test_an_unknown_attribute() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = vision3d.no_such_name


def test_import_vision3d_is_light() -> None:
    loaded = imported_by("import vision3d")
    assert not loaded & {"torch", "numpy", "cv2", "scipy", *HEAVY}


def test_networks_load_no_heavy_package() -> None:
    loaded = imported_by("import vision3d; vision3d.create_model('fadnetpp_micro')")
    assert not loaded & set(HEAVY)
    assert not any(name.startswith(("vision3d.training", "vision3d.cli")) for name in loaded)


def test_the_pipeline_loads_no_heavy_package() -> None:
    assert not imported_by("import vision3d; vision3d.predict_stereo") & set(HEAVY)


def test_version_agrees_with_the_project_file() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{vision3d.__version__}"' in text


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_source_files(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    head = lines[1:2] if lines and lines[0].startswith("#!") else lines[:1]
    assert head == ["# SPDX-License-Identifier: Apache-2.0"]
    if PACKAGE in path.parents:
        assert len(lines) <= 500


def test_layers_point_one_way() -> None:
    """ops, geometry, io and models import neither training nor the command."""
    for room in ("ops", "geometry", "io", "models"):
        for path in (PACKAGE / room).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for forbidden in ("vision3d.training", "vision3d.cli", "vision3d.pipelines", "lightning", "matplotlib"):
                assert f"import {forbidden}" not in text, path
                assert f"from {forbidden}" not in text, path
