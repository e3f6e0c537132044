"""JSON Patch behaves as RFC 6902 says: its appendix, its errors, and what holds for every patch."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import jsonpatch, values
from holdfast.core.jsonpatch import apply
from holdfast.errors import InvalidPatch, NotStorable

# RFC 6902, appendix A. (A.13 is about an operation with two members "op", which no parsed JSON has.)
APPENDIX: dict[str, tuple[Any, list[Any], Any]] = {
    "A.1 adding an object member": (
        {"foo": "bar"},
        [{"op": "add", "path": "/baz", "value": "qux"}],
        {"baz": "qux", "foo": "bar"},
    ),
    "A.2 adding an array element": (
        {"foo": ["bar", "baz"]},
        [{"op": "add", "path": "/foo/1", "value": "qux"}],
        {"foo": ["bar", "qux", "baz"]},
    ),
    "A.3 removing an object member": (
        {"baz": "qux", "foo": "bar"},
        [{"op": "remove", "path": "/baz"}],
        {"foo": "bar"},
    ),
    "A.4 removing an array element": (
        {"foo": ["bar", "qux", "baz"]},
        [{"op": "remove", "path": "/foo/1"}],
        {"foo": ["bar", "baz"]},
    ),
    "A.5 replacing a value": (
        {"baz": "qux", "foo": "bar"},
        [{"op": "replace", "path": "/baz", "value": "boo"}],
        {"baz": "boo", "foo": "bar"},
    ),
    "A.6 moving a value": (
        {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
        [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
        {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
    ),
    "A.7 moving an array element": (
        {"foo": ["all", "grass", "cows", "eat"]},
        [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
        {"foo": ["all", "cows", "eat", "grass"]},
    ),
    "A.8 testing a value: success": (
        {"baz": "qux", "foo": ["a", 2, "c"]},
        [
            {"op": "test", "path": "/baz", "value": "qux"},
            {"op": "test", "path": "/foo/1", "value": 2},
        ],
        {"baz": "qux", "foo": ["a", 2, "c"]},
    ),
    "A.10 adding a nested member object": (
        {"foo": "bar"},
        [{"op": "add", "path": "/child", "value": {"grandchild": {}}}],
        {"foo": "bar", "child": {"grandchild": {}}},
    ),
    "A.11 ignoring unrecognized elements": (
        {"foo": "bar"},
        [{"op": "add", "path": "/baz", "value": "qux", "xyz": 123}],
        {"foo": "bar", "baz": "qux"},
    ),
    "A.14 ~ escape ordering": (
        {"/": 9, "~1": 10},
        [{"op": "test", "path": "/~01", "value": 10}],
        {"/": 9, "~1": 10},
    ),
    "A.16 adding an array value": (
        {"foo": ["bar"]},
        [{"op": "add", "path": "/foo/-", "value": ["abc", "def"]}],
        {"foo": ["bar", ["abc", "def"]]},
    ),
    "the root can be replaced": ({"a": 1}, [{"op": "replace", "path": "", "value": [1]}], [1]),
    "the root can be added": ({"a": 1}, [{"op": "add", "path": "", "value": None}], None),
    "adding replaces a member": ({"a": 1}, [{"op": "add", "path": "/a", "value": 2}], {"a": 2}),
    "adding at the end by index": ([1], [{"op": "add", "path": "/1", "value": 2}], [1, 2]),
    "copying": ({"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1], "b": [1]}),
    "moving onto itself": ({"a": 1}, [{"op": "move", "from": "/a", "path": "/a"}], {"a": 1}),
    "an empty name": ({"": 1}, [{"op": "replace", "path": "/", "value": 2}], {"": 2}),
    "an escaped slash": ({"a/b": 1}, [{"op": "remove", "path": "/a~1b"}], {}),
    "numbers are equal by value": ([1], [{"op": "test", "path": "/0", "value": 1.0}], [1]),
    "an object with a number as name": (
        {"0": 1},
        [{"op": "replace", "path": "/0", "value": 2}],
        {"0": 2},
    ),
}

REFUSED: dict[str, tuple[Any, Any, int, str]] = {
    "A.9 testing a value: error": (
        {"baz": "qux"},
        [{"op": "test", "path": "/baz", "value": "bar"}],
        0,
        'the value there is "qux", not "bar"',
    ),
    "A.12 adding to a nonexistent target": (
        {"foo": "bar"},
        [{"op": "add", "path": "/baz/bat", "value": "qux"}],
        0,
        "no /baz",
    ),
    "A.15 comparing strings and numbers": (
        {"/": 9, "~1": 10},
        [{"op": "test", "path": "/~01", "value": "10"}],
        0,
        'the value there is 10, not "10"',
    ),
    "true is not one": ([True], [{"op": "test", "path": "/0", "value": 1}], 0, "not 1"),
    "nested true is not one": (
        [{"a": [True]}],
        [{"op": "test", "path": "/0", "value": {"a": [1]}}],
        0,
        "the value there is",
    ),
    "null is not absent": ({}, [{"op": "test", "path": "/a", "value": None}], 0, "no /a"),
    "no list": ({}, {"op": "add"}, 0, "a JSON Patch is a list"),
    "no object": ({}, ["add"], 0, "an operation is an object"),
    "no op": ({}, [{"path": "/a", "value": 1}], 0, "op must be one of"),
    "an unknown op": ({}, [{"op": "increment", "path": "/a", "value": 1}], 0, "op must be one of"),
    "no path": ({}, [{"op": "add", "value": 1}], 0, "'path'"),
    "no value": ({}, [{"op": "add", "path": "/a"}], 0, "'value'"),
    "no from": ({}, [{"op": "move", "path": "/a"}], 0, "'from'"),
    "a path that is not a pointer": ({}, [{"op": "remove", "path": "a"}], 0, "not a JSON Pointer"),
    "a bad escape": ({}, [{"op": "remove", "path": "/a~2"}], 0, "not a JSON Pointer"),
    "a trailing escape": ({}, [{"op": "remove", "path": "/a~"}], 0, "not a JSON Pointer"),
    "removing what is not there": ({}, [{"op": "remove", "path": "/a"}], 0, "no /a"),
    "replacing what is not there": (
        {},
        [{"op": "replace", "path": "/a", "value": 1}],
        0,
        "no /a",
    ),
    "removing the root": ({}, [{"op": "remove", "path": ""}], 0, "replace it"),
    "beyond the end": ([1], [{"op": "add", "path": "/2", "value": 0}], 0, "beyond the array"),
    "replacing at the end": ([1], [{"op": "replace", "path": "/1", "value": 0}], 0, "beyond"),
    "- without adding": ([1], [{"op": "remove", "path": "/-"}], 0, "only for adding"),
    "a leading zero": ([1, 2], [{"op": "remove", "path": "/01"}], 0, "not an array index"),
    "a sign": ([1, 2], [{"op": "remove", "path": "/+1"}], 0, "not an array index"),
    "a foreign digit": ([1, 2], [{"op": "remove", "path": "/١"}], 0, "not an array index"),
    "a huge index": ([1], [{"op": "remove", "path": "/" + "9" * 5000}], 0, "beyond the array"),
    "into a text": (
        {"a": "b"},
        [{"op": "add", "path": "/a/b", "value": 1}],
        0,
        "not an object or arr",
    ),
    "through a text": (
        {"a": "b"},
        [{"op": "remove", "path": "/a/b/c"}],
        0,
        "not an object or array",
    ),
    "moving into its own child": (
        {"a": {"b": {}}},
        [{"op": "move", "from": "/a", "path": "/a/b"}],
        0,
        "into itself",
    ),
    "moving the root": ({"a": 1}, [{"op": "move", "from": "", "path": "/a"}], 0, "into itself"),
    "copying what is not there": ({}, [{"op": "copy", "from": "/x", "path": "/a"}], 0, "no /x"),
    "the second fails": (
        {"a": 1},
        [
            {"op": "replace", "path": "/a", "value": 2},
            {"op": "test", "path": "/a", "value": 3},
        ],
        1,
        "the value there is 2, not 3",
    ),
}


@pytest.mark.parametrize("case", APPENDIX.values(), ids=APPENDIX.keys())
def test_a_patch_gives_the_result_of_the_rfc(case: tuple[Any, list[Any], Any]) -> None:
    """The cases of appendix A, and those that the text describes."""
    document, patch, expected = case

    assert expected == apply(document, patch)


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_a_patch_that_cannot_be_applied_is_refused_whole(case: tuple[Any, Any, int, str]) -> None:
    """The error says which operation it was and why, and the document is as it was."""
    document, patch, number, reason = case
    before = copy.deepcopy(document)

    with pytest.raises(InvalidPatch) as refused:
        apply(document, patch)

    assert number == refused.value.number
    assert reason in str(refused.value)
    assert before == document


def test_the_error_names_operation_and_path() -> None:
    """So that the sender of ten operations knows which one to look at."""
    with pytest.raises(InvalidPatch) as refused:
        apply({"a": 1}, [{"op": "remove", "path": "/a"}, {"op": "remove", "path": "/b~1c"}])

    assert (1, "remove", "/b~1c") == (refused.value.number, refused.value.op, refused.value.path)
    assert "operation 2 (remove '/b~1c')" in str(refused.value)


def test_a_value_that_json_cannot_hold_is_refused() -> None:
    """A patch from Python may hold anything."""
    with pytest.raises(NotStorable):
        apply({}, [{"op": "add", "path": "/a", "value": object()}])


NAMES = st.sampled_from(["a", "b", "", "/", "~", "0", "-"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["x", "y"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
POINTERS = st.lists(NAMES | st.sampled_from(["1", "2"]), max_size=3).map(jsonpatch.pointer)
PATCHES = st.lists(
    st.fixed_dictionaries(
        {
            "op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]),
            "path": POINTERS,
            "from": POINTERS,
            "value": JSON,
        }
    ),
    max_size=5,
)


@given(JSON, PATCHES)
def test_any_patch_is_applied_whole_or_refused_and_never_changes_its_document(
    document: Any, patch: list[Any]
) -> None:
    """No other exception, no half-applied patch, no alias of what was given."""
    before, asked = copy.deepcopy(document), copy.deepcopy(patch)
    try:
        after = apply(document, patch)
    except InvalidPatch as refused:
        done = apply(document, patch[: refused.number])  # those before it could be applied
        with pytest.raises(InvalidPatch):
            apply(done, patch[refused.number : refused.number + 1])
    else:
        step_by_step = document
        for op in patch:
            step_by_step = apply(step_by_step, [op])
        assert step_by_step == after
        assert after == values.decode(values.encode(after))

    assert (before, asked) == (document, patch)


@given(st.lists(st.text(max_size=4), max_size=4))
def test_a_pointer_is_read_back_as_it_was_written(tokens: list[str]) -> None:
    """Whatever the names are."""
    assert tuple(tokens) == jsonpatch.tokens_of(jsonpatch.pointer(tokens))
