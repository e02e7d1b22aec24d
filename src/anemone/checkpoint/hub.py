"""Download of public models by their hub id."""

from pathlib import Path

from anemone.checkpoint.safetensors import INDEX, SINGLE
from anemone.checkpoint.tokenizer import NAMED_TEMPLATES, NAMES
from anemone.errors import CheckpointError

PATTERNS = (
    "config.json",
    "hf_quant_config.json",
    SINGLE,
    INDEX,
    "model-*.safetensors",
    *NAMES,
    f"{NAMED_TEMPLATES}/*.jinja",
)


def download(repo_id: str) -> Path:
    """The folder of "org/name" in the local hub cache, fetched where it is not there yet.

    Without a network the cache alone serves. CheckpointError says in a sentence what is wrong: no such model, gated,
    or not reachable.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(repo_id, allow_patterns=list(PATTERNS)))
    except GatedRepoError as error:
        raise CheckpointError(
            f"{repo_id} is gated: accept its licence on https://huggingface.co/{repo_id} and run `hf auth login`."
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"There is neither a folder {repo_id} nor a public model of that name on the Hugging Face hub."
        ) from error
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"There is no folder {repo_id}, the hub cannot be reached, and its cache does not hold the model; "
            "go online or give the path of a local checkpoint."
        ) from error
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{repo_id} could not be downloaded: {reason}") from error
