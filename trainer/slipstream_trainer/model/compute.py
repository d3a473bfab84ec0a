"""What is computed otherwise than transformers does: layers, attention masks, the head.

Compiled layers: norms, rotary embedding, gated MLP and LoRA's sums as a few kernels that keep less for backward.

Compiling takes 20 s for each length of a row, so nothing waits for it. Rows are computed by the layers as they are,
with a dense mask, until rows of their length have taken ``COMPILE_AFTER_S`` seconds. Then another process compiles
that length (``warmup.py``). What it leaves in the compiler's cache is taken over in a few seconds.

Attention masks of tree rows: dense where that is quick (CPU), FlexAttention's block mask on a GPU.

Log-probabilities of the scored positions only: the vocabulary is never spread over a whole sequence.
"""

from __future__ import annotations

import atexit
import functools
import json
import logging
import math
import os
import subprocess
import sys
import time
import types
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from slipstream_trainer.batch.layout import BLOCK_TOKENS, MicroBatch, in_tiles
from slipstream_trainer.model.graphs import decode

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask
    from transformers import PreTrainedModel

    from slipstream.config import Config

log = logging.getLogger(__name__)

MAX_COMPILED_VARIANTS = 128
"""Compilations of a layer's code side by side: lengths (``layout.forest_width``) × training or not × adapter or not."""
COMPILE_AFTER_S = 10.0
"""Seconds that rows of one length have taken uncompiled before it is compiled: about half of what compiling takes. A
length that comes up rarely is never compiled.
"""
MOST_LENGTHS = 16
"""Compiled at most: each of them takes room in a GPU's memory and in the compiler's list of what it has."""
PAYS_HERE = 60.0
"""The same where no other process compiles, and several that train together wait meanwhile."""
COMPILE_TIMEOUT_S = 600.0
"""Seconds after which a process that compiles is ended."""
LONG_ROW_TOKENS = 32_768
"""Rows of more tokens are compiled at their first use, while the step waits: uncompiled, their mask alone would take
2 bytes for each pair of tokens, 32 GiB for 131,072.
"""
UNCOMPILED_ATTENTION = "sdpa"
"""Attention of layers that are not compiled: FlexAttention without a compiler holds every pair's score in memory."""
COMPILED_LIST_FILE = "compiled.json"
"""In the trainer's folder: lengths that were compiled, so that the next start has them soon."""


def compile_layers(layers: Sequence[torch.nn.Module]) -> None:
    """Each by itself, in place: equal layers share their code, so the wait is one layer's."""
    torch._dynamo.config.recompile_limit = max(MAX_COMPILED_VARIANTS, torch._dynamo.config.recompile_limit)
    for layer in layers:
        layer.compile(dynamic=False)


def capped(model: type[PreTrainedModel] | PreTrainedModel) -> bool:
    """Whether it caps its attention scores (Gemma 2). SDPA leaves the cap out, and the engine does not."""
    described = getattr(model, "config", None)
    return described is not None and bool(getattr(described.get_text_config(), "attn_logit_softcapping", None))


class LayerCompiler:
    """Computes a micro-batch by compiled layers or by the layers as they are.

    ``late``: lengths are compiled when that pays. Where the model's class lets its attention not change, every length
    is, when it first comes up. ``beside``: another process compiles. Else this one does, at the length's next pass.
    """

    def __init__(
        self, base: PreTrainedModel, layers: Sequence[torch.nn.Module], config: Config, folder: Path, *, beside: bool
    ) -> None:
        self.base, self.layers, self.config, self.folder = base, layers, config, folder
        self.attention = str(base.config._attn_implementation)
        """Of compiled layers."""
        self.uncompiled = "eager" if capped(base) else UNCOMPILED_ATTENTION
        self.late = self._takes(self.uncompiled)
        self.beside = beside
        self.ready: set[int] = set()
        self.spent: dict[int, float] = defaultdict(float)
        """Length → seconds that its rows have taken uncompiled."""
        self.filling: dict[tuple[int, int], float] = defaultdict(float)
        """(Length that a row needs, compiled length that it had) → seconds that the difference took."""
        self.failed: set[int] = set()
        self.check: Callable[[int], bool] = lambda _: True
        """Does a length that was just compiled compute what it should?"""
        self.process: subprocess.Popen[bytes] | None = None
        self.width = 0
        """What ``process`` compiles."""
        self._began = 0.0
        compile_layers(layers)
        self._calls = [layer._compiled_call_impl for layer in layers]
        self._on = True
        self._due = self._known() if self.late else []

    def _takes(self, attention: str) -> bool:
        """Does the model's class let its attention change?"""
        try:
            self.base.set_attn_implementation(attention)
            taken = bool(self.base.config._attn_implementation == attention)
        except (ValueError, ImportError):
            taken = False
        self.base.set_attn_implementation(self.attention)
        return taken

    def command(self) -> list[str]:
        """Of the process that compiles. The configuration and the length come by its standard input."""
        return [sys.executable, "-P", "-m", "slipstream_trainer.run.warmup"]

    def _known(self) -> list[int]:
        try:
            found = [int(width) for width in json.loads((self.folder / COMPILED_LIST_FILE).read_text())]
            return [width for width in found if width <= min(LONG_ROW_TOKENS, self.config.trainer.token_budget)]
        except (OSError, ValueError, TypeError):
            return []

    # while a batch is computed

    def switch(self, rows: int, width: int) -> str:
        """Before a forward pass of this shape. → The attention that computes it."""
        on = not self.late or (rows == 1 and (width in self.ready or width > LONG_ROW_TOKENS))
        if on != self._on:
            for layer, call in zip(self.layers, self._calls, strict=True):
                layer._compiled_call_impl = call if on else None
            self.base.set_attn_implementation(self.attention if on else self.uncompiled)
            self._on = on
        return self.attention if on else self.uncompiled

    def note(self, micro: Sequence[MicroBatch], seconds: float) -> None:
        """After passes over ``micro`` that took so long together: is it time to compile?"""
        if not self.late:
            return
        whole = sum(m.computed for m in micro)
        for m in micro:
            rows, width = m.ids_RN.shape
            if rows > 1 or width > LONG_ROW_TOKENS:
                continue
            took = seconds * m.computed / whole
            if width not in self.ready:
                self.spent[width] += took
            elif (needed := in_tiles(m.tokens)) < width:
                self.filling[needed, width] += took * (1 - needed / width)
        self.look()

    def _shorter(self) -> list[int]:
        """The length whose compilation would save most of what filling up rows takes, if that pays."""
        if not self.beside or len(self.ready) >= MOST_LENGTHS or sum(self.filling.values()) < COMPILE_AFTER_S:
            return []

        def saves(length: int) -> float:
            rows = ((n, w, took) for (n, w), took in self.filling.items() if n <= length < w)
            return sum(took * (w - length) / (w - n) for n, w, took in rows)

        best = max({n for n, _ in self.filling} - self.failed, key=saves, default=0)
        return [best] if saves(best) >= COMPILE_AFTER_S else []

    # the process beside

    def look(self) -> None:
        """Take over what is compiled, and begin with what is due. Returns at once."""
        if not self.beside:
            self.ready |= {width for width, spent in self.spent.items() if spent >= PAYS_HERE}
            return
        if self.process is not None:
            code = self.process.poll()
            if code is None:
                if time.monotonic() - self._began > COMPILE_TIMEOUT_S:
                    self.process.kill()
                return
            self._ended(code)
        due = [w for w, spent in self.spent.items() if spent >= COMPILE_AFTER_S and w not in self.ready | self.failed]
        for width in [*self._due, *sorted(due, key=lambda w: -self.spent[w]), *self._shorter()]:
            if width not in self.ready | self.failed:
                self._begin(width)
                return

    def _begin(self, width: int) -> None:
        self.width, self._began = width, time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "compile.log").open("ab") as out:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.PIPE, stdout=out, stderr=out)
        atexit.register(self.end)
        order = {"config": self.config.model_dump(mode="json"), "width": width}
        if self.process.stdin is not None:
            try:
                self.process.stdin.write(json.dumps(order).encode())
                self.process.stdin.close()
            except OSError as e:
                log.debug("the process that compiles does not listen: %s", e)

    def _ended(self, code: int) -> None:
        seconds, self.process = time.monotonic() - self._began, None
        self._due = [w for w in self._due if w != self.width]
        if code:
            self.failed.add(self.width)
            log.warning(
                "rows of %d tokens are computed uncompiled: compiling them failed with exit code %d, see %s",
                self.width, code, self.folder / "compile.log",
            )  # fmt: skip
            return
        self.ready.add(self.width)
        self.filling = defaultdict(float, {(n, w): s for (n, w), s in self.filling.items() if not n <= self.width < w})
        if not self.check(self.width):
            self.ready.discard(self.width)
            self.failed.add(self.width)
            return
        log.info("compiled for rows of %d tokens in %.0f s, beside the steps", self.width, seconds)
        kept = self.folder / f"{COMPILED_LIST_FILE}.{os.getpid()}"
        kept.write_text(json.dumps(sorted(self.ready)))
        kept.replace(self.folder / COMPILED_LIST_FILE)

    def end(self) -> None:
        """Stop compiling."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def dense_mask(ends_RN: torch.Tensor) -> torch.Tensor:
    """(R, 1, N, N), true where query q sees key k: k is q or an ancestor of it."""
    i = torch.arange(ends_RN.shape[1], device=ends_RN.device)
    return ((i[None, :] <= i[:, None])[None] & (i[None, :, None] < ends_RN[:, None, :]))[:, None]


def block_mask(ends_RN: torch.Tensor) -> BlockMask:
    """The same as FlexAttention's ``BlockMask``, from the first and last end in each block: torch's own way to make it
    out of a function of two tokens takes 8 bytes for every pair, 128 GiB for a row of 131,072 tokens.
    """
    from torch.nn.attention.flex_attention import BlockMask

    def ancestor(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (k <= q) & (q < ends_RN[b, k])

    rows, n = ends_RN.shape
    blocks = -(-n // BLOCK_TOKENS)
    at_B = torch.arange(blocks, device=ends_RN.device)
    after_BB = at_B[:, None] > at_B[None, :]
    filled_RN = torch.nn.functional.pad(ends_RN, (0, blocks * BLOCK_TOKENS - n))
    ends_RBK = filled_RN.reshape(rows, blocks, BLOCK_TOKENS)
    last_q_B = (at_B + 1) * BLOCK_TOKENS - 1
    some_RBB = after_BB & (ends_RBK.amax(-1)[:, None] > (at_B * BLOCK_TOKENS)[:, None])
    whole_RBB = after_BB & (ends_RBK.amin(-1)[:, None] > last_q_B[:, None])
    part_RBB = (some_RBB & ~whole_RBB) | torch.eye(blocks, dtype=torch.bool, device=ends_RN.device)

    def listed(found_RBB: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """How many key blocks each block of queries has, and which: these first."""
        found = found_RBB[:, None].to(torch.int32)
        order = torch.argsort(found, dim=-1, descending=True, stable=True)
        return found.sum(-1, dtype=torch.int32), order.to(torch.int32)

    return BlockMask.from_kv_blocks(
        *listed(part_RBB), *listed(whole_RBB), BLOCK_SIZE=BLOCK_TOKENS, mask_mod=ancestor, seq_lengths=(n, n)
    )


def tree_mask(ends_RN: torch.Tensor, implementation: str, dtype: torch.dtype | None = None) -> torch.Tensor | BlockMask:
    """What the model takes as ``attention_mask`` for its ``attn_implementation``.

    ``dtype``: of a dense mask that is added to the scores. Every layer keeps that one for the backward pass, where of a
    boolean mask each makes, and keeps, such a mask of its own. None: boolean.
    """
    if implementation == "flex_attention":
        return block_mask(ends_RN)
    sees = dense_mask(ends_RN)
    if dtype is None:
        return sees
    return torch.zeros(sees.shape, dtype=dtype, device=sees.device).masked_fill_(~sees, float("-inf"))


DIRECT_LIMIT = 2**26
"""Scored positions × vocabulary up to which the logits are simply made (256 MiB in fp32)."""
PIECE_ELEMENTS = 2**24
"""Places × vocabulary that are compared at once (64 MiB in fp32 for each of a few tensors)."""


@dataclass(slots=True, eq=False)
class ScoredPositions:
    """What to score: flat positions in (rows × tokens), the next token, and 1 / temperature (None: all are 1)."""

    source_S: torch.Tensor
    target_S: torch.Tensor
    inverse_temperature_S: torch.Tensor | None
    places_P: torch.Tensor | None = None
    """Which of them to remember, or to compare; None: none."""
    hidden_PH: torch.Tensor | None = None
    """Hidden states there. The forward fills it. If it is filled already, the forward compares with it instead."""
    kl_P: torch.Tensor | None = None
    """KL from the policy with those hidden states to this one, over the whole vocabulary. The forward fills it."""
    filter_S3: torch.Tensor | None = None
    """min_p, top_k (0: all) and top_p under which each token was sampled. None: all are neutral."""
    taught_W: torch.Tensor | None = None
    """Which of them have a teacher; None: none. The forward returns ``teacher_gaps`` as well."""
    teacher_WH: torch.Tensor | None = None
    """The teacher's hidden states there."""
    to_teacher_W: torch.Tensor | None = None
    """What the forward returned of it: the divergence of policy and teacher, with a gradient."""
    from_teacher_W: torch.Tensor | None = None
    """KL(teacher ‖ policy)."""

    def part(self, chosen: torch.Tensor) -> ScoredPositions:
        """Some of the positions, to be scored alone."""
        cold, cut = self.inverse_temperature_S, self.filter_S3
        return ScoredPositions(
            self.source_S[chosen],
            self.target_S[chosen],
            None if cold is None else cold[chosen],
            filter_S3=None if cut is None else cut[chosen],
        )


def _scales(model: PreTrainedModel) -> tuple[float, float | None]:
    """(factor on the logits, soft cap) as the model's own forward applies them."""
    text = model.config.get_text_config()
    told = (getattr(text, name, None) for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"))
    factor = next((v for v in told if v is not None), None)
    if factor is None and getattr(text, "logits_scaling", None) is not None:
        factor = text.logits_scaling if text.model_type == "hyperclovax" else 1 / text.logits_scaling
    return 1.0 if factor is None else float(factor), getattr(text, "final_logit_softcapping", None)


def _logprobs(
    hidden_SH: torch.Tensor, head: torch.nn.Linear, score: ScoredPositions, factor: float, cap: float | None
) -> torch.Tensor:
    """Over the vocabulary, in fp32."""
    logits = torch.nn.functional.linear(hidden_SH, head.weight, head.bias).float()
    if factor != 1.0:
        logits = logits * factor
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    if score.inverse_temperature_S is not None:
        logits = logits * score.inverse_temperature_S[:, None]
    if score.filter_S3 is not None:
        logits = logits.masked_fill(~kept(logits.detach(), score.filter_S3, score.target_S), float("-inf"))
    return torch.log_softmax(logits, dim=-1)


def kept(logits_SV: torch.Tensor, filter_S3: torch.Tensor, target_S: torch.Tensor) -> torch.Tensor:
    """Which tokens the sampler could draw, by vLLM's rules in its order: min_p, top_k, top_p. (S, V)

    A sampled token counts as kept, also where this policy's own filter would cut it: the sampler did draw it. Where
    tokens tie at top_k's edge, exactly k are kept, as vLLM does on a GPU, and the sampled one is among them. Which of
    the others are kept changes nothing: they are equally likely.
    """
    target_S1 = target_S[:, None]
    own_S1 = logits_SV.gather(1, target_S1)
    logits_SV = logits_SV.scatter(1, target_S1, torch.nextafter(own_S1, torch.full_like(own_S1, torch.inf)))
    min_p, top_k, top_p = filter_S3.to(logits_SV.dtype).unbind(1)
    probs = torch.softmax(logits_SV, -1)
    found = probs >= probs.amax(-1, keepdim=True) * min_p[:, None]
    ascending, places = logits_SV.masked_fill(~found, float("-inf")).sort(-1)
    size = logits_SV.shape[1]
    wanted = torch.where(top_k > 0, top_k, size).long().clamp(max=size)
    cut = torch.arange(size, device=wanted.device) < size - wanted[:, None]
    ascending = ascending.masked_fill(cut, float("-inf"))
    cut |= torch.softmax(ascending, -1).cumsum(-1) <= 1 - top_p[:, None]
    cut[:, -1] = False
    found &= ~torch.zeros_like(cut).scatter(1, places, cut)
    return found.scatter(1, target_S1, True)


def _direct(
    hidden_SH: torch.Tensor, head: torch.nn.Linear, score: ScoredPositions, factor: float, cap: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs = _logprobs(hidden_SH, head, score, factor, cap)
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs.clamp(min=torch.finfo(torch.float32).min)).sum(-1)
    return logprobs.gather(1, score.target_S[:, None])[:, 0], entropy


def _chunked(
    hidden_SH: torch.Tensor, head: torch.nn.Linear, score: ScoredPositions, factor: float, cap: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """TRL's tiled kernel. It knows one temperature; for a plain linear head, dividing the hidden state is the same."""
    from trl.kernels import ChunkedLogProbFunction

    if score.inverse_temperature_S is not None or score.filter_S3 is not None:
        if head.bias is not None or cap is not None or score.filter_S3 is not None:
            again = functools.partial(torch.utils.checkpoint.checkpoint, _direct, use_reentrant=False)
            size = max(1, DIRECT_LIMIT // head.weight.shape[0])
            pieces = torch.split(torch.arange(len(hidden_SH), device=hidden_SH.device), size)
            out = [again(hidden_SH[p], head, score.part(p), factor, cap) for p in pieces]
            return torch.cat([o[0] for o in out]), torch.cat([o[1] for o in out])
        assert score.inverse_temperature_S is not None
        hidden_SH = (hidden_SH * score.inverse_temperature_S[:, None]).to(hidden_SH.dtype)
    found = ChunkedLogProbFunction.apply(
        hidden_SH, head.weight, head.bias, score.target_S, 1.0, 32_768, cap, factor, ("log_probs", "entropy")
    )
    return found[0], found[1].detach()


def exact_kl(
    old_PH: torch.Tensor,
    new_PH: torch.Tensor,
    head: torch.nn.Linear,
    inverse_temperature_P: torch.Tensor | None,
    factor: float,
    cap: float | None,
) -> torch.Tensor:
    """KL(old ‖ new) at each place, summed over the vocabulary: nats, (P). Both policies have the same head."""
    return teacher_gaps(new_PH, old_PH, head, inverse_temperature_P, factor, cap)[1].clamp(min=0.0)


def teacher_gaps(
    hidden_WH: torch.Tensor,
    teacher_WH: torch.Tensor,
    head: torch.nn.Linear,
    inverse_temperature_W: torch.Tensor | None,
    factor: float,
    cap: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(Jensen-Shannon divergence of policy and teacher with a gradient to ``hidden_WH``, KL(teacher ‖ policy) without),
    nats, both (W).

    Where there is a gradient, a piece's logits are made again for it, not kept.
    """
    none = torch.zeros(1, dtype=torch.long, device=hidden_WH.device)

    def of(new: torch.Tensor, old: torch.Tensor, cold: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        score = ScoredPositions(none, none, cold)
        new, old = (_logprobs(x, head, score, factor, cap) for x in (new, old))
        half = torch.logaddexp(new, old) - math.log(2)
        apart = (new.exp() * (new - half) + old.exp() * (old - half)).sum(-1) / 2
        return apart, (old.exp() * (old - new)).sum(-1).detach()

    found = []
    size = max(1, PIECE_ELEMENTS // head.weight.shape[0])
    for piece in torch.split(torch.arange(len(hidden_WH), device=hidden_WH.device), size):
        cold = inverse_temperature_W[piece] if inverse_temperature_W is not None else None
        asked = hidden_WH[piece], teacher_WH[piece], cold
        again = hidden_WH.requires_grad
        found.append(torch.utils.checkpoint.checkpoint(of, *asked, use_reentrant=False) if again else of(*asked))
    return torch.cat([one for one, _ in found]), torch.cat([other for _, other in found])


def _compare(
    hidden_SH: torch.Tensor, head: torch.nn.Linear, score: ScoredPositions, factor: float, cap: float | None
) -> None:
    """Remember hidden states, or compare with those that are remembered."""
    now_PH = hidden_SH[score.places_P]
    if score.hidden_PH is None:
        score.hidden_PH = now_PH
        return
    cold = score.inverse_temperature_S
    with torch.no_grad():
        cold_P = None if cold is None else cold[score.places_P]
        score.kl_P = exact_kl(score.hidden_PH, now_PH, head, cold_P, factor, cap)


def add_scored_head(model: PreTrainedModel, decoder: Callable[..., torch.Tensor] = decode) -> None:
    """After this ``model(..., score=ScoredPositions)`` returns (log-probabilities, entropies), flat (S) in fp32;
    entropies without gradient. Where some have a teacher, ``teacher_gaps`` follow.

    Without ``score`` the forward is what it was. It is a keyword of the forward, not a function beside it, so that
    the wrappers of data parallelism see it. ``model``: a transformers causal LM, not wrapped.
    """
    original = model.forward
    factor, cap = _scales(model)

    @functools.wraps(type(model).forward)
    def forward(self: Any, *args: Any, score: ScoredPositions | None = None, **kwargs: Any) -> Any:
        if score is None:
            return original(*args, **kwargs)
        hidden = decoder(self, *args, **kwargs)
        hidden_SH = hidden.reshape(-1, hidden.shape[-1]).index_select(0, score.source_S)
        head = self.get_output_embeddings()
        if score.places_P is not None:
            _compare(hidden_SH.detach(), head, score, factor, cap)
        small = len(hidden_SH) * head.weight.shape[0] <= DIRECT_LIMIT
        found = (_direct if small else _chunked)(hidden_SH, head, score, factor, cap)
        if score.taught_W is None or score.teacher_WH is None:
            return found
        cold = score.inverse_temperature_S
        cold = None if cold is None else cold[score.taught_W]
        return *found, *teacher_gaps(hidden_SH[score.taught_W], score.teacher_WH, head, cold, factor, cap)

    model.forward = types.MethodType(forward, model)
