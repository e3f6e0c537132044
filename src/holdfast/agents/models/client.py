"""What the models behind an official client share: connecting, asking, reading an answer in pieces.

Both official clients are made by the same generator and are used alike. What differs is in the
modules next to this one: the request, and what an answer looks like.
"""

from __future__ import annotations

import importlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from holdfast.agents.models.base import Price, Prompt, Reply
from holdfast.agents.models.by_loop import ClientsByLoop
from holdfast.agents.models.failures import pass_text, translated
from holdfast.errors import InvalidInput


class ReplyStream(Protocol):
    """An answer that comes in pieces."""

    def feed(self, piece: Any) -> str:
        """Add a chunk; returns the text in it."""

    def reply(self) -> Reply:
        """The complete reply, or Malformed if it was interrupted."""


class ClientModel(ABC):
    """A model behind a provider's official client, whose own retries are off.

    `price` gives a cost to its tokens, for `Budget(max_cost_usd=…)`; `options` are sent with every
    request, for example `{"temperature": 0}`; `client` is a client of your own.
    """

    provider: ClassVar[str]
    key_variable: ClassVar[str]
    client_class: ClassVar[str]

    def __init__(
        self,
        model: str,
        *,
        price: Price | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 120.0,
        max_output_tokens: int | None = None,
        options: Mapping[str, Any] | None = None,
        client: Any = None,
    ) -> None:
        self.model, self.price = model, price
        self.max_output_tokens = max_output_tokens
        self.options = dict(options or {})
        self._address, self._api_key, self._timeout = base_url, api_key, timeout
        self._own = None if client is None else client.with_options(max_retries=0)
        self._made: Any = None
        self._making = threading.Lock()
        self._clients = ClientsByLoop()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r})"

    def _connected(self) -> Any:
        """The client, made when it is first needed: importing one takes seconds."""
        if self._own is not None:
            return self._own
        with self._making:  # tools may ask from several threads
            if self._made is None:
                self._made = self._client()
            return self._made

    def close(self) -> None:
        """Close the connections that it has made. A `client` of yours is closed by you."""
        made, self._made = self._made, None
        if made is not None:
            made.close()

    def _client(self) -> Any:
        name = self.provider.lower()
        try:
            sdk = importlib.import_module(name)
        except ModuleNotFoundError as missing:
            raise InvalidInput(
                f"{type(self).__name__} needs `pip install 'holdfast[{name}]'` ({missing})"
            ) from None
        return getattr(sdk, self.client_class)(
            base_url=self._address, api_key=self._api_key, timeout=self._timeout, max_retries=0
        )

    @abstractmethod
    def _send(self, client: Any, prompt: Prompt) -> Any:
        """Send the request: an answer, a stream, or something to await for either."""

    @abstractmethod
    def _read_reply(self, answered: Any) -> Reply:
        """The complete answer as a Reply."""

    @abstractmethod
    def _pieces(self) -> ReplyStream:
        """What gathers an answer that comes in pieces."""

    def answer(self, prompt: Prompt) -> Reply:
        """Ask, and read the answer, piece by piece if `on_text` is given."""
        with translated(self.provider, self.key_variable, self._api_key):
            answered = self._send(self._connected(), prompt)
            if prompt.on_text is None:
                return self._read_reply(answered)
            pieces = self._pieces()
            with answered:
                for piece in answered:
                    if text := pieces.feed(piece):
                        pass_text(prompt.on_text, text)
            return pieces.reply()


class AsyncClientModel(ClientModel):
    """The same on an event loop, with the provider's async client. Agents with it are async.

    Connections belong to the loop they were made on and must not outlive it. So each loop has one client,
    closed when the loop shuts down; a `client` of yours is used as it is, and closed by you.
    """

    async def aclose(self) -> None:
        """Close the client of the running loop. A `client` of yours is closed by you."""
        await self._clients.close()

    async def answer(self, prompt: Prompt) -> Reply:  # type: ignore[override]
        """Ask, and read the answer, piece by piece if `on_text` is given."""
        with translated(self.provider, self.key_variable, self._api_key):
            client = self._own or await self._clients.get(self._client)
            return await self._ask(client, prompt)

    async def _ask(self, client: Any, prompt: Prompt) -> Reply:
        answered = await self._send(client, prompt)
        if prompt.on_text is None:
            return self._read_reply(answered)
        pieces = self._pieces()
        async with answered:
            async for piece in answered:
                if text := pieces.feed(piece):
                    pass_text(prompt.on_text, text)
        return pieces.reply()
