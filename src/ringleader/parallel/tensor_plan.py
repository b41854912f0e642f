"""Which layers of a model are sharded over tensor ranks, and how.

A plan maps names of modules to styles, in the words that Hugging Face's plans use.
"colwise" shards the outputs of a layer, "rowwise" the inputs of the next one, so that
the pair needs one all_reduce; what is between them must work element by element, or on
whole attention heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from torch import nn

COLWISE, ROWWISE = "colwise", "rowwise"
GATHERED = "colwise_gather_output"
EMBEDDING = "embedding_rowwise"

ALIASES = {"colwise_rep": GATHERED, "rowwise_rep": "rowwise_split_input"}
"""Names of the same styles in older plans of Hugging Face."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


QUERIES = _words("q_proj k_proj v_proj query key value wq wk wv")
OUTPUTS = _words("o_proj out_proj wo proj output out c_proj")
UPS = _words(
    "up_proj gate_proj fc1 c_fc w1 w3 linear1 up gate lin1 fc_in wi wi_0 wi_1 "
    "dense_h_to_4h"
)
DOWNS = _words("down_proj fc2 c_proj w2 linear2 down lin2 fc_out wo dense_4h_to_h")
TABLES = _words("lm_head head classifier output unembed to_logits")
"""Names of output layers, which have a row per word or class."""

HEAD_COUNTS = _words(
    "num_heads n_heads n_head num_attention_heads num_key_value_heads num_kv_heads "
    "n_kv_heads n_kv_head"
)
"""Attributes of attention modules that say how many heads there are."""

BETWEEN: tuple[type[nn.Module], ...] = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.ELU, nn.SiLU, nn.Mish, nn.Hardswish),
    *(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Identity, nn.Dropout),
)
"""Modules that work element by element."""


@dataclass(slots=True)
class Plan:
    """Styles by the names of modules, and attention modules to tell their own heads."""

    styles: dict[str, Any] = field(default_factory=dict)
    attentions: list[str] = field(default_factory=list)


def make_plan(
    model: nn.Module, size: int, given: Mapping[str, Any] | None, uneven: bool
) -> Plan:
    """Return the user's plan, the model's own, or the one its layers suggest.

    ``size`` is the number of tensor ranks; with ``uneven``, layers may be cut into
    parts of different sizes.
    """
    own = given if given is not None else plan_of_model(model)
    plan = Plan(expand(model, own)) if own else suggest(model, size, uneven)
    return keep_shared(model, plan)


def plan_of_model(model: nn.Module) -> Mapping[str, Any]:
    """Return the plan that a Hugging Face model brings; empty if it has none."""
    own = getattr(model, "_tp_plan", None)
    if isinstance(own, Mapping) and own:
        return own
    base = getattr(getattr(model, "config", None), "base_model_tp_plan", None)
    if not isinstance(base, Mapping):
        return {}
    prefix = getattr(model, "base_model_prefix", "")
    dot = f"{prefix}." if prefix and hasattr(model, prefix) else ""
    return {f"{dot}{pattern}": style for pattern, style in base.items()}


def expand(model: nn.Module, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return a style for each module whose name a pattern matches; * is one level."""
    found: dict[str, Any] = {}
    for name, _ in model.named_modules():
        for pattern, style in plan.items():
            if _matches(name, pattern):
                found[name] = ALIASES.get(style, style)
    return found


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def suggest(model: nn.Module, size: int, uneven: bool) -> Plan:
    """Return a plan for MLPs, attention, embeddings and the output layer."""

    def fits(units: int) -> bool:
        return units >= size and (uneven or units % size == 0)

    plan = Plan()
    for name, module in model.named_modules():
        dot = f"{name}." if name else ""
        linears = {n: c for n, c in module.named_children() if type(c) is nn.Linear}
        found = _attention(module, linears, size)
        if found:
            plan.attentions.append(name)
        else:
            found = _mlp(linears, fits) or _sequence(module, fits)
        for child, layer in module.named_children():
            rows = _table_rows(child, layer)
            if child not in found and fits(rows):
                found[child] = EMBEDDING if child not in linears else GATHERED
        plan.styles.update({f"{dot}{child}": style for child, style in found.items()})
    return plan


def _attention(
    module: nn.Module, linears: Mapping[str, nn.Linear], size: int
) -> dict[str, str]:
    """Return the styles of an attention whose heads divide among the ranks."""
    inner = [name for name in linears if name in QUERIES]
    outer = [name for name in linears if name in OUTPUTS]
    counts = head_counts(module)
    if len(inner) != 3 or len(outer) != 1 or not counts:
        return {}
    if any(count % size for count in counts.values()):
        return {}
    return {**dict.fromkeys(inner, COLWISE), outer[0]: ROWWISE}


def head_counts(module: nn.Module) -> dict[str, int]:
    """Return the attributes that say how many heads a module has."""
    values = {name: getattr(module, name, None) for name in HEAD_COUNTS}
    return {name: value for name, value in values.items() if isinstance(value, int)}


def _mlp(
    linears: Mapping[str, nn.Linear], fits: Callable[[int], bool]
) -> dict[str, str]:
    """Return the styles of an MLP with conventional names."""
    wide = [name for name in linears if name in UPS]
    narrow = [name for name in linears if name in DOWNS]
    if not wide or len(narrow) != 1:
        return {}
    units = linears[narrow[0]].in_features
    if {linears[name].out_features for name in wide} != {units} or not fits(units):
        return {}
    return {**dict.fromkeys(wide, COLWISE), narrow[0]: ROWWISE}


def _sequence(module: nn.Module, fits: Callable[[int], bool]) -> dict[str, str]:
    """Return the styles of linear layers in a Sequential, in pairs."""
    found: dict[str, str] = {}
    if not isinstance(module, nn.Sequential):
        return found
    layers = [
        (name, child)
        for name, child in module.named_children()
        if not isinstance(child, BETWEEN)
    ]
    for (first, up), (second, down) in pairwise(layers):
        is_pair = type(up) is type(down) is nn.Linear and first not in found
        if is_pair and fits(up.get_parameter("weight").shape[0]):
            found |= {first: COLWISE, second: ROWWISE}
    return found


def _table_rows(name: str, layer: nn.Module) -> int:
    """Return the rows of a layer with one per word: embeddings and output layers."""
    if type(layer) is nn.Linear and name in TABLES:
        return layer.out_features
    if type(layer) is not nn.Embedding or layer.sparse or layer.max_norm is not None:
        return 0
    return layer.num_embeddings if layer.padding_idx is None else 0


def keep_shared(model: nn.Module, plan: Plan) -> Plan:
    """Return the plan such that modules which share a parameter shard it alike.

    An embedding follows the output layer whose weight it shares. Others are left whole.
    """
    styles = dict(plan.styles)
    for owners in shared_parameters(model):
        names = [name for name, _ in owners]
        kinds = {name: _dimension(model, name, styles.get(name)) for name in names}
        for name in names:
            is_embedding = isinstance(model.get_submodule(name), nn.Embedding)
            if is_embedding and name not in styles and 0 in kinds.values():
                styles[name], kinds[name] = EMBEDDING, 0
        if len(set(kinds.values())) > 1:
            for name in names:
                styles.pop(name, None)
    return Plan(styles, plan.attentions)


def shared_parameters(model: nn.Module) -> Iterator[list[tuple[str, str]]]:
    """Yield module and parameter name of all uses of each shared parameter."""
    uses: dict[nn.Parameter, list[tuple[str, str]]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        module, _, attribute = name.rpartition(".")
        uses.setdefault(parameter, []).append((module, attribute))
    yield from (owners for owners in uses.values() if len(owners) > 1)


def _dimension(model: nn.Module, name: str, style: object) -> int | None:
    """Return the dimension along which a style shards the weight of a module."""
    if not isinstance(style, str):
        return None
    if isinstance(model.get_submodule(name), nn.Embedding):
        return 0 if style == EMBEDDING else 1
    return {COLWISE: 0, GATHERED: 0, ROWWISE: 1, "rowwise_split_input": 1}.get(style)
