"""Log-probabilities of the scored positions only: the vocabulary is never spread over a whole sequence."""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


DIRECT_LIMIT = 2**26
"""Scored positions × vocabulary up to which the logits are simply made (256 MiB in fp32)."""


@dataclass(slots=True, eq=False)
class ScoredPositions:
    """What to score: flat positions in (rows × tokens), the next token, and 1 / temperature (None: all are 1)."""

    source_S: torch.Tensor
    target_S: torch.Tensor
    inverse_temperature_S: torch.Tensor | None


def _scales(model: PreTrainedModel) -> tuple[float, float | None]:
    """(factor on the logits, soft cap) as the model's own forward applies them."""
    text = model.config.get_text_config()
    factor = next(
        (
            v
            for n in ("logit_scale", "output_multiplier", "lm_head_multiplier")
            if (v := getattr(text, n, None)) is not None
        ),
        None,
    )
    if factor is None and getattr(text, "logits_scaling", None) is not None:
        factor = text.logits_scaling if text.model_type == "hyperclovax" else 1 / text.logits_scaling
    return 1.0 if factor is None else float(factor), getattr(text, "final_logit_softcapping", None)


def _direct(
    hidden_SH: torch.Tensor, head: torch.nn.Linear, score: ScoredPositions, factor: float, cap: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = torch.nn.functional.linear(hidden_SH, head.weight, head.bias).float()
    if factor != 1.0:
        logits = logits * factor
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    if score.inverse_temperature_S is not None:
        logits = logits * score.inverse_temperature_S[:, None]
    logprobs = torch.log_softmax(logits, dim=-1)
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs.clamp(min=torch.finfo(torch.float32).min)).sum(-1)
    return logprobs.gather(1, score.target_S[:, None])[:, 0], entropy


def _chunked(
    hidden_SH: torch.Tensor, head: torch.nn.Linear, score: ScoredPositions, factor: float, cap: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """TRL's tiled kernel. It knows one temperature; for a plain linear head, dividing the hidden state is the same."""
    from trl.kernels import ChunkedLogProbFunction

    if score.inverse_temperature_S is not None:
        if head.bias is not None or cap is not None:
            pieces = torch.split(
                torch.arange(len(hidden_SH), device=hidden_SH.device), max(1, DIRECT_LIMIT // head.weight.shape[0])
            )
            out = [
                torch.utils.checkpoint.checkpoint(
                    _direct,
                    hidden_SH[p],
                    head,
                    ScoredPositions(score.source_S[p], score.target_S[p], score.inverse_temperature_S[p]),
                    factor,
                    cap,
                    use_reentrant=False,
                )
                for p in pieces
            ]
            return torch.cat([o[0] for o in out]), torch.cat([o[1] for o in out])
        hidden_SH = (hidden_SH * score.inverse_temperature_S[:, None]).to(hidden_SH.dtype)
    found = ChunkedLogProbFunction.apply(
        hidden_SH, head.weight, head.bias, score.target_S, 1.0, 32_768, cap, factor, ("log_probs", "entropy")
    )
    return found[0], found[1].detach()


def add_scored_head(model: PreTrainedModel) -> None:
    """After this ``model(..., score=ScoredPositions)`` returns (log-probabilities, entropies), flat (S) in fp32;
    entropies without gradient.

    Without ``score`` the forward is what it was. It is a keyword of the forward, not a function beside it, so that
    the wrappers of data parallelism see it. ``model``: a transformers causal LM, not wrapped.
    """
    original = model.forward
    factor, cap = _scales(model)

    @functools.wraps(type(model).forward)
    def forward(self: Any, *args: Any, score: ScoredPositions | None = None, **kwargs: Any) -> Any:
        if score is None:
            return original(*args, **kwargs)
        hidden = self.base_model(*args, use_cache=False, **kwargs).last_hidden_state
        hidden_SH = hidden.reshape(-1, hidden.shape[-1]).index_select(0, score.source_S)
        head = self.get_output_embeddings()
        small = len(hidden_SH) * head.weight.shape[0] <= DIRECT_LIMIT
        return (_direct if small else _chunked)(hidden_SH, head, score, factor, cap)

    model.forward = types.MethodType(forward, model)
