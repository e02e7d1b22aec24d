"""Text to token ids and back: a bundle's tokenizer and chat template."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anemone.errors import PackageError, RequestError

Message = Mapping[str, Any]  # role, content, and what else a template reads

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class Text:
    """The tokenizer of a folder with tokenizer.json, tokenizer_config.json and perhaps chat_template.jinja.

    Raises PackageError when tokenizer.json is missing or cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self.folder = folder
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise PackageError(f"{folder} has no tokenizer.json, so text cannot be turned into tokens: copy it there.")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises the bare class
            raise PackageError(f"{path} cannot be read as a tokenizer: {error}.") from error
        self._tokenizer.no_truncation()  # some files carry the limits of a training run
        self._tokenizer.no_padding()
        self._special = {token for token, added in self._tokenizer.get_added_tokens_decoder().items() if added.special}
        self._config = _read_json(folder / "tokenizer_config.json")
        self._templates = _templates(folder, self._config)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids; special tokens are those that the tokenizer puts around a text, such as a first <s>.

        RequestError for a text with bytes that were no UTF-8 (Python keeps them as lone surrogates).
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"The text is not UTF-8 at character {error.start + 1}: is the terminal set to another encoding?"
            ) from None
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids, special tokens left out; bytes that are no UTF-8 become U+FFFD."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def is_silent(self, token: int) -> bool:
        """Whether ``decode`` leaves the token out: special tokens, and ids that the tokenizer does not have."""
        return token in self._special or self._tokenizer.id_to_token(token) is None

    def is_byte(self, token: int) -> bool:
        """Whether the token stands for one raw byte, as <0xE2> does."""
        return _BYTE.fullmatch(self._tokenizer.id_to_token(token) or "") is not None

    @property
    def has_template(self) -> bool:
        """Whether conversations can be written the way the model was trained on."""
        return bool(self._templates)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The conversation as the chat template writes it; ``variables`` (as enable_thinking) are for the template.

        Raises RequestError without a template, without messages, and when the template refuses the conversation.
        """
        if not self._templates:
            raise RequestError(f"{self.folder} has no chat template: give the model raw text instead of messages.")
        if not messages:
            raise RequestError("The conversation has no messages: give at least one.")
        from anemone.runtime.chat_template import render

        named = self._templates
        template = named.get("tool_use") if tools is not None and "tool_use" in named else named.get("default")
        if template is None:
            raise RequestError(f"{self.folder} has chat templates {sorted(named)}, but none of them is the default.")
        return render(
            template,
            messages=[{key: value for key, value in message.items() if value is not None} for message in messages],
            tools=tools,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **{**self._named_tokens(), **variables},
        )

    def encode_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """Token ids of ``render``; the template writes its own first token, so none is added."""
        text = self.render(messages, tools, add_generation_prompt, **variables)
        return self.encode(text, add_special_tokens=False)

    def _named_tokens(self) -> dict[str, str]:
        """The special tokens that templates refer to by name: bos_token, eos_token and so on."""
        found: dict[str, str] = {}
        for name, value in self._config.items():
            content = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(content, str):
                found[name] = content
        return found


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name: chat_template.jinja before the one or more in tokenizer_config.json."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return {"default": file.read_text(encoding="utf-8")}
    value = config.get("chat_template")
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list):
        return {entry["name"]: entry["template"] for entry in value}
    return {}


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise PackageError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(content, dict):
        raise PackageError(f"{path} holds no JSON object.")
    return content
