# SPDX-License-Identifier: Apache-2.0
"""The benchmark of communication hooks: bytes by the formulas, and on the interfaces of rate-limited namespaces."""

from __future__ import annotations

import json

import pytest

from vision3d.benchmark.communication import Plan, measure_communication
from vision3d.benchmark.slow_link import SlowLinks
from vision3d.cli.benchmark import main
from vision3d.errors import InputError

WIDTH = 100
ELEMENTS = 4 * (WIDTH * WIDTH + WIDTH)


def test_emulated_links(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--emulate", "--processes", "2", "--width", str(WIDTH), "--steps", "1", "--megabits", "10", "--json"]
    assert main(["comm", "--hooks", "none", "gtopk", *options]) == 0
    content = json.loads(capsys.readouterr().out)
    dense, sparse = content["rows"]
    assert dense["sent_bytes"] == 4 * ELEMENTS  # 8 d (P-1)/P
    assert sparse["sent_bytes"] == 4 + 8 * (4 * WIDTH * WIDTH // 100) + 4 * 4 * WIDTH  # weights sparse, biases dense
    assert dense["seconds"] > 8 * dense["sent_bytes"] / 10e6
    assert dense["interface_bytes"] is None
    assert "emulated" in content["link"]


@pytest.mark.slow
@pytest.mark.skipif(SlowLinks.missing() is not None, reason=f"no rate-limited links here: {SlowLinks.missing()}")
def test_interfaces_send_what_the_counters_say() -> None:
    try:
        rows, link = measure_communication(Plan(hooks=("none", "topk"), processes=2, width=300, steps=3, megabits=20))
    except InputError as error:
        if "this machine has no slow links" in str(error):
            pytest.skip(str(error))
        raise
    assert "20 Mbit/s rate-limited interfaces" in link
    for row in rows:
        assert row.interface_bytes is not None
        assert 1.0 < row.interface_bytes / row.sent_bytes < 1.15
    assert rows[0].seconds > 0.9 * 8 * rows[0].sent_bytes / 20e6  # the rate holds


@pytest.mark.parametrize(
    "plan", [Plan(processes=1), Plan(density=0), Plan(hooks=("x",)), Plan(hooks=()), Plan(megabits=0)]
)
def test_illegal_plans(plan: Plan) -> None:
    with pytest.raises(InputError):
        measure_communication(plan)
