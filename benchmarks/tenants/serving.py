"""Many tenants at few slots: does each get its own adapter, and what does a cold one wait?

    python -m benchmarks.tenants.serving [--tenants 64 --slots 8] [--calls 1000] [--out benchmarks/results/tenants.json]

Real vLLM by `slipstream up`. Each tenant's adapter makes the model say one token, which is the tenant's name. Two
agents a slot call, each for a tenant that is drawn by Zipf's law, so that some wait for a slot. vLLM's host memory keeps two
adapters a slot, so that others are read from their files. A call is cold if its tenant is not among those that called
last, as many as there are slots. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tomli_w
from benchmarks.harness import EXAMPLES, RESULTS, Up, child_env, provenance, quantile, report, say, slipstream, wait_for
from openai import AsyncOpenAI

from slipstream.client import Client
from slipstream.contract import AdapterIn
from slipstream_proxy.keys import Keys

MODEL = EXAMPLES / "inbox" / "model"
TOKENS, LOUDNESS = 6, 40.0
"""Tokens of a reply, and how much longer than the model's own the vector is that an adapter adds."""

GIVEN_AT_ONCE = 6


class Names:
    """Adapters that say one token: they add its direction to what the last layer makes."""

    def __init__(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokens = AutoTokenizer.from_pretrained(MODEL)
        model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
        seen: list[torch.Tensor] = []
        down = model.model.layers[-1].mlp.down_proj
        down.register_forward_hook(lambda _, given, __: seen.append(given[0].reshape(-1, given[0].shape[-1])))
        with torch.no_grad():
            for number in range(8):
                asked = [{"role": "user", "content": f"number {number}: who are you?"}]
                model(
                    torch.tensor(
                        [self.tokens.apply_chat_template(asked, return_dict=False, add_generation_prompt=True)]
                    )
                )
                model(torch.randint(2, 400, (1, 64)))
        inputs_NI = torch.cat(seen)
        gram_II = inputs_NI.T @ inputs_NI + 1e-2 * torch.eye(inputs_NI.shape[1])
        self.ones_I = torch.linalg.solve(gram_II, inputs_NI.sum(0))
        """Whatever goes into the layer, its product with this is about 1."""
        heads_VD = model.lm_head.weight.detach()
        self.directions_VD = torch.nn.functional.normalize(model.model.norm.weight.detach() * heads_VD, dim=-1)
        scores_VV = (self.directions_VD * model.model.norm.weight.detach()) @ heads_VD.T
        self.sayable = [
            token
            for token in range(len(heads_VD))
            if int(scores_VV[token].argmax()) == token and str(self.tokens.decode([token])).strip().isalnum()
        ]
        random.Random(0).shuffle(self.sayable)

    def write(self, folder: Path, token: int) -> None:
        from safetensors.torch import save_file

        folder.mkdir(parents=True)
        place = "base_model.model.model.layers.1.mlp.down_proj.lora"
        outer_DR = (LOUDNESS * self.directions_VD[token]).unsqueeze(1).contiguous()
        save_file(
            {f"{place}_A.weight": self.ones_I.unsqueeze(0).contiguous(), f"{place}_B.weight": outer_DR},
            folder / "adapter_model.safetensors",
        )
        told = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "bias": "none", "target_modules": ["down_proj"]}
        (folder / "adapter_config.json").write_text(json.dumps({**told, "base_model_name_or_path": str(MODEL)}))


class Traffic:
    def __init__(self, url: str, keys: dict[str, str], said: dict[str, str], slots: int) -> None:
        # no retries: a call that failed is to be seen
        self.agents = {
            name: AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=120)
            for name, key in keys.items()
        }
        self.said, self.slots = said, slots
        self.lately: OrderedDict[str, None] = OrderedDict()
        self.first: dict[str, list[float]] = {"cold": [], "warm": []}
        self.failed, self.wrong = list[str](), list[str]()

    async def call(self, name: str) -> None:
        kind = "warm" if name in self.lately else "cold"
        self.lately[name] = None
        self.lately.move_to_end(name)
        while len(self.lately) > self.slots:
            self.lately.popitem(last=False)
        began, first, text = time.monotonic(), 0.0, ""
        try:
            stream = await self.agents[name].chat.completions.create(
                model="inbox",
                messages=[{"role": "user", "content": "who are you?"}],
                max_tokens=TOKENS,
                temperature=0,
                stream=True,
            )
            async for chunk in stream:
                piece = chunk.choices[0].delta.content if chunk.choices else None
                if piece and not first:
                    first = time.monotonic() - began
                text += piece or ""
        except Exception as e:
            self.failed.append(f"{name}: {type(e).__name__}: {e}")
            return
        self.first[kind].append(first)
        if text.strip() != self.said[name]:
            self.wrong.append(f"{name} said {text!r} and not {self.said[name]!r}")

    async def run(self, calls: int) -> None:
        chance, names = random.Random(1), list(self.agents)
        weights = [1 / (n + 1) for n in range(len(names))]
        drawn = iter(chance.choices(names, weights, k=calls))

        async def agent() -> None:
            for name in drawn:
                await self.call(name)

        await asyncio.gather(*(agent() for _ in range(2 * self.slots)))
        for one in self.agents.values():
            await one.close()


def serve(up: Up, keys: dict[str, str], names: Names) -> dict[str, str]:
    """Give each tenant its adapter. → Tenant → what it says."""
    data, tokens = up.log.parent / "data" / "tenants", dict(zip(keys, names.sayable, strict=False))

    def give(name: str) -> None:
        with Client(up.url, keys[name], timeout=120.0) as client:
            wait_for(client.status, 300, 0.5, f"the control plane of {name}")
            names.write(data / name / "adapters" / "inbox@1", tokens[name])
            client.add_adapter(AdapterIn(path="inbox@1"))
            wait_for(lambda: client.status().models["inbox"] == "inbox@1", 240, 1.0, f"the adapter of {name}")

    with ThreadPoolExecutor(GIVEN_AT_ONCE) as pool:
        list(pool.map(give, keys))
    return {name: str(names.tokens.decode([token] * TOKENS)).strip() for name, token in tokens.items()}


def measured(tenants: int, slots: int, calls: int) -> dict[str, Any]:
    names = Names()
    if len(names.sayable) < tenants:
        raise SystemExit(f"the model can say {len(names.sayable)} names")
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        keep = Keys(folder / "data" / "keys.json")
        ops = keep.add("ops", ("admin",))[1]
        keys = {f"t{n}": keep.add(f"t{n}", ("admin",), tenant=f"t{n}")[1] for n in range(tenants)}
        settings = {
            "data_dir": str(folder / "data"),
            "proxy": {"port": 0},
            "engine": {
                "model": str(MODEL), "name": "inbox", "max_model_len": 256, "max_loras": slots,
                "args": ["--max-num-seqs", "16", "--max-cpu-loras", str(2 * slots)],
            },
            "trainer": {"enabled": False},
            "gate": {"holdout": 0.0},
        }  # fmt: skip
        config = folder / "slipstream.toml"
        config.write_text(tomli_w.dumps(settings))
        with Up([*slipstream("up", "--config", str(config)), "--verbose"], folder / "up.log", env=child_env()) as up:
            if not up.ready(500):
                raise SystemExit(f"up is not ready:\n{up.text[-4000:]}")
            say(f"ready; {tenants} tenants get their adapters")
            began = time.monotonic()
            said = serve(up, keys, names)
            given = time.monotonic() - began
            say(f"all have theirs after {given:.0f} s; {calls} calls")
            traffic = Traffic(up.url, keys, said, slots)
            asyncio.run(traffic.run(calls))
            time.sleep(5.0)  # the engine is asked what it counted
            with Client(up.url, ops) as client:
                use = [t.adapter_use for t in client.tenants().tenants]
    for line in (traffic.failed + traffic.wrong)[:10]:
        say(line)
    p99 = {kind: quantile(values, 0.99) for kind, values in traffic.first.items()}
    return {
        "tenants": tenants,
        "slots": slots,
        "agents": 2 * slots,
        "calls": calls,
        "failed": len(traffic.failed),
        "wrong": len(traffic.wrong),
        "first_token_s": {
            kind: {"calls": len(v), "p50": round(quantile(v, 0.5), 3), "p99": round(p99[kind], 3)}
            for kind, v in traffic.first.items()
        },
        "cold_beyond_warm_p99_s": round(p99["cold"] - p99["warm"], 3),
        "adapters_given_s": round(given, 1),
        "engine": {
            field: round(sum(getattr(one, field) for one in use), 2)
            for field in ("calls", "hits", "loads", "reads", "load_seconds", "waits", "wait_seconds")
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tenants", type=int, default=12)
    parser.add_argument("--slots", type=int, default=3)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--out", type=Path, default=RESULTS / "tenants.json")
    args = parser.parse_args()
    found = measured(args.tenants, args.slots, args.calls)
    before = json.loads(args.out.read_text()) if args.out.exists() else {}
    report({**before, "serving": {**found, "made_by": provenance()}}, args.out)
    if found["failed"] or found["wrong"]:
        raise SystemExit(f"{found['failed']} calls failed, {found['wrong']} had a wrong adapter")


if __name__ == "__main__":
    main()
