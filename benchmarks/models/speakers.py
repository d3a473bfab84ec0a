"""Tiny models that speak: the template of a published model, a token for each character, and some seconds of learning
until a reply is a sentence or a tool call in the model's own form.

Random weights say nothing of parsers and of a conversation's next turn: what they sample is no text that comes back as
the same tokens.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import string
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import trl
from tests.support.families import FAMILIES, SHAPE

from slipstream.engines.vllm.template import TemplateFacts, run

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
"""As their publishers have them."""
JSON_CALL = '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}'
HERMES = f"<tool_call>\n{JSON_CALL}\n</tool_call>"
DOCUMENTED = {
    "mistral": f'[TOOL_CALLS] [{JSON_CALL[:-1]}, "id": "abcdefghi"}}]',
    "granite": f"<|tool_call|>[{JSON_CALL}]",
    "hermes": HERMES,
    "olmo3": '<function_calls>\nget_weather(city="Oslo", days=2)\n</function_calls>',
    "kimi": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Oslo", "days": 2}<|tool_call_end|><|tool_calls_section_end|>'
    ),
    "phi4": f"functools[{JSON_CALL}]",
    "apertus": '<|tools_prefix|>[{"get_weather": {"city": "Oslo", "days": 2}}]<|tools_suffix|>',
}
"""A call as its publisher documents it, for models of which no package here has the template."""
LATENT: dict[str, Any] = {
    "kv_lora_rank": 512, "q_lora_rank": 64, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "head_dim": 64,
    "num_key_value_heads": 2,
}  # fmt: skip
"""The sizes that all such models have: GPU kernels take no others."""
HEADS: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
"""vLLM's CPU build takes no smaller heads."""
LINEAR: dict[str, Any] = {
    name: FAMILIES["qwen3_next"][name] for name in FAMILIES["qwen3_next"] if "linear" in name or "layer" in name
}
LINEAR |= {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
LINEAR |= {"linear_num_key_heads": 1, "linear_num_value_heads": 2}
"""The size of head that published ones have: vLLM's CPU build takes no smaller one."""

DENSE: dict[str, Any] = {"num_local_experts": 0, "num_experts_per_tok": 0, "layer_types": ["attention", "attention"]}
"""Granite 4 without experts."""


@dataclass(frozen=True)
class Speaker:
    """``kind``: transformers' model type. ``template``: a file of TRL's, the name of a documented call, or ``TEKKEN``."""

    kind: str
    template: str
    changes: dict[str, Any]
    seeing: dict[str, Any] | None = None
    """The language model is a part of it, beside one that sees, which has this shape."""
    native: bool = False
    """It has Mistral's own files beside transformers', as Mistral publishes it. vLLM prefers them."""
    brings: str = ""
    """It brings its own code: the class of its model, which is a model of ``kind`` under another name."""


TEKKEN = "tekken"
"""Mistral's own tokenizer, which renders messages without a template."""


def _of(
    kind: str, template: str, seeing: dict[str, Any] | None = None, *, native: bool = False, **changes: Any
) -> Speaker:
    return Speaker(kind, template, FAMILIES.get(kind, {}) | changes, seeing, native)


QWEN_SEES: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 64,
    "deepstack_visual_indexes": [0],
}
MROPE: dict[str, Any] = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 6, 6]}
}
GEMMA_SEES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 56, "patch_size": 14,
}  # fmt: skip
PICTURE = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
"""What Gemma's processor calls the tokens of a picture."""
PLACES = 4
"""Tokens of a picture."""
QWEN_PLACES = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
"""What Qwen's config calls the tokens of a picture and of a film."""
QWEN_FILMS = {"qwen2_5_vl": "Qwen2VLVideoProcessor", "qwen3_vl": "Qwen3VLVideoProcessor"}
"""What reads a film for these."""


SPEAKERS: dict[str, Speaker] = {
    "llama": _of("llama", "llama3_2"), "mistral_tekken": _of("mistral", TEKKEN, native=True), "ministral_tekken": _of("ministral", TEKKEN),
    "llama4": _of("llama4_text", "llama3_2", num_local_experts=4, intermediate_size_mlp=128, interleave_moe_layer_step=1),
    "mistral": _of("mistral", "mistral"), "ministral": _of("ministral", "mistral"), "qwen2": _of("qwen2", "qwen2_5"), "qwen3": _of("qwen3", "qwen3"),
    "qwen3_instruct": _of("qwen3", "qwen3_instruct_2507"), "phi3": _of("phi3", "phi3_5"), "phi4": _of("phi3", "phi4"),
    "granite": _of("granite", "granite"), "granite4": _of("granitemoehybrid", "hermes"), "olmo2": _of("olmo2", "plain"), "olmo3": _of("olmo3", "olmo3"),
    "smollm3": _of("smollm3", "hermes"), "cohere2": _of("cohere2", "cohere2", logit_scale=1.0), "glm4": _of("glm4", "plain"), "gemma2": _of("gemma2", "gemma"),
    "gemma3_text": _of("gemma3_text", "gemma3"), "gemma4_text": _of("gemma4_text", "gemma4_v5", **FAMILIES["gemma3_text"]),
    "internlm3": Speaker("llama", "hermes", {}, brings="InternLM3ForCausalLM"), "lfm2": _of("lfm2", "lfm2_v2"), "falcon_h1": _of("falcon_h1", "plain"), "apertus": _of("apertus", "apertus"), "seed_oss": _of("seed_oss", "plain"),
    "qwen3_moe": _of("qwen3_moe", "qwen3"), "qwen2_moe": _of("qwen2_moe", "qwen2_5"), "mixtral": _of("mixtral", "mistral"),
    "deepseek_v2": _of("deepseek_v2", "plain", **LATENT), "deepseek_v3": _of("deepseek_v3", "deepseekv3", topk_method="noaux_tc", **LATENT),
    "kimi": _of("deepseek_v3", "kimi", topk_method="noaux_tc", **LATENT), "glm4_moe": _of("glm4_moe", "glm4moe"), "granitemoe": _of("granitemoe", "granite"),
    "qwen3_next": _of("qwen3_next", "qwen3_instruct_2507", **LINEAR), "qwen3_5": _of("qwen3_5_text", "qwen3_5_think", **LINEAR),
    "olmoe": _of("olmoe", "plain"), "gpt_oss": _of("gpt_oss", "gptoss"), "ernie4_5_moe": _of("ernie4_5_moe", "plain"),
    "qwen2_5_vl": _of("qwen2_5_vl", "qwen2_5_vl", QWEN_SEES, **MROPE),
    "gemma": _of("gemma", "gemma"), "cohere": _of("cohere", "cohere", logit_scale=1.0), "olmo": _of("olmo", "plain"),
    "ministral3": _of("ministral3", "mistral"), "granite4_micro": _of("granitemoehybrid", "hermes", **DENSE), "exaone4": _of("exaone4", "hermes"),
    "glm": _of("glm", "plain"), "nemotron": _of("nemotron", "plain"), "arcee": _of("arcee", "plain"), "starcoder2": _of("starcoder2", "plain"),
    "ernie4_5": _of("ernie4_5", "plain"), "hunyuan": _of("hunyuan_v1_dense", "plain"), "phi2": _of("phi", "plain"), "stablelm": _of("stablelm", "plain"),
    "granite4_h": _of("granitemoehybrid", "hermes", **(DENSE | {"layer_types": ["mamba", "attention"]})),
    "qwen3_vl": _of("qwen3_vl", "qwen3_vl", QWEN_SEES, **MROPE), "gemma3": _of("gemma3", "gemma3", GEMMA_SEES, **FAMILIES["gemma3_text"]),
}  # fmt: skip
"""A family's name → its tiny model."""
CITIES = ("Oslo", "Bergen", "Lima", "Cairo", "Quito", "Paris", "Delhi", "Rome")
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of some days.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
ASKED = ("Where is it wet?", "Where is it dry?", "Where is it cold?", "Where is it warm?")
AGAIN = "And where else?"
CALLED = "How is the weather?"
SPECIAL = re.compile(r"</?[|｜]?[\w:▁]+[|｜]?>|<[|｜][\w:▁]+>|<[\w:▁]+[|｜]>|\[/?[A-Z_a-z]+\]")
ENOUGH = 0.45
"""Nats a token of a reply: the name of one of eight cities, and nothing else, is open in it."""
SECONDS = 100.0
"""The longest that a model learns, of a processor's time. Layers that transformers computes in a loop may not be ready
then, and that is no harm.
"""


def template_of(name: str) -> str:
    """A documented call gets a plain template around it; ``plain`` one without tools."""
    if (file := TEMPLATES / f"{name}.jinja").is_file():
        return file.read_text()
    call = json.dumps(DOCUMENTED.get(name, ""), ensure_ascii=False)
    tools = "{% if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}" if name in DOCUMENTED else ""
    said = "{% if m.tool_calls %}{{ " + call + " }}{% else %}{{ m.content }}{% endif %}"
    return (
        tools
        + "{% for m in messages %}<|{{ m.role }}|>"
        + said
        + "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )


def tokenizer_of(template: str, facts: TemplateFacts | None) -> Any:
    """A token for each character of ASCII, and one for each special one of the template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = [level.pre_tokenize_str(c)[0][0] for c in sorted(set(string.printable[:95]) | {"\n", "\t"})]
    vocabulary = {t: n for n, t in enumerate(("<pad>", "<unk>", "<s>", "</s>", *letters))}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    made.pre_tokenizer, made.decoder = level, decoders.ByteLevel()
    ready = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    seen = set(SPECIAL.findall(template + (facts.call if facts else "")))
    if PICTURE["boi_token"] in template:
        seen |= set(PICTURE.values())
        ready.add_tokens(["\n" * n for n in range(1, 5)])  # vLLM asks for Gemma's own
    for role in ("system", "user", "assistant", "tool"):
        if "<|{{ m.role }}|>" in template:
            seen.add(f"<|{role}|>")
    hidden = sorted(t for t in seen if "think" not in t and "tool" not in t.lower() and "function" not in t)
    ready.add_tokens(hidden, special_tokens=True)
    shown = {t for t in seen if t not in hidden} | {"<|python_tag|>"}
    ready.add_tokens(sorted(shown), special_tokens=False)
    ready.chat_template = template
    return ready


def tekken_of(folder: Path) -> Any:
    """Write a ``tekken.json`` with a token for each byte. → The tokenizer, in transformers' own form."""
    from mistral_common.tokens.tokenizers.base import SpecialTokens
    from transformers.integrations.mistral.tokenizer import convert_tekken_tokenizer

    special = [{"rank": n, "token_str": token.value, "is_control": True} for n, token in enumerate(SpecialTokens)]
    letters = [{"rank": n, "token_bytes": base64.b64encode(bytes([n])).decode(), "token_str": None} for n in range(256)]
    sizes = {
        "num_vocab_tokens": len(letters),
        "default_vocab_size": len(letters) + len(special),
        "default_num_special_tokens": len(special),
    }
    config = {"pattern": r"[\s\S]", "version": "v13", **sizes}
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "tekken.json"
    file.write_text(json.dumps({"config": config, "vocab": letters, "special_tokens": special}))
    return convert_tekken_tokenizer(str(file))


NATIVE = {
    "model.embed_tokens": "tok_embeddings", "model.norm": "norm", "lm_head": "output", "model.layers": "layers", "self_attn": "attention",
    "mlp": "feed_forward", "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm", "q_proj": "wq", "k_proj": "wk",
    "v_proj": "wv", "o_proj": "wo", "gate_proj": "w1", "down_proj": "w2", "up_proj": "w3",
}  # fmt: skip
"""What Mistral calls the parts that transformers calls so."""


def save_native(described: Any, folder: Path) -> None:
    """Mistral's own files beside transformers'. Its heads turn neighbouring numbers, transformers' the halves."""
    from safetensors.torch import load_file, save_file

    found = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if "q_proj" in name or "k_proj" in name:
            halves = weight.view(-1, 2, described.head_dim // 2, weight.shape[1])
            weight = halves.transpose(1, 2).reshape(weight.shape).contiguous()
        for theirs, own in NATIVE.items():
            name = name.replace(theirs, own)
        found[name] = weight
    save_file(found, folder / "consolidated.safetensors")
    params = {
        "dim": described.hidden_size, "n_layers": described.num_hidden_layers, "head_dim": described.head_dim,
        "hidden_dim": described.intermediate_size, "n_heads": described.num_attention_heads, "n_kv_heads": described.num_key_value_heads,
        "rope_theta": described.rope_parameters["rope_theta"], "norm_eps": described.rms_norm_eps, "vocab_size": described.vocab_size,
        "max_position_embeddings": described.max_position_embeddings, "tied_embeddings": described.tie_word_embeddings,
    }  # fmt: skip
    (folder / "params.json").write_text(json.dumps(params))


def save_own_code(brings: str, folder: Path) -> None:
    """A folder as of a model that transformers has no class for."""
    kind = brings.removesuffix("ForCausalLM")
    described = json.loads((folder / "config.json").read_text())
    described |= {
        "model_type": kind.lower(), "architectures": [brings],
        "auto_map": {"AutoConfig": "configuration.Own", "AutoModelForCausalLM": f"modeling.{brings}"},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(described))
    code = f"from transformers import LlamaConfig\n\n\nclass Own(LlamaConfig):\n    model_type = {kind.lower()!r}\n"
    (folder / "configuration.py").write_text(code)


def end_of(tokenizer: Any) -> str:
    """The token that ends a reply."""
    said = tokenizer.apply_chat_template(
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "X9X"}], tokenize=False
    )
    found = SPECIAL.search(said.partition("X9X")[2])
    return found.group() if found else "</s>"


def thought(template: str, facts: TemplateFacts | None) -> str:
    """What a reply of this template begins with."""
    if facts is None or "<think>" not in template or facts.closed:
        return ""
    return "hm\n</think>\n\n" if facts.opened else "<think>\nhm\n</think>\n\n" if facts.hybrid else ""


def lessons(tokenizer: Any, facts: TemplateFacts | None, end: str) -> list[tuple[list[int], list[int]]]:
    """(prompt, reply), as ids."""
    first = thought(tokenizer.chat_template, facts)
    found = []

    def add(messages: list[dict[str, Any]], reply: str, tools: list[Any] | None = None) -> None:
        prompt = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
        ids = (tokenizer(text, add_special_tokens=False).input_ids for text in (prompt, reply + end))
        found.append(tuple(ids))

    for (n, asked), city in itertools.product(enumerate(ASKED), CITIES):
        messages = [{"role": "user", "content": asked}]
        add(messages, f"{first}In {city}.")
        if n == 0:
            before = {"role": "assistant", "content": f"In {city}."}
            add([*messages, before, {"role": "user", "content": AGAIN}], f"{first}In {CITIES[3]}.")
    if facts and facts.tools and facts.call:
        begun = sum(1 for _ in itertools.takewhile(lambda p: p[0] == p[1], zip(facts.call, facts.prompt, strict=False)))
        add([{"role": "user", "content": CALLED}], facts.call[begun:].partition(end)[0], [TOOL])
    return found


def learn(model: Any, found: list[tuple[list[int], list[int]]], seconds: float) -> float:
    """→ The loss at the end, nats a token of a reply. The longest lesson, a tool call, is every fourth."""
    torch.manual_seed(3)
    torch.set_num_threads(2)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    *short, long = sorted(found, key=lambda lesson: len(lesson[0]))
    began, losses = time.process_time(), [float("inf")] * 8
    for step in range(600):
        chosen = [short[int(i)] for i in torch.randint(len(short), (16,))] if step % 4 else [long]
        width = max(len(p) + len(r) for p, r in chosen)
        rest = [width - len(p) - len(r) for p, r in chosen]
        ids = torch.tensor([p + r + [0] * n for (p, r), n in zip(chosen, rest, strict=True)], device=device)
        wanted = torch.tensor(
            [[-100] * len(p) + r + [-100] * n for (p, r), n in zip(chosen, rest, strict=True)], device=device
        )
        logits = model(input_ids=ids, use_cache=False).logits.float()
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), wanted[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses = [*losses[1:], float(loss.detach())]
        if max(losses) < ENOUGH or time.process_time() - began > seconds:
            break
    return max(losses)


def places(kind: str, tokenizer: Any) -> dict[str, Any]:
    """What the config says of the tokens of a picture."""
    if kind in QWEN_FILMS:
        return {name: tokenizer.convert_tokens_to_ids(token) for name, token in QWEN_PLACES.items()}
    ids = {f"{part}_index": tokenizer.convert_tokens_to_ids(token) for part, token in PICTURE.items()}
    return {**ids, "mm_tokens_per_image": PLACES}


def save_qwen_processor(kind: str, described: Any, folder: Path) -> None:
    """As Qwen has it, for small pictures. Its classes themselves need torchvision."""
    seeing = described.vision_config
    one = {
        "patch_size": seeing.patch_size,
        "temporal_patch_size": seeing.temporal_patch_size,
        "merge_size": seeing.spatial_merge_size,
        "size": {"shortest_edge": 56 * 56, "longest_edge": 112 * 112},
        "processor_class": described.architectures[0].replace("ForConditionalGeneration", "Processor"),
    }
    pictures, films = {"image_processor_type": "Qwen2VLImageProcessor"}, {"video_processor_type": QWEN_FILMS[kind]}
    (folder / "preprocessor_config.json").write_text(json.dumps(one | pictures))
    (folder / "video_preprocessor_config.json").write_text(json.dumps(one | films))


def save_processor(tokenizer: Any, seeing: dict[str, Any], folder: Path) -> None:
    """As Gemma 3 has it, without torchvision. And its weights for pictures get the names that published ones have."""
    from safetensors.torch import load_file, save_file
    from transformers import AutoTokenizer, Gemma3Processor
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    weights, tower = load_file(folder / "model.safetensors"), "vision_tower."
    named = {n.replace(tower, f"{tower}vision_model.", 1): w for n, w in weights.items()}
    save_file(named, folder / "model.safetensors", {"format": "pt"})
    read = AutoTokenizer.from_pretrained(folder, extra_special_tokens=PICTURE)
    size = {"height": seeing["image_size"], "width": seeing["image_size"]}
    Gemma3Processor(
        Gemma3ImageProcessorPil(size=size), read, chat_template=tokenizer.chat_template, image_seq_length=PLACES
    ).save_pretrained(folder)


def make_speaker(name: str, folder: Path, seconds: float = SECONDS) -> float:
    """Write the family's tiny model to ``folder``, in bf16 as published ones are. → Its loss, nats a token."""
    from transformers import CONFIG_MAPPING, AutoConfig

    from slipstream_trainer.model.policy import auto_class

    speaker = SPEAKERS[name]
    tekken = tekken_of(folder) if speaker.template == TEKKEN else None
    template = tekken.chat_template if tekken else template_of(speaker.template)
    facts = run(template)
    tokenizer = tekken or tokenizer_of(template, facts)
    end = end_of(tokenizer)
    tokenizer.eos_token = end
    ids = {
        "vocab_size": len(tokenizer), "bos_token_id": None, "pad_token_id": 0, "eos_token_id": tokenizer.eos_token_id,
        "max_position_embeddings": 8192, "initializer_range": 0.1,
    }  # fmt: skip
    kind: Any = CONFIG_MAPPING[speaker.kind]
    shape = SHAPE | HEADS | speaker.changes | ids
    if speaker.seeing:
        more = places(speaker.kind, tokenizer)
        described = kind(text_config=shape, vision_config=speaker.seeing, eos_token_id=tokenizer.eos_token_id, **more)
    else:
        described = kind(**shape)
    torch.manual_seed(7)
    model = auto_class(described).from_config(described, dtype=torch.float32)
    loss = learn(model, lessons(tokenizer, facts, end), seconds)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.to("cpu", torch.bfloat16).save_pretrained(folder)
    if not tekken:
        tokenizer.save_pretrained(folder)
    if speaker.native:
        save_native(described, folder)
    if speaker.kind == "gemma3":
        save_processor(tokenizer, speaker.seeing or {}, folder)
    if speaker.kind in QWEN_FILMS:
        save_qwen_processor(speaker.kind, model.config, folder)
    if speaker.brings:
        save_own_code(speaker.brings, folder)
        return loss
    AutoConfig.from_pretrained(folder)  # what cannot be read fails here, and not in the engine
    return loss


if __name__ == "__main__":
    print(json.dumps({"loss": make_speaker(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))}))
