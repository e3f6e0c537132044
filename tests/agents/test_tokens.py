"""Tokens are counted exactly where a tokenizer is installed, and estimated on the long side elsewhere."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path

import pytest
import tiktoken

from holdfast import InvalidInput
from holdfast.agents.tokens import Estimate, RsBpe, Tiktoken

ROOT = Path(__file__).parent.parent.parent
CHANCE = random.Random(1)

TEXTS = {
    "prose": (ROOT / "README.md").read_text(),
    "code": Path(__file__).read_text(),
    "json": json.dumps([{"path": f"/var/log/app{i}.log", "bytes": i * 99991} for i in range(50)]),
    "log": "2026-11-16T00:29:00.123Z ERROR [worker-3] /dev/sda1 93% full pid=4711 0x7ffe12\n" * 9,
    "hex": "".join(CHANCE.choice("0123456789abcdef") for _ in range(2000)),
    "base64": base64.b64encode(CHANCE.randbytes(1500)).decode(),
    "chinese": "我们的代理需要在崩溃之后继续运行，并且不能重复执行危险的操作。" * 9,
    "japanese": "エージェントはクラッシュした後も続行し、危険な操作を繰り返しません。" * 9,
    "russian": "Агент продолжает работу после сбоя и не повторяет опасных действий. " * 9,
    "hindi": "एजेंट क्रैश के बाद जारी रहता है और खतरनाक काम नहीं दोहराता। " * 9,
    "amharic": "ወኪሉ ከአደጋ በኋላ ይቀጥላል እና አደገኛ ነገር አይደግምም። " * 9,
    "german": "Nach dem Absturz der Donaudampfschifffahrtsgesellschaft läuft er weiter. " * 9,
    "emoji": "🙂🚀🎉👩‍👩‍👧‍👦🇨🇭" * 9,
}


@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base"])
@pytest.mark.parametrize("kind", TEXTS)
def test_the_estimate_is_not_below_what_real_tokenizers_count(kind: str, encoding: str) -> None:
    exact = RsBpe(encoding).count(TEXTS[kind])

    assert exact <= Estimate().count(TEXTS[kind]) <= 5 * exact


def test_prose_and_code_are_estimated_less_than_twice_too_long() -> None:
    for kind in ("prose", "code", "json", "log"):
        assert Estimate().count(TEXTS[kind]) < 2 * RsBpe().count(TEXTS[kind])


def test_tiktoken_counts_exactly_and_takes_special_tokens_for_text() -> None:
    letters = tiktoken.Encoding(
        "letters",
        pat_str=r".",
        mergeable_ranks={bytes([i]): i for i in range(256)},
        special_tokens={"<|endoftext|>": 256},
    )

    assert 5 == Tiktoken(letters).count("hello")
    assert 13 == Tiktoken(letters).count("<|endoftext|>")


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(InvalidInput, match="o200k_base"):
        RsBpe("gpt-99")
    with pytest.raises(InvalidInput, match="tiktoken"):
        Tiktoken("gpt-99")


def test_an_empty_text_and_a_broken_one_are_counted() -> None:
    assert 0 == Estimate().count("")
    assert Estimate().count("\ud800") > 0
