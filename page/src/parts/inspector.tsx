// What is known of one call: where it went, what it took, whether it trains, its tokens.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { withQuery } from "../api";
import { useAsk } from "../data";
import { duration, number } from "../format";
import { textOf, toolName } from "../messages";
import { isImported } from "../names";
import { link } from "../route";
import { KIND_NAMES, type Node } from "../tree";
import type { CallTokens as Answer, EpisodeDetail } from "../types";
import { type Colour, Tokens } from "./tokens";
import { Copy, Facts, Mark, Num, Refused, Time } from "./ui";

export function Inspector(props: {
  node: Node;
  detail: EpisodeDetail;
  colour: Colour;
  onColour: (colour: Colour) => void;
}): JSX.Element {
  const { node, detail } = props;
  const { call } = node;
  const imported = isImported(call);
  const rewards = detail.rewards.filter((r) => r.call === call.id);
  return (
    <>
      <h2 style={{ marginTop: 0 }}>Call {call.number + 1}</h2>
      <Facts
        facts={[
          ["call id", <><code>{call.id}</code> <Copy text={call.id} /></>],
          ["in the tree", KIND_NAMES[node.kind]],
          ["kind", call.kind ?? "main"],
          [
            "trains",
            call.trainable ? (
              <Mark kind="good">yes</Mark>
            ) : (
              <Mark kind="idle">no: {call.untrainable_reason ?? "no reason known"}</Mark>
            ),
          ],
          ["outcome", call.outcome === "ok" ? "ok" : <Mark kind="bad">{call.outcome}, HTTP {call.status}</Mark>],
          ["adapter", call.adapter ? <a href={link("adapters", "", { adapter: call.adapter })}>{call.adapter}</a> : null],
          ["asked for", call.model],
          ["format", call.dialect],
          ["at", <Time at={call.at} />],
          ["took", imported ? null : duration(call.seconds)],
          ["speed", call.completion_tokens && call.seconds ? <Num value={call.completion_tokens / call.seconds} unit="tokens/s" /> : null],
          ["prompt", imported ? null : <Num value={call.prompt_tokens} unit="tokens" />],
          ["sampled", imported ? null : <Num value={call.completion_tokens} unit="tokens" />],
          ["came by", imported ? "import: times, tokens and parameters are not known" : null],
          ["ended by", call.finish_reason],
          ["tools", call.tools.length ? call.tools.map(toolName).join(", ") : "none offered"],
        ]}
      />
      <h3>Tokens</h3>
      <CallTokens {...props} />
      <h3>Parameters</h3>
      {imported ? (
        <p class="small soft">not known of an imported call</p>
      ) : Object.keys(call.sampling).length ? (
        <Facts facts={Object.entries(call.sampling).map(([name, value]) => [name, textOf(value)])} />
      ) : (
        <p class="small soft">the engine's own</p>
      )}
      {rewards.length ? (
        <>
          <h3>Its rewards</h3>
          <Facts facts={rewards.map((r) => [r.name, <>{number(r.value)} by {r.source} {r.reason}</>])} />
        </>
      ) : null}
    </>
  );
}

function CallTokens({ node, colour, onColour }: {
  node: Node;
  colour: Colour;
  onColour: (colour: Colour) => void;
}): JSX.Element {
  const [prompt, setPrompt] = useState(false);
  const sampled = node.call.completion_tokens > 0;
  const path = `/calls/${encodeURIComponent(node.call.id)}/tokens`;
  const { data, error } = useAsk<Answer>(sampled ? withQuery(path, { prompt: prompt ? 2000 : 0 }) : null, ["step"]);
  if (!sampled) return <p class="small soft">{isImported(node.call) ? "It was imported as text." : "Nothing was sampled."}</p>;
  if (error) return <Refused error={error} />;
  if (!data) return <p class="small soft">…</p>;
  const why = data.choices[0]?.find((t) => !t.trained)?.masked;
  return (
    <>
      <Facts
        facts={[
          ["left out", why ? <Mark kind="idle">{why}</Mark> : null],
          ["advantage", data.advantage === null ? null : <Num value={data.advantage} sign />],
          ["batch", data.batch ? <a href={link("training", "", { batch: data.batch })}>{data.batch}</a> : null],
          ["step", data.step],
          ["trainer–engine gap", data.gap_mean === null ? null : <>mean <Num value={data.gap_mean} />, at most <Num value={data.gap_max} /> in that step</>],
          ["text from", data.tokenizer],
        ]}
      />
      {data.no_text ? <p class="small soft">Shown as ids: {data.no_text}</p> : null}
      {prompt ? (
        <details open>
          <summary class="small">Prompt</summary>
          {data.prompt_left_out ? <p class="small soft">{number(data.prompt_left_out)} earlier tokens are left out</p> : null}
          <Tokens tokens={data.prompt} colour={colour} onColour={onColour} plain />
        </details>
      ) : (
        <p>
          <button type="button" onClick={() => setPrompt(true)}>
            Show the prompt's tokens too
          </button>
        </p>
      )}
      {data.choices.map((tokens, n) => (
        <div key={n}>
          {data.choices.length > 1 ? <h3>Sample {n + 1}</h3> : null}
          {tokens.length ? (
            <Tokens tokens={tokens} colour={colour} onColour={onColour} />
          ) : (
            <p class="small soft">The engine gave no token ids for it.</p>
          )}
        </div>
      ))}
    </>
  );
}
