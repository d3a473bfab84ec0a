"""What stands on the dashboards. Every query aggregates over ``instance``, so that the panels mean the same with one proxy or with many."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Panel:
    """``queries`` are (PromQL, legend). ``width`` is in Grafana's 24 columns."""

    title: str
    queries: list[tuple[str, str]]
    unit: str = "short"
    text: str = ""
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    red_above: float | None = None
    red_below: float | None = None
    names: tuple[tuple[int, str], ...] = ()
    """Numbers that are shown as words."""


@dataclass(frozen=True)
class Variable:
    """Chosen at the top of a dashboard. ``query``: where its values come from; all of them are chosen at first."""

    name: str
    query: str
    label: str


@dataclass(frozen=True)
class Annotation:
    """A line through all panels wherever ``query`` is true."""

    name: str
    query: str
    colour: str


@dataclass(frozen=True)
class Dashboard:
    """Each one lets its data source be chosen too."""

    name: str
    title: str
    rows: list[tuple[str, list[Panel]]] = field(default_factory=list)
    variables: tuple[Variable, ...] = ()


ADAPTER = Variable("adapter", "label_values(slipstream_calls_total, adapter)", "Adapter")
TRAINED = Variable("model", "label_values(slipstream_adapter_live_version, model)", "Model")
TAG = Variable("tag", "label_values(slipstream_tagged_calls_total, tag)", "Tag")
VALUE = Variable("value", 'label_values(slipstream_tagged_calls_total{tag=~"$tag"}, value)', "Value")
SERVED = Variable("model_name", "label_values(vllm:num_requests_running, model_name)", "Model")
ANNOTATIONS = (
    Annotation("Swaps", "max by (model) (changes(slipstream_adapter_live_version[1m])) > 0", "blue"),
    Annotation("Rollbacks", "sum(increase(slipstream_adapter_rollbacks_total[1m])) > 0", "orange"),
)


def rate(metric: str, by: str = "", where: str = "") -> str:
    group = f" by ({by})" if by else ""
    return f"sum{group} (rate({metric}{where}[$__rate_interval]))"


def quantile(q: float, metric: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket[$__rate_interval])))"


def quantiles(metric: str) -> list[tuple[str, str]]:
    return [(quantile(q, metric), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99)]


def stat(title: str, query: str, **more: Any) -> Panel:
    return Panel(title, [(query, "")], kind="stat", width=4, height=4, **more)


FAILED = '{status="5xx"}'
OF = '{adapter=~"$adapter"}'
TAGGED = '{adapter=~"$adapter", tag=~"$tag", value=~"$value"}'
MODEL = '{model_name=~"$model_name"}'
REWARD = 'max by (adapter, arm) (slipstream_reward_mean{split="%s", adapter=~"$adapter"})'
SHARE_5XX = f"({rate('slipstream_calls_total', where=FAILED)} or vector(0)) / {rate('slipstream_calls_total')}"
EVERY_REWARD = [(REWARD % "train", "{{adapter}} {{arm}}")]

VERDICTS = ((1, "accepted"), (0, "none yet"), (-1, "taken back"))


def recent(role: str, end: str = "mean") -> str:
    return f'max by (model) (slipstream_recent_reward_{end}{{role="{role}", model=~"$model"}})'


def judged(metric: str) -> str:
    return f'max by (model, adapter) (slipstream_gate_{metric}{{model=~"$model"}})'


LIVE_AGAINST_CONTROL = (
    "Live against control, last hour, with the gate's verdict",
    [
        Panel(
            "Mean reward of the last hour",
            [
                (recent("live"), "live {{model}}"),
                (recent("control"), "control {{model}}"),
                *((recent(role, end), f"{role}, {end} end") for role in ("live", "control") for end in ("low", "high")),
            ],
            width=10,
            text="Runs that began in the last hour, with 95 % intervals. Control: the same tasks with the version before.",
        ),
        Panel(
            "Live less control, with the gate's interval",
            [
                (judged("difference"), "{{adapter}}"),
                (judged("difference_lower"), "{{adapter}} at least"),
                (judged("difference_upper"), "{{adapter}} at most"),
            ],
            width=10,
            text="Below 0 as a whole: it is taken back. Of all runs since the trial began.",
        ),
        stat("Verdict on the newest version", judged("verdict"), names=VERDICTS, red_below=0),
        Panel(
            "Evidence that it is worse",
            [(judged("evidence"), "{{adapter}}"), (judged("evidence_threshold"), "{{adapter}} is taken back at")],
            width=12,
        ),
        Panel(
            "Rewarded runs of the last hour",
            [('max by (model, role) (slipstream_recent_rewarded_episodes{model=~"$model"})', "{{role}} {{model}}")],
            width=12,
        ),
    ],
)

OVERVIEW = Dashboard("overview", "Slipstream: overview", [
    ("Is the agent getting better?", [
        Panel("Mean reward of the last hour, by role", [('max by (model, role) (slipstream_recent_reward_mean{model=~"$model"})', "{{role}} {{model}}")], width=12,
              text="Runs that began in the last hour: live, control (the same tasks with the version before), held-out."),
        Panel("Held-out mean reward of the last hour", [
            (recent("held-out"), "{{model}}"), (recent("held-out", "low"), "at least"), (recent("held-out", "high"), "at most"),
        ], width=12, text="Episodes with x-slipstream-split: eval, with the 95 % interval."),
        stat("Live version", 'max by (model) (slipstream_adapter_live_version{model=~"$model"})'),
        stat("Training steps", "sum(slipstream_training_steps_total)"),
        stat("Rolled back, 24 h", "sum(increase(slipstream_adapter_rollbacks_total[1d]))", red_above=1),
        stat("Groups ready to train on", 'max(slipstream_groups{state="ready"})'),
        stat("Groups parked", 'max(slipstream_groups{state="parked"})', red_above=1),
        stat("Calls lost to capture, 24 h", "sum(increase(slipstream_capture_lost_total[1d]))", red_above=1),
    ]),
    LIVE_AGAINST_CONTROL,
    ("Is traffic healthy?", [
        Panel("Calls by outcome", [(rate("slipstream_calls_total", "outcome"), "{{outcome}}")], "reqps"),
        Panel("Time of a call", quantiles("slipstream_call_seconds"), "s"),
        Panel("Time to the first byte", quantiles("slipstream_first_byte_seconds"), "s"),
        Panel("Calls by adapter", [(rate("slipstream_calls_total", "adapter", OF), "{{adapter}}")], "reqps"),
        Panel("Tokens in and out", [(rate("slipstream_tokens_total", "direction", OF), "{{direction}}")], "ops"),
        Panel("Rewards by source (train)", [('max by (source, adapter) (slipstream_source_reward_mean{split="train", adapter=~"$adapter"})', "{{source}} {{adapter}}")]),
        stat("Engines up", "sum(max by (engine) (slipstream_engine_up))", red_below=1),
        stat("Store up", "min(slipstream_store_up)", red_below=1),
        stat("In flight", "sum(slipstream_in_flight)"),
        stat("Ingest lag", "max(slipstream_ingest_lag_seconds)", unit="s", red_above=60),
        stat("Share of 5xx", SHARE_5XX, unit="percentunit", red_above=0.05),
        stat("Judge's cost, 24 h", "sum(increase(slipstream_judge_cost_dollars_total[1d]))", unit="currencyUSD"),
    ]),
    ("Where episodes are", [
        Panel("Episodes by state", [("max by (state) (slipstream_episodes)", "{{state}}")]),
        Panel("Groups by state", [("max by (state) (slipstream_groups)", "{{state}}")]),
        Panel("Calls that can't be trained on, by reason", [("max by (reason) (slipstream_untrainable_calls)", "{{reason}}")]),
    ]),
], variables=(ADAPTER, TRAINED))  # fmt: skip

PROXY = Dashboard("proxy", "Slipstream: proxy", [
    ("Data plane", [
        Panel("Calls by format and status", [(rate("slipstream_calls_total", "format, status"), "{{format}} {{status}}")], "reqps"),
        Panel("Calls by outcome", [(rate("slipstream_calls_total", "outcome"), "{{outcome}}")], "reqps"),
        Panel("Refused by the proxy, by status", [(rate("slipstream_requests_refused_total", "status"), "{{status}}")], "reqps"),
        Panel("Time of a call", quantiles("slipstream_call_seconds"), "s"),
        Panel("Time to the first byte", quantiles("slipstream_first_byte_seconds"), "s"),
        Panel("Time that was not the engine's", quantiles("slipstream_overhead_seconds"), "s", text="Identity, pin, durability."),
        Panel("The engine's time", quantiles("slipstream_upstream_seconds"), "s"),
        Panel("Between the pieces of a stream", quantiles("slipstream_chunk_seconds"), "s"),
        Panel("In flight, queued, connections", [
            ("sum(slipstream_in_flight)", "calls in flight"), ("sum(slipstream_queued)", "of them without a byte yet"), ("sum(slipstream_connections)", "connections"),
        ]),
        Panel("Calls by adapter", [(rate("slipstream_calls_total", "adapter", OF), "{{adapter}}")], "reqps"),
        Panel("Calls by tag and adapter", [(rate("slipstream_tagged_calls_total", "tag, value, adapter", TAGGED), "{{tag}}={{value}} {{adapter}}")], "reqps"),
        Panel("Tokens in and out", [(rate("slipstream_tokens_total", "direction", OF), "{{direction}}")], "ops"),
        Panel("Other routes, passed through", [(rate("slipstream_passed_requests_total", "route, status"), "{{route}} {{status}}")], "reqps"),
        Panel("Aborted by the client", [(rate("slipstream_calls_total", where='{outcome="aborted"}'), "aborted")], "reqps"),
        Panel("Waiting for the GPU", [
            (rate("slipstream_held_calls_total"), "calls a second that wait"), ("max(slipstream_hold_longest_seconds)", "longest wait, seconds"),
        ], text="Only with engine.share."),
        Panel("Sent again to another connection or engine", [(rate("slipstream_upstream_retries_total"), "retries")], "reqps"),
        Panel("Episodes pinned, by who decided", [(rate("slipstream_pins_total", "by"), "{{by}}")], "reqps",
              text="worker: the control plane was away, or slow."),
        Panel("Event loop lag", [("max(slipstream_event_loop_lag_seconds)", "worst worker")], "s"),
    ]),
    ("Capture and store", [
        Panel("Calls lost to capture", [("sum(increase(slipstream_capture_lost_total[5m]))", "lost")], text="Must stay 0."),
        Panel("Ingest lag", [("max(slipstream_ingest_lag_seconds)", "lag")], "s"),
        Panel("Spool", [("sum(slipstream_spool_bytes)", "all segments"), ("sum(slipstream_spool_pending_bytes)", "not in the store yet")], "bytes"),
        Panel("Age of the oldest record that is not in the store", [("max(slipstream_spool_age_seconds)", "age")], "s"),
        Panel("Records into the store", [(rate("slipstream_ingest_records_total"), "records")], "ops"),
        Panel("Time of a commit", quantiles("slipstream_commit_seconds"), "s"),
        Panel("Not stored whole", [
            ("sum(slipstream_ingest_skipped_records)", "skipped"), ("sum(slipstream_ingest_unreadable_records)", "head only"),
            ("sum(slipstream_spool_damaged_segments)", "damaged segments"),
        ]),
        Panel("Stored calls", [("max(slipstream_stored_calls)", "calls")]),
        Panel("Rewards by source", [("max by (source) (slipstream_rewards)", "{{source}}")]),
        Panel("Mean reward by source", [("max by (source, split) (slipstream_source_reward_mean)", "{{source}} {{split}}")]),
        Panel("Store up", [("min(slipstream_store_up)", "up")]),
    ]),
    ("Control API", [
        Panel("Requests by route", [(rate("slipstream_control_requests_total", "route"), "{{route}}")], "reqps", width=12),
        Panel("p95 by route", [(quantile(0.95, "slipstream_control_request_seconds", "route"), "{{route}}")], "s", width=12),
    ]),
], variables=(ADAPTER, TAG, VALUE))  # fmt: skip

JUDGE = Dashboard("judge", "Slipstream: judge", [
    ("Work", [
        Panel("Groups by how it went", [(rate("slipstream_judge_groups_total", "outcome"), "{{outcome}}")], "ops"),
        Panel("Groups in progress, parked", [
            ("sum(slipstream_judge_groups_in_progress)", "in progress"), ('max(slipstream_groups{state="parked"})', "parked"),
            ('max(slipstream_groups{state="waiting_reward"})', "waiting for rewards"),
        ]),
        Panel("Episodes scored, by mode", [(rate("slipstream_judge_episodes_total", "mode"), "{{mode}}")], "ops"),
        Panel("Calls of the model and of the function, by how they went", [
            (rate("slipstream_judge_calls_total", "outcome"), "model: {{outcome}}"),
            (rate("slipstream_judge_function_calls_total", "outcome"), "function: {{outcome}}"),
        ], "reqps"),
        Panel("Time of a call", [
            *((query, f"model {name}") for query, name in quantiles("slipstream_judge_call_seconds")),
            *((query, f"function {name}") for query, name in quantiles("slipstream_judge_function_seconds")),
        ], "s"),
        Panel("Asked for again", [(rate("slipstream_judge_repairs_total"), "repairs")], "ops"),
    ]),
    ("Cost", [
        Panel("Dollars in 24 hours", [("sum(increase(slipstream_judge_cost_dollars_total[1d]))", "dollars")], "currencyUSD"),
        Panel("Tokens by kind", [(rate("slipstream_judge_tokens_total", "kind"), "{{kind}}")], "ops"),
        Panel("Waiting for a budget", [("max by (budget) (slipstream_judge_budget_waiting)", "{{budget}}")]),
        Panel("Cache", [(rate("slipstream_judge_cache_total", "result"), "{{result}}")], "ops", width=12),
        Panel("Cache hit rate since the start", [("avg(slipstream_judge_cache_hit_rate)", "hits")], "percentunit", width=12),
    ]),
    ("Quality", [
        Panel("Spread of votes", quantiles("slipstream_judge_vote_spread")),
        Panel("Agreement with the second model", [("avg(slipstream_judge_audit_agreement)", "rank correlation")]),
        Panel("Correlation with the agent's own reward", [("avg(slipstream_judge_agent_correlation)", "within groups")]),
        Panel("Mean score by adapter", [
            ('max by (source, adapter) (slipstream_source_reward_mean{source=~"judge|function", split="train", adapter=~"$adapter"})', "{{source}} {{adapter}}"),
        ], width=24, text="Of the model's scores and the function's alike: both have the source judge."),
    ]),
], variables=(ADAPTER,))  # fmt: skip


def training(name: str, unit: str = "short", title: str = "") -> Panel:
    return Panel(title or name, [(f"max(slipstream_training_{name})", name)], unit)


TRAINER = Dashboard("trainer", "Slipstream: trainer", [
    ("Learning", [
        Panel("Steps", [("sum(slipstream_training_steps_total)", "steps")]),
        Panel("Batches by outcome", [(rate("slipstream_training_batches_total", "outcome"), "{{outcome}}")], "ops",
              text="skipped and undone: a guard was against it, and the event says why."),
        Panel("Reward of the batch", [("max(slipstream_training_reward)", "mean"), ("max(slipstream_training_reward_std)", "standard deviation")]),
        training("loss", title="Loss"), training("kl", title="KL to the adapter before, nats a token"), training("entropy", title="Entropy, nats"),
        training("grad_norm", title="Gradient norm before clipping"), training("learning_rate", title="Learning rate"),
        Panel("Clipped and truncated tokens", [("max(slipstream_training_clip_ratio)", "clipped"), ("max(slipstream_training_truncated)", "weight capped")], "percentunit"),
    ]),
    ("Is what it trains on what was sampled?", [
        training("ratio", title="Mean ratio, trainer to engine"), training("logprob_gap", title="Gap of log-probabilities, engine against trainer"),
        training("staleness", title="Versions behind the live adapter"),
        Panel("Choices left out, by reason", [(rate("slipstream_training_left_out_total", "reason"), "{{reason}}")], "ops"),
        training("continuations", "percentunit", "Calls that continue an earlier one token by token"),
        Panel("Groups by state", [("max by (state) (slipstream_groups)", "{{state}}")]),
    ]),
    ("Speed", [
        training("tokens_per_second", "ops", "Computed tokens a second"), Panel("Tokens trained on", [(rate("slipstream_training_tokens_total"), "tokens")], "ops"),
        Panel("Time of a batch", quantiles("slipstream_training_batch_seconds"), "s"),
        training("padding", "percentunit", "Padding"), training("saving", "percentunit", "Tokens spared by merging and trees"), training("memory_bytes", "bytes", "Peak memory"),
        Panel("Events", [(rate("slipstream_events_total", "kind"), "{{kind}}")], "ops", width=24),
    ]),
])  # fmt: skip

ADAPTERS = Dashboard("adapters", "Slipstream: adapters compared", [
    LIVE_AGAINST_CONTROL,
    ("Reward", [
        Panel("Mean reward by adapter and arm (train)", EVERY_REWARD, width=12),
        Panel("Mean reward by adapter (eval)", [(REWARD % "eval", "{{adapter}}")], width=12),
        Panel("Spread of rewards", [('max by (adapter, arm) (slipstream_reward_std{split="train", adapter=~"$adapter"})', "{{adapter}} {{arm}}")], width=12),
        Panel("Mean reward by source (train)", [('max by (source, adapter) (slipstream_source_reward_mean{split="train", adapter=~"$adapter"})', "{{source}} {{adapter}}")], width=12),
        Panel("Spread of rewards by source (train)", [('max by (source, adapter) (slipstream_source_reward_std{split="train", adapter=~"$adapter"})', "{{source}} {{adapter}}")], width=12),
        Panel("Episodes with a reward", [('max by (adapter, split, arm) (slipstream_rewarded_episodes{adapter=~"$adapter"})', "{{adapter}} {{split}} {{arm}}")], width=12),
        Panel("Open episodes pinned to an adapter", [('max by (adapter) (slipstream_adapter_pinned_episodes{adapter=~"$adapter"})', "{{adapter}}")], width=12),
    ]),
    ("Swaps", [
        Panel("Live version", [('max by (model) (slipstream_adapter_live_version{model=~"$model"})', "{{model}}")]),
        Panel("Adapters by state", [("max by (state) (slipstream_adapters)", "{{state}}")]),
        Panel("Adapters in every engine", [("min(slipstream_adapters_loaded)", "loaded")]),
        Panel("Swaps and rollbacks in an hour", [
            ("sum(increase(slipstream_adapter_swaps_total[1h]))", "swaps"), ("sum(increase(slipstream_adapter_rollbacks_total[1h]))", "rollbacks"),
        ]),
        Panel("From registration until it serves", quantiles("slipstream_adapter_swap_seconds"), "s"),
        Panel("Engines that lost their adapters", [("sum(increase(slipstream_engine_adapter_losses_total[1h]))", "times in an hour")]),
        Panel("Engines", [("max by (engine) (slipstream_engine_up)", "{{engine}}")], width=24, height=5),
    ]),
], variables=(ADAPTER, TRAINED))  # fmt: skip


def vllm(metric: str, by: str = "") -> str:
    return rate(f"vllm:{metric}", by, MODEL)


def vllm_quantiles(metric: str) -> list[tuple[str, str]]:
    return [
        (f"histogram_quantile({q}, sum by (le) (rate(vllm:{metric}_bucket{MODEL}[$__rate_interval])))", f"p{q * 100:g}")
        for q in (0.5, 0.95, 0.99)
    ]


ENGINE = Dashboard("engine", "Slipstream: engine", [
    ("vLLM's own figures", [
        Panel("Requests", [(f"sum(vllm:num_requests_running{MODEL})", "running"), (f"sum(vllm:num_requests_waiting{MODEL})", "waiting")]),
        Panel("Tokens", [(vllm("prompt_tokens_total"), "read"), (vllm("generation_tokens_total"), "written")], "ops"),
        Panel("KV cache in use", [(f"max by (instance) (vllm:kv_cache_usage_perc{MODEL})", "{{instance}}")], "percentunit"),
        Panel("Time to the first token", vllm_quantiles("time_to_first_token_seconds"), "s"),
        Panel("Between tokens", vllm_quantiles("inter_token_latency_seconds"), "s"),
        Panel("Time of a request", vllm_quantiles("e2e_request_latency_seconds"), "s"),
        Panel("Waiting in the engine", vllm_quantiles("request_queue_time_seconds"), "s"),
        Panel("Prefix cache hits", [(f"{vllm('prefix_cache_hits_total')} / {vllm('prefix_cache_queries_total')}", "of the tokens asked for")], "percentunit",
              text="Agents send their history again: a long run should be near 1."),
        Panel("Preemptions", [(vllm("num_preemptions_total"), "preempted")], "ops", text="Requests that lost their cache to others: too little memory for so many."),
        Panel("Requests by how they ended", [(vllm("request_success_total", "finished_reason"), "{{finished_reason}}")], "reqps"),
        Panel("Requests with an adapter", [("max by (running_lora_adapters) (vllm:lora_requests_info)", "{{running_lora_adapters}}")]),
        Panel("Length of requests", [
            ("sum(rate(vllm:request_prompt_tokens_sum[$__rate_interval])) / sum(rate(vllm:request_prompt_tokens_count[$__rate_interval]))", "prompt"),
            ("sum(rate(vllm:request_generation_tokens_sum[$__rate_interval])) / sum(rate(vllm:request_generation_tokens_count[$__rate_interval]))", "reply"),
        ], text="Tokens, mean."),
    ]),
    ("Beside the proxy's", [
        Panel("Engines", [("max by (engine) (slipstream_engine_up)", "{{engine}}")]),
        Panel("The engine's time, as the proxy sees it", quantiles("slipstream_upstream_seconds"), "s"),
        Panel("Adapters in every engine", [("min(slipstream_adapters_loaded)", "loaded")]),
    ]),
], variables=(SERVED,))  # fmt: skip

DASHBOARDS = [OVERVIEW, PROXY, JUDGE, TRAINER, ADAPTERS, ENGINE]
