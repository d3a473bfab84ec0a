"""What vLLM does wrongly (findings/README.md, which also tells when each mend can go).

**A call to the base model gets an adapter's weights**, on a CPU. In a batch that mixes adapters, vLLM marks the base
model's tokens with the index -1. Its GPU kernels skip them. Its CPU functions look up row -1, which is the last adapter
slot, so that base calls are answered with that adapter (vllm-project/vllm#48421). The gate compares versions with the
base model, so it would compare an adapter with itself. Here the tokens marked -1 go through these functions as zeros:
the adapter adds nothing to them.

**Positions**, on a CPU. Models such as LFM2 give the rotary embedding a tensor with a dimension for the heads. The GPU
kernel reads it so. The CPU kernel takes the heads for tokens, and turns them by the wrong angles: the engine then
serves another model than the one that is trained. Here the kernel gets the same memory without that dimension.

**Weights in INT8**, on a CPU. vLLM packs them and lets the layer's ``weight`` be None, and then asks that weight where
an adapter is to lie: the engine ends at its start (vllm-project/vllm#57503). Here all layers of a CPU say that they
are there.

**Mistral's grammar.** With a tokenizer of Mistral's own, from its version 11 on, vLLM 0.32 asks mistral-common for the
grammar of each chat completion. mistral-common 1.13 wants to be asked in another way, so that vLLM refuses every such
call with status 400. Here it is asked as it wants.
The grammar stands on each reply, whatever the call asks for. It forbids tokens, and so the log-probabilities that vLLM
gives are others than the model's. With ``SLIPSTREAM_ENGINE_FREE_REPLIES=1`` only calls that ask for a form get it, such
as JSON or a tool by its name: as with each other family.

**Kernels compiled for a number of tokens**, on a GPU. Triton compiles vLLM's adapter kernels anew for one token, for a
multiple of 16, and for other numbers, of which they make nothing. A start with empty caches waits for each. Here one
serves all numbers.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from slipstream_vllm.versions import resolve

if TYPE_CHECKING:
    import torch
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser.mistral import MistralParser

FREE_REPLIES = "SLIPSTREAM_ENGINE_FREE_REPLIES"
CPU_LORA_FUNCTIONS = ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")
"""What all of vLLM's CPU paths for adapters end in."""
PATCHED_KERNELS = (
    "vllm.lora.ops.triton_ops.lora_shrink_op:_lora_shrink_kernel",
    "vllm.lora.ops.triton_ops.lora_expand_op:_lora_expand_kernel",
)
"""A batch's adapters, on a GPU. ``M`` is its number of tokens."""
Operation = Callable[..., None]
Rendering = Callable[..., str]
Adjustment = Callable[..., "ChatCompletionRequest"]
Rotation = Callable[..., "tuple[torch.Tensor, torch.Tensor | None]"]


def without_base_rows(operation: Operation) -> Operation:
    """``operation(inputs_NI, weights, output, indices_N, …)`` with zeros for the rows whose index is negative."""
    takes = inspect.signature(operation)

    @functools.wraps(operation)
    def masked(*args: object, **named: object) -> None:
        import torch

        given = takes.bind(*args, **named)
        inputs_NI, indices_N = given.arguments["inputs"], given.arguments["lora_indices_tensor"]
        base_N: torch.Tensor = indices_N < 0
        if base_N.any():
            zero = torch.zeros((), dtype=inputs_NI.dtype, device=inputs_NI.device)
            given.arguments["inputs"] = torch.where(base_N.unsqueeze(1), zero, inputs_NI)
        operation(*given.args, **given.kwargs)

    masked.masks_base_rows = True  # type: ignore[attr-defined]
    return masked


def install() -> bool:
    """Replace the functions wherever vLLM's CPU path has them. Returns whether this is a CPU platform.

    Raises ``ImportError``, ``AttributeError`` or ``TypeError`` if this vLLM has others.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return False
    from vllm.lora.layers import base_linear
    from vllm.lora.ops import torch_ops
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    change((lora_ops, torch_ops, punica_cpu), lora_ops)
    base_linear._get_lora_device = _on_the_cpu
    if not getattr(RotaryEmbedding.forward_cpu, "flattens_heads", False):
        RotaryEmbedding.forward_cpu = without_heads(RotaryEmbedding.forward_cpu)
    return True


def _on_the_cpu(_: object) -> torch.device:
    """``_get_lora_device`` of a linear layer."""
    import torch

    return torch.device("cpu")


def compile_for_any_number() -> None:
    """Before the kernels' first use. A CPU has none. Raises ``ImportError`` or ``AttributeError`` if this vLLM has
    others.
    """
    from vllm.platforms import current_platform

    for path in () if current_platform.is_cpu() else PATCHED_KERNELS:
        for parameter in resolve(path).params:
            if parameter.name == "M":
                parameter.do_not_specialize = True


def without_heads(forward: Rotation) -> Rotation:
    """``forward(self, positions, query, key)``, which turns query and key in place, for tensors with any dimensions."""

    @functools.wraps(forward)
    def flat(
        self: object, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        given = (query, key)
        shaped = [t if t is None or t.dim() < positions.dim() + 2 else t.flatten(-2) for t in given]
        turned = forward(self, positions, *shaped)
        query_to, key_to = (
            t if t is None or g is None else t.view(g.shape) for t, g in zip(turned, given, strict=True)
        )
        assert query_to is not None
        return query_to, key_to

    flat.flattens_heads = True  # type: ignore[attr-defined]
    return flat


def change(users: tuple[ModuleType, ...], source: ModuleType) -> None:
    """Put the masked functions of ``source`` into each module that has them."""
    for name in CPU_LORA_FUNCTIONS:
        known = getattr(source, name)
        if not getattr(known, "masks_base_rows", False):
            parameters = inspect.signature(known).parameters
            if not {"inputs", "lora_indices_tensor"} <= parameters.keys():
                raise TypeError(f"{name} takes {tuple(parameters)}")
            known = without_base_rows(known)
        for module in users:
            if hasattr(module, name):
                setattr(module, name, known)


def as_asked(render: Rendering) -> Rendering:
    """``GrammarFactory.get_lark_from_jinja`` as vLLM calls it: a tool that has to be called may stand for the mode."""

    @functools.wraps(render)
    def rendered(*args: object, **named: object) -> str:
        mode, tools = named.get("mode"), named.get("tools")
        chosen = getattr(getattr(mode, "function", None), "name", None)
        if chosen is not None and isinstance(tools, list):
            named |= {"mode": "required", "tools": [t for t in tools if t.function.name == chosen]}
        return render(*args, **{"force_tool_names": chosen is not None, **named})

    rendered.takes_a_tool = True  # type: ignore[attr-defined]
    return rendered


def asks_a_form(request: ChatCompletionRequest) -> bool:
    """Whether a chat completion asks for more than a reply as the model likes it."""
    wanted = request.response_format
    given = request.structured_outputs is not None or (wanted is not None and wanted.type != "text")
    return given or request.tool_choice not in (None, "none", "auto")


def for_forms(adjust: Adjustment) -> Adjustment:
    """``MistralParser.adjust_request`` without a grammar for a call that asks for no form."""

    @functools.wraps(adjust)
    def adjusted(self: MistralParser, request: ChatCompletionRequest) -> ChatCompletionRequest:
        grammar = getattr(self.model_tokenizer, "supports_grammar", False) and hasattr(request, "messages")
        return request if grammar and not asks_a_form(request) else adjust(self, request)

    adjusted.for_forms = True  # type: ignore[attr-defined]
    return adjusted


def install_free_replies() -> None:
    """Raises ``ImportError`` or ``AttributeError`` if this vLLM has no such grammar."""
    from vllm.parser.mistral import MistralParser

    if not hasattr(MistralParser.adjust_request, "for_forms"):
        MistralParser.adjust_request = for_forms(MistralParser.adjust_request)


def install_grammar() -> None:
    """Once vLLM loads a tokenizer of Mistral's own: others need none of its packages."""
    from vllm.tokenizers.registry import TokenizerRegistry

    load = TokenizerRegistry.load_tokenizer_cls

    def mended(tokenizer_mode: str) -> object:
        if tokenizer_mode == "mistral":
            with contextlib.suppress(ImportError, AttributeError):  # an older mistral-common has no grammar
                from mistral_common.guidance.grammar_factory import GrammarFactory

                known = GrammarFactory.get_lark_from_jinja
                if "force_tool_names" in inspect.signature(known).parameters and not hasattr(known, "takes_a_tool"):
                    GrammarFactory.get_lark_from_jinja = as_asked(known)  # type: ignore[method-assign]
                if os.environ.get(FREE_REPLIES) == "1":
                    install_free_replies()
        return load(tokenizer_mode)

    vars(TokenizerRegistry)["load_tokenizer_cls"] = mended
