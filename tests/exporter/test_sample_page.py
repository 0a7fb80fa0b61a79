"""The controller's own text of samples equals that of prometheus_client."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.schema.catalog import METRICS
from agent.schema.sample import AnySample, Sample, SampleColumn, expanded
from exporter.prometheus.library_format import family_text, sample_families
from exporter.prometheus.sample_page import sample_texts
from tests.exporter.sample_frames import LABEL_TEXT

NUMBERS = st.one_of(
    st.floats(),
    st.integers(-(1 << 70), 1 << 70),
    st.sampled_from(
        (0.0, -0.0, 1e6, 999999.0, 999999.9999999999, 1e15, 1e16, 123456789.0, 1.5e-7, math.inf, -math.inf)
    ),
)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    metric = draw(st.sampled_from(METRICS[::9]))
    keys = [*metric.labels, *draw(st.sampled_from(((), ("node",))))]
    keys = draw(st.permutations(keys)) if draw(st.booleans()) else sorted(keys)
    return metric.name, tuple((key, draw(LABEL_TEXT)) for key in keys), draw(NUMBERS)


@given(st.lists(samples(), max_size=12, unique_by=lambda one: (one[0], frozenset(one[1]))), st.booleans())
def test_text_is_that_of_the_library(found: list[Sample], open_metrics: bool) -> None:
    families = sample_families(found)
    texts = sample_texts(found, open_metrics)
    assert "".join(texts.values()).encode() == family_text(families, open_metrics)
    assert list(texts) == [family.name for family in families]


@st.composite
def columns(draw: st.DrawFn) -> SampleColumn:
    metric = draw(st.sampled_from([one for one in METRICS[::9] if one.labels]))
    *shared, key = draw(st.permutations([*metric.labels, *draw(st.sampled_from(((), ("node",))))]))
    texts: list[str] | list[int] = (
        draw(st.lists(LABEL_TEXT, unique=True, max_size=5))
        if draw(st.booleans())
        else draw(st.lists(st.integers(0, 99), unique=True, max_size=5))
    )
    labels = tuple((name, draw(LABEL_TEXT)) for name in sorted(shared))
    return SampleColumn(metric.name, labels, key, texts, [draw(NUMBERS) for _ in texts])


@given(st.lists(st.one_of(columns(), samples()), max_size=6), st.booleans())
def test_text_of_columns_is_that_of_their_samples(found: list[AnySample], open_metrics: bool) -> None:
    series = [(name, frozenset(labels)) for name, labels, value in expanded(found) if not math.isnan(value)]
    if len(set(series)) < len(series):
        with pytest.raises(ValueError, match="duplicate series"):
            sample_texts(found, open_metrics)
        return
    texts = sample_texts(found, open_metrics)
    families = sample_families(expanded(found))
    assert "".join(texts.values()).encode() == family_text(families, open_metrics)
    assert list(texts) == [family.name for family in families]


RATIO = "gangwatch_rank_slowdown_ratio"


@pytest.mark.parametrize(
    "found",
    [
        [SampleColumn(RATIO, (("gang", "a"),), "rank", [0, 0], [1.0, 2.0])],
        [SampleColumn(RATIO, (("gang", "a"),), "rank", [rank], [1.0]) for rank in (0, 0)],
        [SampleColumn(RATIO, (("gang", "a"),), "rank", [0], [1.0]), (RATIO, (("gang", "a"), ("rank", "0")), 2.0)],
        [
            SampleColumn(RATIO, (("gang", "a"),), "rank", ["0"], [1.0]),
            SampleColumn(RATIO, (("rank", "0"),), "gang", ["a"], [1.0]),
        ],
    ],
)
def test_equal_series_of_columns_are_an_error(found: list[AnySample]) -> None:
    with pytest.raises(ValueError, match="duplicate series"):
        sample_texts(found, False)


@pytest.mark.parametrize(
    "wrong",
    [
        SampleColumn("gangwatch_no_such_metric", (), "rank", [0], [1.0]),
        SampleColumn(RATIO, (), "rank", [0], [1.0]),
        SampleColumn(RATIO, (("gang", "a"),), "strange", [0], [1.0]),
        SampleColumn(RATIO, (("gang", "a"),), "rank", [0, 1], [1.0]),
        SampleColumn(RATIO, (("gang", "a"), ("rank", "0")), "rank", [0], [1.0]),
    ],
)
def test_a_wrong_column_is_an_error(wrong: SampleColumn) -> None:
    with pytest.raises(ValueError):
        sample_texts([wrong], False)


@pytest.mark.parametrize(
    "wrong",
    [
        ("gangwatch_no_such_metric", (), 1.0),
        ("gangwatch_frozen", (("strange", "1"),), 1.0),
        ("gangwatch_slots", (("reason", "free"),), 1.0),
        ("gangwatch_slots", (("use", "used"),), 2.0),
    ],
)
def test_a_wrong_sample_is_an_error(wrong: Sample) -> None:
    right: list[Sample] = [("gangwatch_slots", (("use", "used"),), 1.0), ("gangwatch_slots", (("use", "free"),), 1.0)]
    assert sample_texts(right, False)
    with pytest.raises(ValueError, match=wrong[0]):
        sample_texts([*right, wrong], False)
