# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from vision3d.benchmark.depth_range import folder_samples, markdown_table, measure_ranges
from vision3d.benchmark.plane_sweep import PlaneSweep
from vision3d.cli.main import main
from vision3d.datasets.multiview_pool import write_multiview_pool
from vision3d.datasets.toy_multiview import make_toy_views, write_multiview_tree
from vision3d.errors import InputError
from vision3d.types import MultiViewBatch, MultiViewSample
from vision3d.zoo import create_model


@pytest.fixture(scope="module")
def sample() -> MultiViewSample:
    views = make_toy_views(4, 192, 144)
    depth = views[0].depth
    span = (0.9 * float(depth.min()), 1.1 * float(depth.max()))
    images, cameras = [view.image for view in views], [view.camera for view in views]
    return MultiViewSample(images, cameras, [0, 1, 2, 3], "m", depth, None, span, scene="toy")


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return create_model("dispmvs_tiny", iterations=(1, 1))


def test_the_sweep_finds_the_scene_even_with_random_features(sample: MultiViewSample) -> None:
    """A wider range of as many planes is coarser, and the error grows."""
    rows = measure_ranges("toy", [sample], network(), factors=(1.0, 20.0), planes=(48,))  # type: ignore[arg-type]
    assert [(row.method, row.factor) for row in rows] == [
        ("network", 1.0),
        ("network", 20.0),
        ("sweep, 48 planes", 1.0),
        ("sweep, 48 planes", 20.0),
    ]
    assert rows[2].median < 8
    assert rows[3].median > 1.5 * rows[2].median
    assert rows[2].within > rows[3].within
    table = markdown_table(rows)
    assert f"| toy | sweep, 48 planes | {rows[2].median:.2f} | {rows[3].median:.2f} |" in table
    assert table.splitlines()[1].count("|") == table.splitlines()[2].count("|")


def test_the_sweep_picks_the_best_of_all_planes(sample: MultiViewSample) -> None:
    """Against loops over planes, views and pixels, on a few pixels."""
    model = network()
    batch = MultiViewBatch.collate([sample])
    sweep = PlaneSweep(model, 9)  # type: ignore[arg-type]
    depth = sweep(batch.images, batch.intrinsics, batch.world_to_camera, batch.depth_range).depth[0, 0]
    with torch.no_grad():
        maps = model.fnet(model.normalization(batch.images[0]))[1]  # type: ignore[operator]
    maps = (maps / maps.norm(dim=1, keepdim=True)).double().numpy()
    inverse = np.linspace(1 / float(batch.depth_range[0, 1]), 1 / float(batch.depth_range[0, 0]), 9)
    scale = np.diag([0.25, 0.25, 1.0])
    for row, column in ((10, 20), (18, 30), (25, 12)):
        scores = []
        for value in inverse:
            found = []
            point = np.linalg.inv(scale @ sample.cameras[0].intrinsics) @ [column, row, 1.0] / value
            world = np.linalg.inv(sample.cameras[0].world_to_camera) @ [*point, 1.0]
            for view in (1, 2, 3):
                camera = sample.cameras[view]
                x, y, z = scale @ camera.intrinsics @ (camera.world_to_camera @ world)[:3]
                x, y = x / z, y / z
                if not (0 <= x <= 47 and 0 <= y <= 35):
                    continue
                left, top = min(int(x), 46), min(int(y), 34)
                patch = maps[view][:, top : top + 2, left : left + 2]
                down, across = y - top, x - left
                weights = np.outer([1 - down, down], [1 - across, across])
                found.append(float((patch * weights).sum((1, 2)) @ maps[0][:, row, column]))
            scores.append(np.mean(found) if found else -1.0)
        best = int(np.argmax(scores))
        place = float(best)
        if 0 < best < 8:
            left_score, middle, right = scores[best - 1 : best + 2]
            place += 0.5 * (left_score - right) / (left_score - 2 * middle + right)
        want = 1 / (inverse[0] + place * (inverse[1] - inverse[0]))
        assert float(depth[4 * row + 1, 4 * column + 1]) == pytest.approx(want, rel=1e-3)


def test_bad_input(sample: MultiViewSample) -> None:
    model = network()
    with pytest.raises(InputError, match="at least 1"):
        measure_ranges("toy", [sample], model, factors=(0.5,))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no samples"):
        measure_ranges("toy", [], model)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="3 or more planes"):
        PlaneSweep(model, 2)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="cannot be trained on"):
        measure_ranges("toy", [replace(sample, depth=None)], model)  # type: ignore[arg-type]


def test_folders_and_the_command(sample: MultiViewSample, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    views = write_multiview_tree("mvsnet_folder", tmp_path / "scan")
    found = folder_samples(str(tmp_path / "scan"), None, 3, True)
    assert [len(item.images) for item in found] == [3] * 4
    known = np.isfinite(found[1].depth)  # type: ignore[arg-type]
    assert found[1].depth[known] == pytest.approx(views[1].depth[known])  # type: ignore[index]
    small = folder_samples(str(tmp_path / "scan"), (36, 48), 2, True)
    assert small[0].depth.shape == (36, 48)  # type: ignore[union-attr]
    write_multiview_pool(tmp_path / "pool", [sample])
    save_file(create_model("dispmvs_tiny").state_dict(), tmp_path / "tiny.safetensors")
    arguments = ["benchmark", "depth-range", "--weights", str(tmp_path / "tiny.safetensors"), "--views", "2"]
    given = ["--pool", str(tmp_path / "pool"), "--folder", str(tmp_path / "scan"), "--samples", "1"]
    assert main([*arguments, *given, "--factors", "1", "5", "--planes", "8", "--size", "48x64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| data | method | x1: median %")
    assert [line.split(" | ")[0] for line in lines[2:6]] == ["| pool", "| pool", "| scan", "| scan"]
    assert main([*arguments, *given[:2], "--factors", "1", "--planes", "8", "--size", "48x64", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 2
    assert main(arguments) == 2
    assert "--pool DIR" in capsys.readouterr().err
