"""Playing out in process: a network that has read one game plays it."""

from __future__ import annotations

import torch
from common import hermes, pretrain, sampling

WORDS = ["go", "on", "tools"]
PIECES = [hermes.fixed_call("step", to="on"), hermes.fixed_call("step", to="off")]
TOOLS = [{"type": "function", "function": {"name": "step"}}]


class Walk:
    """Two steps "on" are a reward of 1; a reply without a step ends it."""

    def __init__(self):
        self.messages = [{"role": "user", "content": "go"}]
        self.tools = TOOLS
        self.done = False
        self.reward = 0.0
        self.steps = 0

    def act(self, message):
        self.messages.append(message)
        calls = message.get("tool_calls")
        self.steps += 1
        if not calls or '"off"' in calls[0]["function"]["arguments"]:
            self.done = True
        else:
            self.messages.append({"role": "tool", "content": "go on"})
            self.done, self.reward = self.steps == 2, float(self.steps == 2)


def test_a_model_plays_what_it_has_read():
    torch.manual_seed(0)
    tokenizer = hermes.build_tokenizer(WORDS, PIECES)
    step = hermes.tool_call("step", {"to": "on"})
    told = {"role": "tool", "content": "go on"}
    row = pretrain.of_messages(tokenizer, [{"role": "user", "content": "go"}, step, told, step], TOOLS)
    model = pretrain.make_network(tokenizer, WORDS, layers=1, hidden=64, intermediate=64, heads=1)
    untrained = sampling.measure(model, tokenizer, lambda i, run: Walk(), items=20, k=2, k_items=3, tokens=4)
    assert untrained["reward"] < 0.5
    pretrain.train(model, pretrain.pack([row]), steps=200, batch=4, warmup=5)
    figures = sampling.measure(model, tokenizer, lambda i, run: Walk(), items=50, k=2, k_items=5, tokens=4)
    assert figures["reward"] > 0.9
    assert figures["pass@2"] == 1.0
    assert figures["exact"] > 0.9  # a reply with words after its call is rendered without them
    assert figures["calls"] <= 2
    assert figures["tokens"] <= 5
