// How a version did on recorded steps before anybody met it: each question's figures, and its worst cases side by side.

import type { JSX } from "preact";
import { useAsk } from "../data";
import { number, plural, signed, words } from "../format";
import { link } from "../route";
import type { Adapter, ReplayPair, ReplayShown } from "../types";
import { Long, Mark, Refused, Said } from "./ui";

const KINDS = { running: "candidate", passed: "good", refused: "bad", undecided: "idle" };

export function Replay({ adapter }: { adapter: Adapter }): JSX.Element | null {
  const ask = adapter.replay ? `/adapters/${encodeURIComponent(adapter.name)}/replay` : null;
  const { data, error } = useAsk<ReplayShown>(ask, ["adapter"]);
  const replay = adapter.replay;
  if (!replay) return null;
  const worst = data?.adapter === adapter.name ? data.worst : [];
  return (
    <section aria-label={`Replay of ${adapter.name}`}>
      <h3>On recorded steps</h3>
      <p class="small">
        <Mark kind={KINDS[replay.outcome]}>{replay.outcome === "running" ? "is being replayed" : words(replay.outcome)}</Mark>: <Said text={replay.reason} />{" "}
        <span class="soft">
          beside {replay.control}, {number(replay.tokens)} tokens; {replay.sets.map((s) => `${s.name} (version ${s.version}, ${plural(s.cases, "case")})`).join(", ")}
        </span>
      </p>
      {replay.questions.length ? (
        <div class="scroll">
          <table>
            <thead>
              <tr>
                <th scope="col">set</th>
                <th scope="col">question</th>
                <th scope="col">verdict</th>
                <th scope="col" class="num">cases</th>
                <th scope="col" class="num">{adapter.name}</th>
                <th scope="col" class="num">{replay.control}</th>
                <th scope="col" class="num">would be seen</th>
              </tr>
            </thead>
            <tbody>
              {replay.questions.map((q) => (
                <tr key={q.set + q.question}>
                  <td><a href={link("cases", q.set)}>{q.set}</a></td>
                  <td>{q.question}</td>
                  <td><Mark kind={q.verdict === "worse" ? "bad" : q.verdict === "better" ? "good" : "idle"}>{q.verdict}</Mark></td>
                  <td class="num">{number(q.cases)}</td>
                  <td class="num">{number(q.candidate, 3)}</td>
                  <td class="num">{number(q.control, 3)}</td>
                  <td class="num">{number(q.visible, 2)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : null}
      <Refused error={error} />
      {worst.map((pair) => <Beside key={pair.key + pair.episode} pair={pair} names={[adapter.name, replay.control]} />)}
      {worst.length ? <p class="small soft">{data?.limits}</p> : null}
    </section>
  );
}

function Beside({ pair, names }: { pair: ReplayPair; names: [string, string] }): JSX.Element {
  return (
    <article class="panel">
      <p class="small">
        <a href={link("episode", pair.episode, { key: pair.key })}>{pair.episode}</a>, call {pair.call}, {pair.question}:{" "}
        {number(pair.candidate, 2)} against {number(pair.control, 2)} ({signed(pair.candidate - pair.control, 2)})
      </p>
      <Long text={pair.prompt} />
      <div class="split two">
        <div>
          <h4>{names[0]}</h4>
          <Long text={pair.candidate_reply} />
        </div>
        <div>
          <h4>{names[1]}</h4>
          <Long text={pair.control_reply} />
        </div>
      </div>
    </article>
  );
}
