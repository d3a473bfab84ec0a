from __future__ import annotations

import json

import pytest
from tests.support.families import make_family

from slipstream.errors import StartError
from slipstream_trainer.model.policy import attention_of, auto_class, skeleton


def described(architecture: str, model_type: str):
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[model_type](architectures=[architecture])


@pytest.mark.parametrize(
    ("architecture", "model_type", "kind"),
    [
        ("Qwen3ForCausalLM", "qwen3", "AutoModelForCausalLM"),
        ("Qwen3_5ForConditionalGeneration", "qwen3_5", "AutoModelForImageTextToText"),
        ("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", "AutoModelForImageTextToText"),
        ("Gemma3ForConditionalGeneration", "gemma3", "AutoModelForImageTextToText"),
        ("Gemma3ForCausalLM", "gemma3_text", "AutoModelForCausalLM"),
    ],
)
def test_the_class_is_that_of_the_whole_model_which_the_engine_serves(architecture, model_type, kind) -> None:
    assert auto_class(described(architecture, model_type)).__name__ == kind


def test_a_model_that_writes_no_text_is_refused_in_words(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "clip", "architectures": ["CLIPModel"]}))
    with pytest.raises(StartError, match="no class for CLIPModel.*trainer.enabled"):
        skeleton(str(tmp_path))


def test_attention_is_what_the_class_has(tmp_path) -> None:
    from transformers import GptOssForCausalLM, Qwen3ForCausalLM

    capped, plain = (skeleton(str(make_family(name, tmp_path / name))) for name in ("gemma2", "gemma3_text"))
    assert attention_of(capped, tree=False) == "eager", "SDPA has no cap for its scores"
    assert attention_of(plain, tree=False) == "sdpa"

    assert attention_of(GptOssForCausalLM, tree=False) == "eager"
    assert attention_of(Qwen3ForCausalLM, tree=False) == "sdpa"
