"""Growth: every subject measures, small, and what was measured is drawn where it belongs."""

from __future__ import annotations

import json
import random
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import machine, native_parts
from bench.figures import Spread
from bench.growth.__main__ import PLOTS, SUBJECTS, draw
from bench.growth.goals import GOALS, growth_of
from bench.growth.plot import Line, Plot, Point, svg, ticks
from bench.growth.site import sizes
from bench.native import NoCompiler, compile_loop
from bench.subject_report import to_json
from bench.subjects import Plan, Results, Sample, Subject
from signalhub import native

FILE_BYTES_MAX = 60_000
# The memory of one cannot be told when there are so few.
TOO_FEW = {"connections-memory", "patterns-memory", "subscriptions-memory"}
SVG = "{http://www.w3.org/2000/svg}"
BOTH = Plot(
    name="both",
    title="Cost & size",
    sizes="things",
    unit="µs",
    lines=(Line("one", "a"), Line("two", "b")),
)


def plan(share: float) -> Plan:
    return Plan(1, share, random.Random(1), lambda text: None)


def points(*values: tuple[float, float]) -> list[Point]:
    return [Point(size, Spread(value, value * 0.9, value * 1.1)) for size, value in values]


def texts(drawing: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(drawing).iter(f"{SVG}text")]


def places(drawing: str) -> list[tuple[float, float]]:
    found = ElementTree.fromstring(drawing).iter(f"{SVG}circle")
    return [(float(each.attrib["cx"]), float(each.attrib["cy"])) for each in found]


def test_a_plot_shows_title_unit_lines_sizes_and_values() -> None:
    drawing = svg(BOTH, {"a": points((1, 2.5), (1_000, 30)), "b": points((1, 4), (1_000, 5e3))})

    shown = texts(drawing)
    assert {"Cost & size", "µs", "things", "one", "two"} <= set(shown)
    assert {"1", "1 000", "2.5", "30", "4", "5 000"} <= set(shown)


def test_larger_sizes_are_to_the_right_by_decades_and_larger_values_above() -> None:
    drawing = svg(BOTH, {"a": points((0, 1), (10, 2), (100, 3), (1_000, 3))})

    (zero, ten, hundred, thousand) = places(drawing)
    steps = [right[0] - left[0] for left, right in pairwise((zero, ten, hundred, thousand))]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.2)
    assert zero[1] > ten[1] > hundred[1] == thousand[1]


def test_a_line_of_one_point_or_of_zeros_can_be_drawn() -> None:
    for drawn in (points((1, 3)), points((10, 0), (100, 0)), points((0, 0))):
        drawing = svg(BOTH, {"a": drawn})
        assert len(places(drawing)) == len(drawn)
        assert "nan" not in drawing


@pytest.mark.parametrize("highest", [0.0012, 0.9, 1, 7, 99, 100, 101, 123_456])
def test_an_axis_ends_above_what_was_measured_after_a_few_round_steps(highest: float) -> None:
    found = ticks(highest)

    assert found[0] == 0
    assert found[-1] >= highest * 0.999
    assert 3 <= len(found) <= 7


def test_sizes_are_powers_of_ten_and_the_largest() -> None:
    assert sizes(plan(1.0), 50_000) == [1, 10, 100, 1_000, 10_000, 50_000]
    assert sizes(plan(0.001), 100_000) == [1, 10, 100]


def test_growth_is_the_largest_size_divided_by_the_smallest() -> None:
    results = Results(seed=1, share=1.0)
    for size, cost in ((100, 6.0), (1, 2.0), (10, 9.0)):
        results.add("topics", Sample(str(size), {"size": size, "cpu_us": cost}))

    assert growth_of("topics", "cpu_us")(results.summaries()) == 3.0
    assert growth_of("topics", "each_kb")(results.summaries()) is None
    assert growth_of("rooms", "cpu_us")(results.summaries()) is None


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_every_subject_measures_what_its_plots_show(subject: Subject, tmp_path: Path) -> None:
    try:
        compile_loop()
    except NoCompiler as missing:
        pytest.skip(str(missing))
    machine.raise_file_limit()
    results = Results(seed=1, share=0.01)

    for sample in subject.measure(plan(0.001)):
        results.add(subject.name, sample)

    stored = tmp_path / "results.json"
    stored.write_text(json.dumps(to_json(results, {}, [subject], GOALS)))
    drawn = draw([stored], tmp_path)
    assert len(results.samples) >= 2
    assert {each.name for each in PLOTS[subject.name]} - set(drawn) <= TOO_FEW
    for name in drawn:
        assert (tmp_path / f"{name}.svg").stat().st_size < FILE_BYTES_MAX


def test_the_page_shows_every_plot_and_no_other() -> None:
    folder = Path(__file__).resolve().parents[3] / "docs" / "operate"
    page = (folder / "growth.md").read_text()
    shown = re.findall(r"!\[[^\]]+\]\(growth/([\w-]+)\.svg\)", page)

    assert sorted(shown) == sorted(plot.name for some in PLOTS.values() for plot in some)
    assert {path.stem for path in (folder / "growth").iterdir()} == set(shown)
    for path in (folder / "growth").iterdir():
        assert path.stat().st_size < FILE_BYTES_MAX
        assert texts(path.read_text())


def test_every_call_of_the_native_part_can_be_measured() -> None:
    if not native.IS_ON:
        pytest.skip("the native part is not installed, or turned off")

    parts = native_parts.parts()
    found = native_parts.measure(parts, 1, 0.0)

    assert len(found) == len(parts)
    assert all(took > 0 for sides in found.values() for side in sides for took in side)
