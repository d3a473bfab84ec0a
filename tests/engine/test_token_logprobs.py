"""The kernels for the sampled tokens' log-probabilities: equal to float64's, whatever is masked. They need a GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from types import SimpleNamespace
from typing import Any

from slipstream_vllm import token_logprobs

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="Triton's kernels need a GPU")


@gpu
@pytest.mark.parametrize("rows", [1, 8, 300])
@pytest.mark.parametrize("vocabulary", [5, 8192, 152_064])
@pytest.mark.parametrize("masked", ["nothing", "most", "all but one"])
def test_values_are_those_of_float64(rows: int, vocabulary: int, masked: str) -> None:
    torch.manual_seed(rows + vocabulary)
    logits = 5 * torch.randn(rows, vocabulary, device="cuda")
    ids = torch.randint(vocabulary, (rows,), device="cuda")
    if masked == "most":
        logits.masked_fill_(torch.rand_like(logits) < 0.99, float("-inf"))
    if masked == "all but one":
        logits.fill_(float("-inf"))
    logits.scatter_(1, ids[:, None], 1.5)
    found, ranks = token_logprobs.sampled_logprobs(logits, ids)
    expected = logits.double().log_softmax(1).gather(1, ids[:, None])
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=0)
    assert torch.equal(ranks, (logits >= logits.gather(1, ids[:, None])).sum(1))


def test_all_other_cases_are_left_to_vllm() -> None:
    """Further tokens, and logits that are not on a GPU."""
    asked: list[tuple[Any, ...]] = []
    compute = token_logprobs.in_parts(lambda *given, **_: asked.append(given))
    logits, ids = torch.zeros(2, 3), torch.tensor([0, 1])
    for number in (0, 2):
        compute(logits, number, ids)
    cuda = SimpleNamespace(is_cuda=True, stride=lambda _: 1)
    compute(cuda, 0, ids, None, max_per_req_token_ids=1)
    assert [given[1] for given in asked] == [0, 2, 0]


@pytest.mark.parametrize(("mode", "dtype"), [("processed_logprobs", "float32"), ("raw_logprobs", "bfloat16")])
def test_the_kernels_are_used_before_the_first_call(monkeypatch: pytest.MonkeyPatch, mode: str, dtype: str) -> None:
    used: list[tuple[tuple[int, ...], str, str]] = []
    zeros = torch.zeros
    monkeypatch.setattr("torch.zeros", lambda *a, **k: zeros(*a, **k | {"device": "cpu"}))
    monkeypatch.setattr(
        token_logprobs, "sampled_logprobs", lambda a, b: used.append((tuple(a.shape), str(a.dtype), str(b.dtype)))
    )
    described = SimpleNamespace(logprobs_mode=mode, dtype=torch.bfloat16, get_vocab_size=lambda: 77)

    def worker(device: str, second: bool) -> SimpleNamespace:
        return SimpleNamespace(model_config=described, device=torch.device(device), use_v2_model_runner=second)

    warm_up = token_logprobs.used_once(lambda _: len(used))
    assert warm_up(worker("cuda", True)) == 1, "before vLLM warms up"
    assert used.pop() == ((2, 77), f"torch.{dtype}", "torch.int64")
    assert warm_up(worker("cpu", True)) == warm_up(worker("cuda", False)) == 0, "they are not launched there"
    assert warm_up(SimpleNamespace()) == 0, "a worker of another vLLM warms up as before"
