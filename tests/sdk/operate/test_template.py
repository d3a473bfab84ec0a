"""What a chat template does, found out by running it. (Published ones: ``tests/engine/test_parsers.py``.)"""

from __future__ import annotations

from slipstream.engines.vllm.template import run

CALLS = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
)


def test_a_call_stands_as_the_template_writes_it() -> None:
    facts = run("{{ tools }}" + CALLS + "{% if add_generation_prompt %}<|assistant|>{% endif %}")
    assert facts is not None
    assert facts.call == '<|assistant|><call>get_weather{"city": "Oslo", "days": 2}'
    assert (facts.tools, facts.prompt, facts.hybrid, facts.opened, facts.closed) == (
        True,
        "<|assistant|>",
        False,
        False,
        False,
    )


def test_arguments_as_text_and_calls_without_content() -> None:
    facts = run(
        "{% for m in messages if m.content is none %}{{ 'c' + m.tool_calls[0].function.name + m.tool_calls[0].function.arguments }}{% endfor %}"
    )
    assert facts is not None
    assert facts.call == 'cget_weather{"city": "Oslo", "days": 2}'
    assert not facts.tools


def test_how_a_reply_begins() -> None:
    def begun(prompt: str) -> tuple[bool, bool, bool]:
        facts = run(CALLS + "{% if add_generation_prompt %}" + prompt + "{% endif %}")
        assert facts is not None
        return facts.opened, facts.closed, facts.hybrid

    assert begun("A<think>\n") == (True, False, False)
    assert begun("A{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}") == (
        False,
        False,
        True,
    )
    assert begun("A{% if enable_thinking %}<think>{% else %}<think>\n\n</think>\n\n{% endif %}") == (False, True, True)


def test_what_cannot_be_run_tells_nothing() -> None:
    assert run("{% unknown %}") is None
    assert run("{{ raise_exception('only images') }}") is None
    assert run("{{ ''.__class__.__mro__ }}") is None, "it runs in a sandbox"
    facts = run(
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}{{ strftime_now('%Y') }}"
    )
    assert facts is not None
    assert facts.call == ""
