# SPDX-License-Identifier: Apache-2.0
"""Joint optimisation on a scene whose images and cameras are known exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nerf_scene import SIZE, VIEWS, tiny_model, true_poses

from vision3d.errors import ConfigError, InputError
from vision3d.evaluation.pose_metrics import trajectory_errors
from vision3d.geometry.poses import se3_exp
from vision3d.training.nerf.images import ImagePyramid
from vision3d.training.nerf.optimization import StageOptimizer, optimize
from vision3d.training.nerf.stages import LearningRate, Stage, barf_stage, cfnerf_stage, nerfmm_stage

FREE = {
    "init": {"network", "focal", "translation"},
    "local": {"rotation", "translation"},
    "part": {"network", "rotation", "translation"},
    "global": {"network", "focal", "rotation", "translation"},
}


def kind_of(name: str) -> str:
    kinds = {"cameras.f": "focal", "cameras.phi": "rotation", "cameras.t": "translation"}
    return kinds.get(name, "network")


@pytest.mark.parametrize("kind", FREE)
def test_a_stage_changes_its_own_parameters_alone(kind):
    model, images = tiny_model("siren", field_options={"depth": 2, "width": 8})
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    stage = cfnerf_stage(kind, [2], 1, rays_per_step=64)
    assert optimize(model, images, stage).steps == 1
    changed = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    assert {kind_of(name) for name in changed} == FREE[kind]
    if "network" in FREE[kind]:
        assert {name for name in before if kind_of(name) == "network"} <= changed
    for name in ("cameras.phi", "cameras.t"):
        others = [view for view in range(VIEWS) if view != 2]
        assert torch.equal(model.get_parameter(name)[others], before[name][others])
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_the_published_schedule():
    stage = cfnerf_stage("global", range(5), 600)
    assert stage.steps == 3000
    assert stage.network is not None
    assert stage.rotation is not None
    assert stage.network.at(199) == 1e-3
    assert stage.network.at(400) == pytest.approx(1e-3 * 0.9954**2)
    assert stage.rotation.at(2000) == pytest.approx(9e-4)
    relu = cfnerf_stage("init", range(3), 3000, schedule="relu")
    assert relu.network is not None
    assert relu.network.at(40) == pytest.approx(1e-3 * 0.9954**2)
    assert relu.rotation is None
    fall = LearningRate.exponential(1e-3, 1e-5, 100)
    assert fall.at(50) == pytest.approx(1e-4)
    barf = barf_stage(100)
    assert [barf.progress(step) for step in (0, 10, 30, 50, 99)] == pytest.approx([0, 0, 0.5, 1, 1])
    assert nerfmm_stage(100).window is None


def fit(steps: int, **options: object) -> Stage:
    settings: dict[str, object] = {"rays_per_step": 256, "views_per_step": None, "density_noise": 0.0, **options}
    return Stage("fit", steps, network=LearningRate(1e-2), **settings)  # type: ignore[arg-type]


def test_fit_and_localise():
    """The field is learnt from exact cameras; then a displaced camera finds its place against the frozen field."""
    model, images = tiny_model()
    run = StageOptimizer(model, images, fit(120))
    start = run.report().psnr
    run.run()
    assert run.report().psnr > start + 10
    displaced = true_poses()
    displaced[4] = displaced[4] @ se3_exp(torch.tensor([0.03, -0.04, 0.05, 0.06, -0.04, 0.03]))
    model.cameras.set_poses(displaced)
    rate = LearningRate.exponential(5e-3, 5e-4, 120)
    local = Stage("local", 120, (4,), rotation=rate, translation=rate, rays_per_step=256, density_noise=0.0)
    optimize(model, images, local)
    poses = model.cameras.camera_to_world().detach().numpy()
    errors = trajectory_errors(poses, true_poses().numpy(), alignment="none")
    assert errors.rotation[4] < 1.0  # from 4.05 degrees
    assert errors.translation[4] < 0.03  # from 0.078


def all_values(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().double().flatten() for value in model.state_dict().values()])


@pytest.mark.parametrize("views_per_step", [1, None])
def test_equal_seeds_and_a_resumed_run_give_equal_results(views_per_step, tmp_path):
    options = {"levels": 3, "log2_rows": 8, "coarsest": 4, "finest": 16, "width": 8}
    stage = nerfmm_stage(8, rays_per_step=64)
    stage = Stage(**{**stage.__dict__, "views_per_step": views_per_step, "window": (0.0, 0.9)})
    results = []
    for seed in (1, 1, 2):
        model, images = tiny_model(field_options=options)
        optimize(model, images, stage, seed=seed)
        results.append(all_values(model))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    model, images = tiny_model(field_options=options)
    run = StageOptimizer(model, images, stage, seed=1)
    run.run(5)
    torch.save(run.state_dict(), tmp_path / "state.pth")
    run.run()
    assert torch.equal(all_values(model), results[0])
    other, _ = tiny_model(seed=9, field_options=options)
    state = torch.load(tmp_path / "state.pth", weights_only=True)
    report = optimize(other, images, stage, seed=5, state=state)
    assert torch.equal(all_values(other), results[0])
    assert report.steps == 8
    with pytest.raises(ConfigError, match="not of 'local'"):
        StageOptimizer(other, images, cfnerf_stage("local", [1], 5)).load_state_dict(state)


def test_pyramid_level_and_early_end():
    model, images = tiny_model(field_options={"levels": 2, "log2_rows": 8, "coarsest": 4, "finest": 8, "width": 8})
    seen = []
    optimize(model, images, fit(50, pyramid_level=1), callback=lambda now: seen.append(now.step) or now.step == 3)
    assert seen == [1, 2, 3]
    assert (model.cameras.height, model.cameras.width) == (SIZE // 2, SIZE // 2)
    settled = fit(50, patience=2, least_gain=0.9)
    report = optimize(model, images, settled)
    assert report.finished
    assert report.steps < 10


def test_pyramid_against_the_kernel():
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, 3, 9, 12, generator=generator)
    small = ImagePyramid(images).level(1)
    assert small.shape == (2, 3, 5, 6)
    line = torch.tensor([1.0, 4, 6, 4, 1]) / 16
    kernel = torch.outer(line, line).expand(3, 1, 5, 5)
    expected = torch.nn.functional.conv2d(images, kernel, stride=2, groups=3)
    torch.testing.assert_close(small[..., 1:-1, 1:-1], expected)
    arrays = [np.full((4, 6, 3), value, dtype=np.uint8) for value in (0, 255)]
    assert ImagePyramid(arrays).level(0).mean((1, 2, 3)).tolist() == [0, 1]
    for wrong in ([], [arrays[0], arrays[0][:2]], torch.zeros(2, 4, 5, 5)):
        with pytest.raises(InputError):
            ImagePyramid(wrong)


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 0},
        {"views": ()},
        {"views": (1, 1)},
        {"network": None},
        {"window": (0.5, 0.5)},
        {"pyramid_level": -1},
        {"precision": "float16"},
    ],
)
def test_wrong_stages(options):
    with pytest.raises(ConfigError, match="stage 'wrong'"):
        Stage(**{"name": "wrong", "steps": 1, "network": LearningRate(1e-3), **options})


def test_frames_that_do_not_exist():
    model, images = tiny_model()
    with pytest.raises(InputError, match="8 images and 8 cameras"):
        StageOptimizer(model, images, fit(1, views=(8,)))
    with pytest.raises(ConfigError, match="choose init, local"):
        cfnerf_stage("last", [0], 1)  # type: ignore[arg-type]
