"""Tokenizer files: which ones belong to a model, its chat templates, and the tokens that end its answers."""

import json
from pathlib import Path
from typing import Any

from anemone.checkpoint.base import TokenizerFiles
from anemone.errors import CheckpointError

NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
    "preprocessor_config.json",
)
NAMED_TEMPLATES = "additional_chat_templates"  # the folder of NAME.jinja, by the name transformers gives it

_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>")


def find_tokenizer_files(folder: Path) -> dict[str, Path]:
    """The files of a checkpoint or bundle folder that text needs, by name; those that exist."""
    found = {name: folder / name for name in NAMES if (folder / name).is_file()}
    templates = sorted((folder / NAMED_TEMPLATES).glob("*.jinja"))
    return found | {f"{NAMED_TEMPLATES}/{template.name}": template for template in templates}


def check_tokenizer(files: TokenizerFiles, needed: bool) -> None:
    """CheckpointError when tokenizer.json holds no tokenizer, or is ``needed`` and absent."""
    if "tokenizer.json" not in files:
        if needed:
            raise CheckpointError(
                "The checkpoint has no tokenizer.json, which a text needs to become tokens; add it, or leave out the "
                "verification."
            )
    elif not isinstance(_object(files, "tokenizer.json").get("model"), dict):
        raise CheckpointError("tokenizer.json holds no tokenizer (it has no model); download it again.")


def chat_templates(files: TokenizerFiles) -> dict[str, str]:
    """Template name -> Jinja source; the main one is called "default"; empty for a base model.

    As in transformers: chat_template.jinja and additional_chat_templates/*.jinja, where there is any, replace what
    tokenizer_config.json says; and that holds one template or a list of named ones.
    """
    prefix = f"{NAMED_TEMPLATES}/"
    from_files = {
        name.removeprefix(prefix).removesuffix(".jinja"): _text(files, name)
        for name in sorted(files)
        if name.startswith(prefix)
    }
    if "chat_template.jinja" in files:
        from_files["default"] = _text(files, "chat_template.jinja")
    if from_files:
        return from_files
    stated = _object(files, "tokenizer_config.json").get("chat_template")
    if stated is None:
        return {}
    if isinstance(stated, str):
        return {"default": stated}
    try:
        templates = dict(stated) if isinstance(stated, dict) else {entry["name"]: entry["template"] for entry in stated}
    except (KeyError, TypeError):
        templates = {"default": None}
    if not all(isinstance(text, str) for pair in templates.items() for text in pair):
        raise CheckpointError(
            "chat_template in tokenizer_config.json is neither a text nor a list of {name, template}; correct it there."
        )
    return templates


def chat_template(files: TokenizerFiles) -> str | None:
    """The Jinja source that chat uses; None when the model has none and completes raw text.

    CheckpointError when there are named templates, but none called "default".
    """
    templates = chat_templates(files)
    if templates and "default" not in templates:
        raise CheckpointError(
            f"The chat templates are called {', '.join(sorted(templates))}, but none default; "
            "save the one to use as chat_template.jinja."
        )
    return templates.get("default")


def stop_tokens(config: dict[str, Any], generation_config: dict[str, Any], files: TokenizerFiles) -> tuple[int, ...]:
    """Ids that end an answer, ascending: what any of the model's files calls an end.

    The union of eos_token_id in config (and its text_config) and generation_config, the tokenizer's eos token, and the
    end-of-turn tokens that a chat template writes: files disagree, and a missed one lets the model talk on.
    """
    stops: set[int] = set()
    for source in (config, config.get("text_config") or {}, generation_config):
        stops.update(_ids(source.get("eos_token_id")))
    templates = chat_templates(files).values()
    ends = [end for end in _TURN_ENDS if any(end in template for template in templates)]
    eos = _eos_token(files)
    if eos is not None:
        ends.append(eos)
    if ends:
        vocabulary = _vocabulary(files)
        stops.update(vocabulary[end] for end in ends if end in vocabulary)
    return tuple(sorted(stops))


def _ids(eos: Any) -> list[int]:
    if eos is None:
        return []
    ids = eos if isinstance(eos, list) else [eos]
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in ids):
        raise CheckpointError(f"eos_token_id is {eos}, but a token id or a list of them is needed.")
    return ids


def _eos_token(files: TokenizerFiles) -> str | None:
    """The text of the tokenizer's eos token; older folders keep it in special_tokens_map.json alone."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        token = _object(files, name).get("eos_token")
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            return token
    return None


def _vocabulary(files: TokenizerFiles) -> dict[str, int]:
    """Text -> id of the added tokens and, where it is a plain mapping, of the vocabulary."""
    tokenizer, config = _object(files, "tokenizer.json"), _object(files, "tokenizer_config.json")
    try:
        vocabulary = tokenizer.get("model", {}).get("vocab", {})
        ids: dict[str, int] = dict(vocabulary) if isinstance(vocabulary, dict) else {}
        for number, token in config.get("added_tokens_decoder", {}).items():
            ids[token["content"]] = int(number)
        return ids | {token["content"]: int(token["id"]) for token in tokenizer.get("added_tokens", [])}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            "tokenizer.json or tokenizer_config.json lists tokens without their text and id; download it again."
        ) from error


def _text(files: TokenizerFiles, name: str) -> str:
    content = files[name]
    try:
        return (content if isinstance(content, bytes) else content.read_bytes()).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{name} cannot be read as text ({error}).") from error


def _object(files: TokenizerFiles, name: str) -> dict[str, Any]:
    """The JSON object in a file; empty when the file is absent."""
    if name not in files:
        return {}
    try:
        content = json.loads(_text(files, name))
    except ValueError as error:
        raise CheckpointError(f"{name} is not valid JSON ({error}); download it again.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{name} holds a JSON {type(content).__name__}, but an object is needed.")
    return content
