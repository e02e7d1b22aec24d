"""The programs of one model: embeddings, decoder chunks and LM head, each with its functions.

Names, shapes, states and the meaning of every input and output are ANEMLL's contract, so that its apps load the
packages. One description yields every function of a chunk; they differ in rows and in what the end of the chunk gives:
infer     1 row;  the last chunk applies the final norm
prefill   batch rows;  the last chunk only fills the cache and returns one row that clients ignore
score     batch rows;  last chunk only: every row with the final norm
"""

from dataclasses import dataclass

from anemone.architectures.base import DecoderConfig
from anemone.graph.attention import attend, fold_mask, store_keys_and_values
from anemone.graph.builder import Builder
from anemone.graph.ir import Function, Program, Value, Weight
from anemone.graph.kv import Cache, state_shape
from anemone.graph.mlp import mlp
from anemone.graph.norm import rms_norm
from anemone.graph.rope import rotary_tables

EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True)
class Shapes:
    """What a conversion fixes at build time."""

    context: int
    batch: int
    kv_write: str = "slice"  # or mask
    score: bool = True
    silu: str = "tanh"  # or native


def embeddings_program(config: DecoderConfig, shapes: Shapes) -> Program:
    """input_ids (1, S) -> hidden_states (1, S, H) for S = 1 and S = batch."""
    b = Builder("main")
    flexible = ((1, 1), (1, shapes.batch)) if shapes.batch > 1 else ()
    ids = b.input("input_ids", "int32", (1, 1), flexible)
    table = b.weight(Weight(EMBEDDING, (config.vocab, config.hidden), "embedding", EMBEDDING))
    return Program((b.finish([b.gather(table, ids, axis=0, name="hidden_states")]),))


def chunk_program(config: DecoderConfig, shapes: Shapes, layers: range) -> Program:
    """Layers ``layers`` of the decoder with all their functions."""
    last = layers.stop == config.layers
    names = ["infer", "prefill", *(["score"] if last and shapes.score else [])]
    return Program(tuple(chunk_function(config, shapes, layers, name) for name in names))


def chunk_function(config: DecoderConfig, shapes: Shapes, layers: range, name: str) -> Function:
    rows = 1 if name == "infer" else shapes.batch
    last = layers.stop == config.layers
    b = Builder(name)
    hidden = b.input("hidden_states", "fp16", (1, rows, config.hidden))
    positions = b.input("position_ids", "int32", (rows,))
    mask = b.input("causal_mask", "fp16", (1, 1, rows, shapes.context))
    current = b.input("current_pos", "int32", (1,))
    # One row: clients may leave position_ids stale, current_pos is the position.
    tables = rotary_tables(b, config, shapes.context, current if rows == 1 else positions)
    mask = fold_mask(b, mask, config.group)
    cache = Cache(b, state_shape(config, shapes.context), current, rows, shapes.kv_write)
    x = rows_to_channels(b, hidden)
    for layer in layers:
        b.scope = f"layer_{layer}_"
        fill_only = last and name == "prefill" and layer == config.layers - 1
        x = decoder_layer(b, config, layer, x, mask, cache, tables, fill_only, shapes.silu)
    b.scope = ""
    if last and name == "prefill":
        x = b.narrow(x, 3, 0, 1) if rows > 1 else x
    elif last:
        x = rms_norm(b, x, "model.norm.weight", config.norm_eps)
    return b.finish([channels_to_rows(b, x, "output_hidden_states")])


def decoder_layer(
    b: Builder, config: DecoderConfig, layer: int, x: Value, mask: Value, cache: Cache,
    tables: tuple[Value, Value], fill_only: bool, silu: str,
) -> Value:  # fmt: skip
    """x (1, H, 1, S) -> (1, H, 1, S); with ``fill_only`` the layer just stores its keys and values."""
    prefix = f"model.layers.{layer}"
    normed = rms_norm(b, x, f"{prefix}.input_layernorm.weight", config.norm_eps)
    query = store_keys_and_values(b, config, layer, normed, cache, tables, queries=not fill_only)
    if query is None:
        return x
    x = b.add(x, attend(b, config, layer, query, mask, cache))
    normed = rms_norm(b, x, f"{prefix}.post_attention_layernorm.weight", config.norm_eps)
    return b.add(x, mlp(b, config, layer, normed, silu), name=f"layer_{layer}_output")


def head_program(config: DecoderConfig, shapes: Shapes, parts: int, argmax: bool) -> Program:
    """hidden_states (1, S, H) -> logits1..N (1, S, V_i), or argmax_idx and argmax_val (N,) for one row.

    Function main takes one row, function score batch rows (always logits).
    """
    functions = [_head_function(config, "main", 1, parts, argmax)]
    if shapes.score:
        functions.append(_head_function(config, "score", shapes.batch, parts, argmax=False))
    return Program(tuple(functions))


def head_sizes(vocab: int, parts: int) -> tuple[int, ...]:
    """Rows of each part of the head: the remainder goes to the first parts."""
    base, extra = divmod(vocab, parts)
    return tuple(base + (i < extra) for i in range(parts))


def _head_function(config: DecoderConfig, name: str, rows: int, parts: int, argmax: bool) -> Function:
    b = Builder(name)
    x = rows_to_channels(b, b.input("hidden_states", "fp16", (1, rows, config.hidden)))
    source = EMBEDDING if config.tied else "lm_head.weight"
    logits, start = [], 0
    for i, size in enumerate(head_sizes(config.vocab, parts), start=1):
        key = f"lm_head.{i}.weight"
        part = Weight(key, (size, config.hidden, 1, 1), "head", source, (start, start + size))
        logits.append(b.conv1x1(x, b.weight(part)))
        start += size
    if not argmax:
        return b.finish([channels_to_rows(b, y, f"logits{i}") for i, y in enumerate(logits, start=1)])
    indices = b.concat([b.reduce_argmax(y, 1) for y in logits], axis=0)  # (N, 1, 1)
    values = b.concat([b.reduce_max(y, 1) for y in logits], axis=0)
    return b.finish([b.squeeze(indices, (1, 2), "argmax_idx"), b.squeeze(values, (1, 2), "argmax_val")])


def rows_to_channels(b: Builder, x: Value) -> Value:
    """(1, S, C) -> (1, C, 1, S)."""
    _, rows, channels = x.shape
    if rows == 1:
        return b.reshape(x, (1, channels, 1, 1))
    return b.expand_dims(b.transpose(x, (0, 2, 1)), 2)


def channels_to_rows(b: Builder, x: Value, name: str) -> Value:
    """(1, C, 1, S) -> (1, S, C)."""
    _, channels, _, rows = x.shape
    if rows == 1:
        return b.reshape(x, (1, 1, channels), name)
    return b.transpose(b.squeeze(x, [2]), (0, 2, 1), name)
