"""CEL expressions of device selectors. Expected values follow Kubernetes' documentation of `device` and its CEL."""

from __future__ import annotations

import msgspec
import pytest

from scheduler_feedback.backends.kubernetes.devices import selectors
from scheduler_feedback.backends.kubernetes.devices.device_objects import Device
from scheduler_feedback.backends.kubernetes.devices.selectors import SelectorError, attribute_of, matches, semver

DRIVER = "gpu.example.com"
BODY = {
    "name": "gpu-0",
    "attributes": {
        "type": {"string": "gpu"},
        "index": {"int": 3},
        "ecc": {"bool": False},
        "driverVersion": {"version": "570.1.0-rc.2"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
    },
    "capacity": {"memory": {"value": "80Gi"}, "other.example.com/lanes": {"value": "16"}},
}


def device() -> Device:
    return msgspec.convert(BODY, Device)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('device.driver == "gpu.example.com"', True),
        ('device.attributes["gpu.example.com"].type == "gpu"', True),
        ('device.attributes["gpu.example.com"].type in ["mig", "vfio"]', False),
        ('device.attributes["gpu.example.com"].index > 2 && !device.attributes["gpu.example.com"].ecc', True),
        ('device.attributes["resource.kubernetes.io"].pcieRoot.startsWith("pci0000")', True),
        ('device.attributes["gpu.example.com"].type.matches("^g[a-z]u$")', True),
        ('device.capacity["gpu.example.com"].memory.compareTo(quantity("80Gi")) == 0', True),
        ('device.capacity["gpu.example.com"].memory.isGreaterThan(quantity("100G"))', False),
        ('device.capacity["gpu.example.com"].memory.isLessThan(quantity("100G"))', True),
        ('device.capacity["other.example.com"].lanes.compareTo(quantity("16")) >= 0', True),
        ('device.attributes["gpu.example.com"].driverVersion.compareTo(semver("570.1.0")) < 0', True),
        ('device.attributes["gpu.example.com"].driverVersion.isGreaterThan(semver("570.1.0-rc.1"))', True),
        ('device.attributes["gpu.example.com"].?missing.orValue("none") == "none"', True),
        ('cel.bind(own, device.attributes["gpu.example.com"], own.type == "gpu" && own.index == 3)', True),
        ('device.attributes["gpu.example.com"].exists(name, name == "ecc")', True),
        ('"nvlink" in device.attributes["gpu.example.com"]', False),
        ('"index" in device.attributes["gpu.example.com"]', True),
        ("isQuantity('80Gi') && !isQuantity('80 GB') && isSemver('1.2.3') && !isSemver('1.2')", True),
        ("!device.allowMultipleAllocations", True),
        # A domain without attributes is an empty map; a missing attribute is an error, which counts as no match.
        ('"x" in device.attributes["absent.example.com"]', False),
        ('!("x" in device.attributes["absent.example.com"])', True),
        ('"absent.example.com" in device.attributes', False),
        ('device.attributes["absent.example.com"].x == 1', False),
        ('!(device.attributes["gpu.example.com"].missing == "a")', False),
        ('device.attributes["gpu.example.com"].type > 5', False),
    ],
)
def test_an_expression_has_the_value_that_kubernetes_documents(expression: str, *, expected: bool) -> None:
    assert matches(expression, DRIVER, device()) is expected


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ('device.attributes["a"].b.contains(["c"])', "no matching overload for 'contains'"),
        ('device.attributes["a"].b.indexes()', "undeclared reference to 'indexes'"),
        ("url('http://a').getHost() == 'a'", "undeclared reference"),
        ("device.driver ==", "Syntax error"),
        ("'text'", "its result is STRING, not bool"),
    ],
)
def test_an_unsupported_expression_is_an_error(expression: str, words: str) -> None:
    with pytest.raises(SelectorError, match=words):
        matches(expression, DRIVER, device())


def test_an_expression_with_too_many_iterations_ends_and_does_not_match() -> None:
    ten = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"
    nested = 'a + b + c + d + e + f + device.attributes["gpu.example.com"].index >= 0'
    for name in "fedcba":
        nested = f"{ten}.all({name}, {nested})"
    assert matches(nested, DRIVER, device()) is False


def test_devices_with_equal_relevant_attributes_share_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 GPUs differ in their UUIDs, which most expressions do not read."""
    evaluated: list[str] = []
    compiled = selectors.compiled

    class Counting:
        def __init__(self, expression: str) -> None:
            self.expression = expression

        def eval(self, data: object) -> object:
            evaluated.append(self.expression)
            return compiled(self.expression).eval(data=data)

    monkeypatch.setattr(selectors, "compiled", Counting)
    simple = 'device.attributes["gpu.example.com"].productName == "X1"'
    reading_all = 'device.attributes["gpu.example.com"].exists(one, one == "uuid-7")'
    for number in range(9):
        body = {"name": f"d{number}", "attributes": {"productName": {"string": "X1"}, f"uuid-{number}": {"int": 1}}}
        one = msgspec.convert(body, Device)
        assert matches(simple, DRIVER, one)
        assert matches(reading_all, DRIVER, one) is (number == 7)
    assert evaluated.count(simple) == 1
    assert evaluated.count(reading_all) == 9


def test_devices_that_differ_in_a_relevant_value_have_results_of_their_own() -> None:
    """The values are of all types, as is the capacity."""
    for expression, bodies in (
        ('device.attributes["gpu.example.com"].a == 1', ({"int": 1}, {"int": 2})),
        ('device.attributes["gpu.example.com"].a', ({"bool": True}, {"bool": False})),
        ('device.attributes["gpu.example.com"].a == "x"', ({"string": "x"}, {"string": "y"})),
        (
            'device.attributes["gpu.example.com"].a.isLessThan(semver("2.0.0"))',
            ({"version": "1.9.9"}, {"version": "2.0.0"}),
        ),
    ):
        devices = [msgspec.convert({"name": "d", "attributes": {"a": one}}, Device) for one in bodies]
        found = [matches(expression, DRIVER, one) for one in devices]
        assert found == [True, False], expression
    sized = [msgspec.convert({"name": "d", "capacity": {"m": {"value": one}}}, Device) for one in ("2Gi", "1Gi")]
    large = 'device.capacity["gpu.example.com"].m.isGreaterThan(quantity("1Gi"))'
    assert [matches(large, DRIVER, one) for one in sized] == [True, False]


def test_versions_are_ordered_as_semver_org_does() -> None:
    ordered = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11"]
    ordered += ["1.0.0-rc.1", "1.0.0", "2.0.0", "2.1.0", "2.1.1"]  # https://semver.org/#spec-item-11
    mixed = ordered[::-1]
    assert sorted(mixed, key=semver) == ordered
    assert semver("1.0.0+a") == semver("1.0.0+b"), "build metadata does not count"


def test_an_attribute_is_found_by_its_full_name() -> None:
    assert attribute_of(DRIVER, device(), "gpu.example.com/index") == ("number", 3)
    assert attribute_of(DRIVER, device(), "resource.kubernetes.io/pcieRoot") == ("text", "pci0000:00")
    assert attribute_of(DRIVER, device(), "gpu.example.com/ecc") == ("flag", False)
    assert attribute_of("other.example.com", device(), "gpu.example.com/index") is None
