# SPDX-License-Identifier: Apache-2.0
"""The command: dispatch, errors, help, and the small sub-commands."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import vision3d
from vision3d.cli import main as command
from vision3d.cli.main import COMMANDS, build_parser, main
from vision3d.cli.output import to_json
from vision3d.errors import InputError

REPOSITORY = Path(__file__).resolve().parents[2]


def run_process(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command_line = [sys.executable, "-m", "vision3d", *arguments]
    return subprocess.run(command_line, capture_output=True, text=True, env=environment, check=False, **options)  # type: ignore[call-overload, no-any-return]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[argparse.Namespace], int | None]], None]:
    """Install a sub-command ``probe`` that runs the given function."""

    def add(run: Callable[[argparse.Namespace], int | None]) -> None:
        class Module:
            @staticmethod
            def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
                parser = subparsers.add_parser("probe")
                parser.add_argument("--number", type=int)
                parser.set_defaults(run=run)

        monkeypatch.setitem(sys.modules, "probe_module", Module)  # type: ignore[arg-type]
        monkeypatch.setitem(COMMANDS, "probe", ("probe_module", "a probe"))

    return add


def test_help_is_fast_and_imports_no_torch() -> None:
    code = (
        "import sys; from vision3d.cli.main import main; main(['--help']); "
        "bad = {'torch', 'numpy', 'cv2', 'rich'} & set(sys.modules); sys.exit(f'imported {bad}' if bad else 0)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode == 0, result.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0
    for name, (_, summary) in COMMANDS.items():
        assert name in result.stdout
        assert summary.split()[0] in result.stdout


def test_python_m_vision3d_and_version() -> None:
    result = run_process("--version")
    assert result.returncode == 0
    assert result.stdout == f"vision3d {vision3d.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert f"usage: vision3d {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_each_module_adds_its_own_command(name: str) -> None:
    parser = build_parser(name)
    module = importlib.import_module(COMMANDS[name][0])
    assert callable(module.add_parser)
    choices = next(action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    assert list(choices or ()) == [name]


def test_each_command_is_in_the_reference() -> None:
    text = (REPOSITORY / "docs" / "cli.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## `vision3d (\w+)", text, flags=re.MULTILINE)
    assert sorted(headings) == sorted(COMMANDS)


def test_no_command_prints_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: vision3d" in capsys.readouterr().err


def test_an_unknown_command_lists_near_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predcit"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "vision3d: error: unknown command 'predcit': did you mean predict?\n"


def test_a_wrong_option_is_one_line(install: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    install(lambda arguments: 0)
    assert main(["probe", "--number", "x"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["probe", "--num", "1"]) == 2
    assert capsys.readouterr().err == ("vision3d: error: unrecognized arguments: --num 1 (see vision3d --help)\n")


def test_user_errors_are_one_line(install: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    def fail(arguments: argparse.Namespace) -> int:
        raise InputError("first line\nsecond line")

    install(fail)
    assert main(["probe"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "vision3d: error: first line second line\n"


@pytest.mark.parametrize("arguments", [["--traceback", "probe"], ["probe", "--traceback"]])
def test_traceback_on_request(arguments: list[str], install: Callable[..., None]) -> None:
    def fail(arguments: argparse.Namespace) -> int:
        raise InputError("the message")

    install(fail)
    with pytest.raises(InputError, match="the message"):
        main(arguments)


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt, 130), (BrokenPipeError, 141)])
def test_exit_codes(
    raised: type[BaseException],
    code: int,
    install: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(arguments: argparse.Namespace) -> int:
        raise raised

    monkeypatch.setattr(command, "_silence_stdout", lambda: None)
    install(fail)
    assert main(["probe"]) == code
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4 bytes."),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
    ],
)
def test_lack_of_memory_is_one_line(
    error: Exception, install: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: argparse.Namespace) -> int:
        raise error

    install(fail)
    assert main(["probe"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("vision3d: error: ")
    assert "--scale" in line
    with pytest.raises(type(error)):
        main(["probe", "--traceback"])


def test_other_faults_keep_their_traceback(install: Callable[..., None]) -> None:
    def fail(arguments: argparse.Namespace) -> int:
        raise RuntimeError("a fault of the program")

    install(fail)
    with pytest.raises(RuntimeError):
        main(["probe"])


def test_the_code_of_the_command_is_returned(install: Callable[..., None]) -> None:
    install(lambda arguments: arguments.number)
    assert main(["probe"]) == 0
    assert main(["probe", "--number", "7"]) == 7


def test_a_closed_pipe_is_silent() -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(0.5); from vision3d.cli.main import main; main(['--help'])"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert b"Traceback" not in process.stderr.read()
    process.wait()


def test_json_is_strict() -> None:
    import numpy as np

    value = {"nan": float("nan"), "path": Path("a"), "array": np.array([1.5, np.inf]), "tuple": (1, np.float32(2))}
    assert json.loads(to_json(value)) == {"nan": None, "path": "a", "array": [1.5, None], "tuple": [1, 2.0]}


def test_models_table_and_card(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    table = capsys.readouterr().out
    for name in vision3d.list_models():
        assert name in table
        assert main(["models", name]) == 0
        card = capsys.readouterr().out
        assert "licence" in card
        assert f"{vision3d.load_card(name).parameters:,}" in card


def test_models_json_and_filters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json", "--task", "stereo"]) == 0
    listed = json.loads(capsys.readouterr().out)["models"]
    assert [card["name"] for card in listed] == vision3d.list_models(task="stereo")
    assert main(["models", "--json", "--pretrained"]) == 0
    listed = json.loads(capsys.readouterr().out)["models"]
    assert [card["name"] for card in listed] == vision3d.list_models(pretrained=True)
    assert main(["models", "fadnetpp_slight", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "fadnetpp_slight"


def test_models_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "fadnetpp_slite"]) == 2
    assert "did you mean fadnetpp_slight" in capsys.readouterr().err
    assert main(["models", "--task", "stero"]) == 2
    assert "did you mean stereo" in capsys.readouterr().err


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert code == (1 if report["problems"] else 0)
    assert report["vision3d"] == vision3d.__version__
    assert report["packages"]["numpy"] != "missing"
    assert set(report["data"]["weights"].values()) <= {"ok"}
    assert report["data"]["networks"] == len(vision3d.list_models())
    for entry in report["extras"].values():
        assert entry["version"] or entry["mend"]
    assert main(["doctor"]) == code
    assert "torch" in capsys.readouterr().out


def test_data_synthesize(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    from vision3d.datasets.sceneflow import SceneFlowStereo
    from vision3d.datasets.synthetic import make_scene

    out = tmp_path / "out"
    assert main(["data", "synthesize", str(out), "--scenes", "3", "--seed", "5", "--size", "48x96"]) == 0
    assert "3 scenes" in capsys.readouterr().out
    data = SceneFlowStereo(out, split="train", parts=("flyingthings3d",))
    assert len(data) == 3
    expected = make_scene(5, 48, 96)
    assert expected.disparity is not None
    assert data[0].disparity is not None
    np.testing.assert_allclose(data[0].disparity, expected.disparity, rtol=1e-6)
    np.testing.assert_array_equal(data[0].left, expected.left)


def test_data_synthesize_pool(tmp_path: Path) -> None:
    import numpy as np

    from vision3d.datasets.cache import PoolStereo
    from vision3d.datasets.synthetic import SceneOptions, make_scene

    options = ["--scenes", "5", "--seed", "7", "--size", "32x64", "--rectification-error", "2", "--workers", "2"]
    options += ["--set", "photometric=0", "--set", "objects=[2,3]"]
    assert main(["data", "synthesize", str(tmp_path / "pool"), "--layout", "pool", *options]) == 0
    data = PoolStereo(tmp_path / "pool")
    assert len(data) == 5
    for index in range(5):
        expected = make_scene(7 + index, 32, 64, SceneOptions(rectification_error=2.0, photometric=0, objects=(2, 3)))
        np.testing.assert_array_equal(data[index].right, expected.right)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--size", "48"],
        ["--size", "4x96"],
        ["--scenes", "0"],
        ["--set", "photometric"],
        ["--set", "fotometric=1"],
        ["--set", "photometric=many"],
        ["--set", "objects=3"],
        ["--set", "mirror=0.5"],
    ],
)
def test_data_synthesize_refuses(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "synthesize", str(tmp_path), *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_evaluate_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["evaluate", "--dataset", "folder", "--root", str(tmp_path / "nothing"), "--model"]
    assert main([*arguments, "fadnetpp_micro"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("vision3d: error: ")
    assert error.count("\n") == 1
