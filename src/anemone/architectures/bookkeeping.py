"""Config keys that say nothing about the mathematics of a forward pass.

Every other key that an architecture does not read is an error, unless its value switches nothing on.
"""

IDENTITY = frozenset(
    {
        "architectures",
        "model_type",
        "auto_map",
        "name_or_path",
        "_name_or_path",
        "_from_model_config",
        "_commit_hash",
        "transformers_version",
        "transformers.js_config",
        "unsloth_version",
        "unsloth_fixed",
        "is_llama_config",
        "tokenizer_class",
        "task_specific_params",
        "finetuning_task",
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
    }
)

STORAGE_AND_SPEED = frozenset(
    {
        "dtype",
        "torch_dtype",
        "use_cache",
        "cache_implementation",
        "attn_implementation",
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_attn_implementation_internal",
        "_flash_attn_2_enabled",
        "use_flash_attention_2",
        "use_flash_attn",
        "pretraining_tp",  # splits matrix products, with the same result
        "chunk_size_feed_forward",  # likewise
        "return_dict",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
    }
)

TRAINING = frozenset(
    {
        "initializer_range",
        "attention_dropout",
        "attention_probs_dropout_prob",
        "hidden_dropout",
        "hidden_dropout_prob",
        "resid_pdrop",
        "embd_pdrop",
        "attn_pdrop",
        "gradient_checkpointing",
        "neftune_noise_alpha",
        "max_sequence_length",  # of Llama 1, beside max_position_embeddings
        "model_max_length",
    }
)

TOKENS_AND_SAMPLING = frozenset(
    {
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "unk_token_id",
        "sep_token_id",
        "cls_token_id",
        "decoder_start_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "bad_words_ids",
        "begin_suppress_tokens",
        "suppress_tokens",
        "max_length",
        "min_length",
        "max_new_tokens",
        "do_sample",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "repetition_penalty",
        "length_penalty",
        "diversity_penalty",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "num_beams",
        "num_beam_groups",
        "num_return_sequences",
        "early_stopping",
        "remove_invalid_values",
        "exponential_decay_length_penalty",
        "prefix",
    }
)

BOOKKEEPING = IDENTITY | STORAGE_AND_SPEED | TRAINING | TOKENS_AND_SAMPLING


def switches_nothing(value: object) -> bool:
    """Whether a key with this value can be left unread: null, false, or an empty text, list or object."""
    return value is None or value is False or (isinstance(value, str | list | dict) and not value)
