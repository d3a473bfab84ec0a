"""Small passes of the decoder as CUDA graphs.

A small model's pass on few tokens is thousands of short kernels, and the CPU takes longer to launch them than the GPU
to run them: 49 ms for 15 on Gemma 3 270M with 32 rows of 128 tokens (an H200). As a graph they are launched at once.

A graph is of one shape: rows are filled up to a few counts. It is captured once its shape has come up
``capture_after`` times, and used if it computes what the decoder does. Where one can't be captured, or memory runs out,
passes stay as they were.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)

LAUNCH_BOUND_WORK = 5e12
"""Weights × tokens of a pass below which launching takes longer than computing: 20 ms of an H200."""
CAPTURE_AFTER = 24
"""Passes of a shape before it is captured: that takes a second, and a graph saves 0.04 of them a pass (Gemma 3 270M,
an H200). Shapes of small batches are captured before the first one comes (``run/warmup.py``)."""
ROWS_MULTIPLE = 16
MAX_GRAPHS = 12
MAX_DIFFERENCE = 0.05
"""Largest mean difference of a graph's hidden states and gradients, as a share of their mean size."""
CAPTURED_ATTENTION = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Attention's kernels that every capture takes."""
INPUT_NAMES = ("input_ids", "position_ids", "attention_mask")
Graph = Callable[..., torch.Tensor]
Shape = tuple[int, int, torch.dtype]
"""Rows, tokens of a row, and the mask's number format."""


def decode(model: PreTrainedModel, *args: Any, **inputs: Any) -> torch.Tensor:
    """The decoder's last hidden states, (rows, tokens, hidden)."""
    hidden: torch.Tensor = model.base_model(*args, use_cache=False, **inputs).last_hidden_state
    return hidden


def filled_rows(rows: int) -> int:
    """Rows of the graph that computes ``rows``: few graphs serve all small batches. A single row is a whole batch."""
    step = max(ROWS_MULTIPLE, 1 << max(0, rows.bit_length() - 3))
    return -(-rows // step) * step if rows > 1 else rows


class _Decoder(torch.nn.Module):
    """What is captured. Its parameters are the trained ones alone: those that a backward pass has gradients for."""

    def __init__(self, model: PreTrainedModel, trained: Sequence[torch.nn.Parameter]) -> None:
        super().__init__()
        self.trained = torch.nn.ParameterList(trained)
        self._of = (model,)  # a module in a tuple is none of this one's modules

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return decode(self._of[0], input_ids=ids, position_ids=positions, attention_mask=mask)


class DecoderGraphs:
    """Called in the decoder's place."""

    def __init__(self, model: PreTrainedModel, trained: Sequence[torch.nn.Parameter], mask_dtype: torch.dtype) -> None:
        """``mask_dtype``: of a mask that is added to the scores."""
        self.trained, self.mask_dtype = list(trained), mask_dtype
        text = model.config.get_text_config()
        self.window = min([w for w in (getattr(text, "sliding_window", None),) if w], default=sys.maxsize)
        """Tokens that each layer sees: in shorter rows one causal mask is that of all layers."""
        self.weights = sum(p.numel() for p in model.parameters())
        self.graphs: dict[Shape, Graph | None] = {}
        """None: it could not be captured, or computed something else."""
        self.seen: Counter[Shape] = Counter()
        self.capture_after = CAPTURE_AFTER
        self.off = False
        """Set for passes that a graph can't be of: layers are recomputed, or compiled."""
        self._pool: Any = None
        """The memory of all graphs: one pass is over before the next one begins."""
        self.spent = False
        """Memory ran out: no graphs any more."""
        self.used = False
        """The pass before was a graph's: it left nothing in memory that was not there."""

    def __call__(self, model: PreTrainedModel, *args: Any, **inputs: Any) -> torch.Tensor:
        self.used = False
        graph_inputs = None if args or self.off or self.spent else self._inputs(inputs)
        if graph_inputs is None:
            return decode(model, *args, **inputs)
        rows, shape, filled = graph_inputs
        if shape not in self.graphs:
            self.seen[shape] += 1
            if self.seen[shape] <= self.capture_after or len(self.graphs) >= MAX_GRAPHS:
                return decode(model, **inputs)
            self.graphs[shape] = self._captured(model, filled)
        graph = self.graphs[shape]
        self.used = graph is not None
        return graph(*filled)[:rows] if graph is not None else decode(model, **inputs)

    def clear(self) -> None:
        """Give their memory back, and capture no more."""
        self.graphs.clear()
        self.spent = True

    def _inputs(self, inputs: dict[str, Any]) -> tuple[int, Shape, list[torch.Tensor]] | None:
        """(Rows, the graph's shape, its inputs with the first row repeated below). None: no graph is of such a pass."""
        given = {name: value for name, value in inputs.items() if value is not None}
        if given.keys() == {"input_ids"} and self.window >= given["input_ids"].shape[1]:
            given |= _causal(given["input_ids"], self.mask_dtype)
        if given.keys() != {*INPUT_NAMES} or not all(isinstance(x, torch.Tensor) and x.is_cuda for x in given.values()):
            return None
        ids, _, mask = tensors = [given[name] for name in INPUT_NAMES]
        rows, tokens = ids.shape
        filled = filled_rows(rows)
        if self.weights * filled * tokens > LAUNCH_BOUND_WORK:
            return None
        more = filled - rows
        return rows, (filled, tokens, mask.dtype), [torch.cat([x, x[:1].expand(more, *x.shape[1:])]) for x in tensors]

    def _captured(self, model: PreTrainedModel, inputs: list[torch.Tensor]) -> Graph | None:
        shape, why, stream = tuple(inputs[0].shape), "", torch.cuda.current_stream()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)  # a capture's stream is its own
        for kernels in (None, CAPTURED_ATTENTION):
            try:
                with contextlib.nullcontext() if kernels is None else sdpa_kernel(kernels):
                    return self._checked(model, inputs)
            except Exception as e:  # whatever it is, passes go on as they were
                why = str(e).splitlines()[0] if str(e) else repr(e)
                torch.cuda.set_stream(stream)
                torch.cuda.synchronize()
        log.warning("passes of %s are not captured as a CUDA graph, which costs time alone: %s", shape, why)
        return None

    def _checked(self, model: PreTrainedModel, inputs: list[torch.Tensor]) -> Graph:
        """Raises ``RuntimeError`` where it can't be captured, or computes something else."""
        with torch.enable_grad(), _uncached_autocast():
            wanted = _pass(_Decoder(model, self.trained), inputs, self.trained)
            graph = _Decoder(model, self.trained)
            sample = tuple(x.clone() for x in inputs)
            torch.cuda.make_graphed_callables(graph, sample, allow_unused_input=True, pool=self._pool)
            off = _difference(wanted, _pass(graph, inputs, self.trained))
        if not off <= MAX_DIFFERENCE:
            raise RuntimeError(f"it computes something else, {off:.3g} apart")
        return graph


def _causal(ids: torch.Tensor, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Places and mask of rows of one sequence each, which transformers makes by looking at their values."""
    rows, n = ids.shape
    order = torch.arange(n, device=ids.device)
    later = order[None, :] > order[:, None]
    mask = torch.zeros(n, n, dtype=dtype, device=ids.device).masked_fill_(later, float("-inf"))
    return {"position_ids": order.expand(rows, n), "attention_mask": mask.expand(rows, 1, n, n)}


def _uncached_autocast() -> torch.autocast:
    """As it is now, but each graph casts the weights itself."""
    on, kind = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    return torch.autocast("cuda", kind, enabled=on, cache_enabled=False)


def _pass(decoder: Graph, inputs: list[torch.Tensor], trained: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    """Hidden states and the gradients of their sum's square, as copies."""
    hidden = decoder(*inputs)
    grads = torch.autograd.grad(hidden, trained, hidden.detach() / hidden.numel(), allow_unused=True)
    return [hidden.detach().float(), *(g.clone().float() for g in grads if g is not None)]


def _difference(wanted: list[torch.Tensor], found: list[torch.Tensor]) -> float:
    """The hidden states' and all gradients' mean difference over their mean size, the larger of both."""
    if len(wanted) != len(found):
        return float("inf")

    def apart(of: slice) -> float:
        size = sum(float(w.abs().sum()) for w in wanted[of])
        return sum(float((w - f).abs().sum()) for w, f in zip(wanted[of], found[of], strict=True)) / max(size, 1e-30)

    return max(apart(slice(0, 1)), apart(slice(1, None)))
