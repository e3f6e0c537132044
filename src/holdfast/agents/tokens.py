"""Exact token counting, with a tokenizer that is installed: tiktoken or rs-bpe.

Neither is needed: without one, `holdfast.core.tokens.Estimate` counts. Providers other than OpenAI do
not publish their tokenizers; for them an estimate with a margin is the best available.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.tokens import Estimate, TokenCounter
from holdfast.errors import InvalidInput

__all__ = ["Estimate", "RsBpe", "Tiktoken", "TokenCounter"]


class Tiktoken:
    """Counts with tiktoken: `Tiktoken("o200k_base")`, or an `Encoding` that you made.

    tiktoken fetches its tables from the network when a name is first used, unless TIKTOKEN_CACHE_DIR
    holds them.
    """

    def __init__(self, encoding: Any = "o200k_base") -> None:
        if isinstance(encoding, str):
            try:
                import tiktoken
            except ModuleNotFoundError as missing:
                raise InvalidInput(
                    f"Tiktoken needs `pip install 'holdfast[tiktoken]'` ({missing})"
                ) from None
            try:
                encoding = tiktoken.get_encoding(encoding)
            except ValueError as unknown:
                raise InvalidInput(f"tiktoken: {unknown}") from None
        self._encoding = encoding

    def count(self, text: str) -> int:
        # A text that spells a special token is still text: it must not make the count fail.
        return len(self._encoding.encode(text, disallowed_special=()))


class RsBpe:
    """Counts with rs-bpe, whose tables come with it: no network. "o200k_base" or "cl100k_base"."""

    def __init__(self, encoding: str = "o200k_base") -> None:
        try:
            from rs_bpe.bpe import openai
        except ModuleNotFoundError as missing:
            raise InvalidInput(
                f"RsBpe needs `pip install 'holdfast[rs-bpe]'` ({missing})"
            ) from None
        make = getattr(openai, encoding, None)
        if encoding not in ("o200k_base", "cl100k_base") or make is None:
            raise InvalidInput(f"rs-bpe supports o200k_base and cl100k_base, not {encoding!r}")
        self._encoding = make()

    def count(self, text: str) -> int:
        return int(self._encoding.count(text))
