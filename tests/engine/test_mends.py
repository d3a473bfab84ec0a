"""On a CPU, calls to the base model get no adapter's weights, and heads are turned by their own positions.
Adapters lie beside weights in INT8. Mistral's tokenizer gets its grammar.
"""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from benchmarks.models.speakers import tekken_of
from tests.support.adapters import make_adapter

torch = pytest.importorskip("torch")
lora_ops = pytest.importorskip("vllm.lora.ops.torch_ops.lora_ops")

from slipstream_vllm import mends, parts_of

SLOTS, RANK, SIZE = 3, 2, 5


def changed() -> ModuleType:
    """vLLM's own functions in a module of our own, masked."""
    module = ModuleType("changed")
    for name in mends.CPU_LORA_FUNCTIONS:
        known = getattr(lora_ops, name)
        setattr(module, name, getattr(known, "__wrapped__", known))
    mends.change((module,), module)
    return module


def test_rows_of_the_base_model_stay_as_they_were() -> None:
    ops = changed()
    inputs, down = torch.randn(4, SIZE), torch.randn(SLOTS, RANK, SIZE)
    indices = torch.tensor([0, -1, 2, -1])
    shrunk = torch.full((4, RANK), 7.0)
    ops.bgmv_shrink(inputs, down, shrunk, indices, 0.5)
    for row, slot in enumerate(indices.tolist()):
        expected = 0.5 * down[slot] @ inputs[row] if slot >= 0 else torch.zeros(RANK)
        assert torch.allclose(shrunk[row], expected, atol=1e-6)
    up, output = torch.randn(SLOTS, SIZE, RANK), torch.randn(4, SIZE)
    before, given = output.clone(), torch.randn(4, RANK)
    ops.bgmv_expand(inputs=given, lora_b_weights=up, output_tensor=output, lora_indices_tensor=indices, add_inputs=True)
    assert torch.equal(output[[1, 3]], before[[1, 3]])
    assert torch.allclose(output[0], before[0] + up[0] @ given[0], atol=1e-6)


def test_what_vllm_does_alone_is_another_thing() -> None:
    """Once it fails, vLLM has mended it, and the module can go."""
    known = getattr(lora_ops.bgmv_shrink, "__wrapped__", lora_ops.bgmv_shrink)
    shrunk = torch.zeros(1, RANK)
    known(torch.ones(1, SIZE), torch.ones(SLOTS, RANK, SIZE), shrunk, torch.tensor([-1]), 1.0)
    assert shrunk.abs().sum() > 0


def test_rows_with_an_adapter_are_bit_for_bit_as_before() -> None:
    ops, indices = changed(), torch.tensor([1, 0, 2])
    inputs, down = torch.randn(3, SIZE), torch.randn(SLOTS, RANK, SIZE)
    ours, theirs = torch.zeros(3, RANK), torch.zeros(3, RANK)
    ops.bgmv_shrink(inputs, down, ours, indices, 1.0)
    getattr(lora_ops.bgmv_shrink, "__wrapped__", lora_ops.bgmv_shrink)(inputs, down, theirs, indices, 1.0)
    assert torch.equal(ours, theirs)


def test_other_parameters_are_refused() -> None:
    module = ModuleType("other")
    for name in mends.CPU_LORA_FUNCTIONS:
        setattr(module, name, lambda x, weights: None)
    with pytest.raises(TypeError, match="takes"):
        mends.change((module,), module)


def test_each_head_is_turned_by_its_tokens_position() -> None:
    """Once the kernel alone is right, vLLM has mended it, and the change can go."""
    ops = pytest.importorskip("vllm._custom_ops")
    tokens, heads, size = 5, 2, 32
    angles = torch.arange(tokens)[:, None] / 10.0 ** torch.arange(size // 2)
    table = torch.cat([angles.cos(), angles.sin()], -1)

    def kernel(_, positions, query, key):
        ops.rotary_embedding(positions, query, key, size, table, True)
        return query, key

    query, key = torch.randn(tokens, heads, size), torch.randn(tokens, 1, size)
    low, high = query.chunk(2, -1)
    cos, sin = (t[:, None] for t in table.chunk(2, -1))
    expected = torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
    found, turned_key = mends.without_heads(kernel)(None, torch.arange(tokens), query.clone(), key.clone())
    assert torch.allclose(found, expected, atol=1e-5)
    assert turned_key.shape == key.shape and not torch.equal(turned_key[1:], key[1:])
    assert not torch.allclose(kernel(None, torch.arange(tokens), query.clone(), key.clone())[0], expected, atol=1e-2)


def test_an_adapter_lies_beside_packed_weights() -> None:
    """Of INT8: on a CPU vLLM lets their layer's ``weight`` be None. Once it takes that, the change can go."""
    from vllm.lora.layers import base_linear, utils

    packed = SimpleNamespace(weight=None)
    with pytest.raises(AttributeError):
        utils._get_lora_device(packed)
    assert mends.install()
    assert base_linear._get_lora_device(packed) == torch.device("cpu")


def test_mistral_s_grammar_is_asked_for_as_mistral_common_wants() -> None:
    """Once vLLM's own call is taken, the change can go."""
    factory = pytest.importorskip("mistral_common.guidance.grammar_factory").GrammarFactory
    tools = importlib.import_module("mistral_common.protocol.instruct.tool_calls")
    alone = getattr(factory.get_lark_from_jinja, "__wrapped__", factory.get_lark_from_jinja)
    asked = {"template": "{{ mode }} {{ fcall }}", "json_schema": None, "parallel_tool_calls": True, "json_only": False}
    known = [tools.Tool(function=tools.Function(name=name, parameters={})) for name in ("left", "right")]
    made = Mock(spec=factory)
    made._render.side_effect = lambda **named: named
    with pytest.raises(TypeError, match="force_tool_names"):
        alone(made, mode="auto", tools=known, **asked)
    render: Any = mends.as_asked(alone)
    auto = render(made, mode="auto", tools=known, **asked)
    assert (auto["mode"], auto["tools"], auto["force_tool_names"]) == ("auto", known, False)
    one = tools.NamedToolChoice(function=tools.FunctionName(name="right"))
    named = render(made, mode=one, tools=known, **asked)
    assert (named["mode"], named["tools"], named["force_tool_names"]) == ("required", known[1:], True)
    assert render(made, mode="auto", tools=known, force_tool_names=True, **asked)["force_tool_names"] is True


@pytest.mark.parametrize(
    ("more", "form"),
    [
        ({}, False),
        ({"tool_choice": "auto"}, False),
        ({"tool_choice": "none"}, False),
        ({"response_format": {"type": "text"}}, False),
        ({"tool_choice": "required"}, True),
        ({"tool_choice": {"type": "function", "function": {"name": "right"}}}, True),
        ({"response_format": {"type": "json_object"}}, True),
        ({"structured_outputs": {"json": {"type": "object"}}}, True),
    ],
)
def test_only_a_call_that_asks_for_a_form_gets_mistral_s_grammar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], form: bool
) -> None:
    """Else the engine's log-probabilities are not the model's."""
    parser = importlib.import_module("vllm.parser.mistral").MistralParser
    factory = importlib.import_module("mistral_common.guidance.grammar_factory").GrammarFactory
    protocol = importlib.import_module("vllm.entrypoints.openai.chat_completion.protocol")
    kind = importlib.import_module("vllm.tokenizers.mistral").MistralTokenizer
    tekken_of(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "mistral"}')
    known = kind.from_pretrained(str(tmp_path))
    tools = [{"type": "function", "function": {"name": "right", "parameters": {"type": "object", "properties": {}}}}]
    told = {"tools": tools} if "tool_choice" in more else {}
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "model": "m", **told, **more}
    monkeypatch.setattr(factory, "get_lark_from_jinja", mends.as_asked(factory.get_lark_from_jinja))

    def grammar() -> bool:
        asked = parser(known).adjust_request(protocol.ChatCompletionRequest(**body))
        return bool(asked.structured_outputs and asked.structured_outputs.grammar)

    assert grammar(), "what vLLM does alone: once this fails, the change can go"
    monkeypatch.setattr(parser, "adjust_request", mends.for_forms(parser.adjust_request))
    assert grammar() is form
    letters = parser(Mock(spec=["get_vocab"], get_vocab=lambda: {"[TOOL_CALLS]": 1, "[ARGS]": 2}))
    asked = letters.adjust_request(protocol.ChatCompletionRequest(**body))
    assert asked.skip_special_tokens is False, "with another tokenizer it is as before"


@pytest.mark.parametrize("free", ["1", "0", None])
def test_mistral_s_grammar_stays_if_nobody_says_otherwise(monkeypatch: pytest.MonkeyPatch, free: str | None) -> None:
    """A vLLM that was not started by `slipstream up` keeps its way."""
    monkeypatch.delenv(mends.FREE_REPLIES, raising=False)
    if free:
        monkeypatch.setenv(mends.FREE_REPLIES, free)
    registry = importlib.import_module("vllm.tokenizers.registry").TokenizerRegistry
    parser = importlib.import_module("vllm.parser.mistral").MistralParser
    factory = importlib.import_module("mistral_common.guidance.grammar_factory").GrammarFactory
    monkeypatch.setitem(vars(registry), "load_tokenizer_cls", registry.load_tokenizer_cls)
    monkeypatch.setattr(parser, "adjust_request", parser.adjust_request)
    monkeypatch.setattr(factory, "get_lark_from_jinja", factory.get_lark_from_jinja)
    mends.install_grammar()
    registry.load_tokenizer_cls("hf")
    assert not hasattr(parser.adjust_request, "for_forms")
    registry.load_tokenizer_cls("mistral")
    assert hasattr(parser.adjust_request, "for_forms") is (free == "1")


@pytest.mark.parametrize(("cpu", "kinds"), [(False, {"M": True, "N": False}), (True, {"M": False, "N": False})])
def test_a_kernel_serves_any_number_of_tokens_on_a_gpu(
    cpu: bool, kinds: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Mock(params=[SimpleNamespace(name=name, do_not_specialize=False) for name in kinds])
    monkeypatch.setattr(mends, "resolve", lambda path: kernel)
    monkeypatch.setattr("vllm.platforms.current_platform", Mock(is_cpu=lambda: cpu))
    mends.compile_for_any_number()
    assert {p.name: p.do_not_specialize for p in kernel.params} == kinds


@pytest.mark.parametrize("process", ["MainProcess", "EngineCore_DP0", "VllmWorker-0"])
def test_every_process_that_computes_is_changed(process: str) -> None:
    assert {"lora", "worker"} <= set(parts_of(process)), "a fork has its parent's: vLLM loads no plugin twice"


@pytest.mark.engine
async def test_the_base_model_beside_adapters(engine, tmp_path: Path) -> None:
    """Greedy answers of the base model are the same alone and in batches with adapters in every slot."""
    body = {"max_tokens": 24, "temperature": 0, "return_token_ids": True, "ignore_eos": True}

    async def ask(http: httpx.AsyncClient, model: str, text: str) -> list[int]:
        said = {"model": model, "messages": [{"role": "user", "content": text}], **body}
        reply = (await http.post("/v1/chat/completions", json=said)).raise_for_status()
        return list(reply.json()["choices"][0]["token_ids"])

    names = [f"cpu-lora-{n}" for n in range(4)]
    async with httpx.AsyncClient(base_url=engine.url, timeout=120, trust_env=False) as http:
        for n, name in enumerate(names):
            path = make_adapter(tmp_path / name, 50 + n)
            made = {"lora_name": name, "lora_path": str(path)}
            (await http.post("/v1/load_lora_adapter", json=made)).raise_for_status()
        try:
            for name in names:
                await ask(http, name, "warm")
            texts = [f"question {n}" for n in range(12)]
            alone = [await ask(http, "inbox", text) for text in texts]
            mixed = await asyncio.gather(
                *(ask(http, model, text) for text in texts for model in ("inbox", names[0], names[3]))
            )
        finally:
            for name in names:
                await http.post("/v1/unload_lora_adapter", json={"lora_name": name})
    same = sum(a == b for a, b in zip(alone, mixed[::3], strict=True))
    assert same >= len(texts) - 1, f"{same} of {len(texts)}"  # batches may round otherwise where two tokens tie
    assert mixed[1::3] != alone
