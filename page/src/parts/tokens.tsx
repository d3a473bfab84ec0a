// A call's sampled tokens as text, coloured by one figure of each.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { number, signed } from "../format";
import { clamp, shade, shadeLogprob } from "../scales";
import type { Token } from "../types";

export type Colour = "logprob" | "advantage" | "gap";

const COLOURS: { colour: Colour; name: string; says: string }[] = [
  { colour: "logprob", name: "log-probability", says: "the stronger, the less likely it was" },
  { colour: "advantage", name: "advantage", says: "blue was made likelier, orange less likely" },
  { colour: "gap", name: "trainer–engine gap", says: "blue: likelier for the trainer than for the engine" },
];
const AT_ONCE = 2000;

export function shadeOf(token: Token, colour: Colour): string {
  if (colour === "logprob") return shadeLogprob(token.logprob);
  if (colour === "gap") return shade(token.gap, 0.5);
  return token.trained ? shade(token.advantage, 2) : "";
}

/** A token's text with what cannot be seen made visible. */
export function visibleText(text: string): string {
  return text.replaceAll("\n", "⏎\n").replaceAll("\t", "⇥\t");
}

export function Tokens({ tokens, colour, onColour, plain }: {
  tokens: Token[];
  colour: Colour;
  onColour: (colour: Colour) => void;
  /** Without the choice of colours. */
  plain?: boolean;
}): JSX.Element {
  const [chosen, setChosen] = useState<number | null>(null);
  const [shown, setShown] = useState(AT_ONCE);
  const masked = tokens.filter((t) => !t.trained);
  const token = chosen === null ? undefined : tokens[chosen];
  const has = (c: Colour): boolean => tokens.some((t) => t[c] !== null);
  // one stop of the Tab key for all of them: thousands would be in the way
  const clicked = (event: MouseEvent): void => {
    const found = (event.target as HTMLElement).dataset.n;
    if (found !== undefined) setChosen(Number(found) === chosen ? null : Number(found));
  };
  const pressed = (event: KeyboardEvent): void => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!by) return;
    event.preventDefault();
    setChosen(clamp((chosen ?? (by > 0 ? -1 : 1)) + by, 0, Math.min(shown, tokens.length) - 1));
  };
  return (
    <>
      {plain ? null : <div class="row" role="group" aria-label="Colour tokens by">
        {COLOURS.map((c) => (
          <button
            type="button"
            key={c.colour}
            aria-pressed={c.colour === colour}
            disabled={!has(c.colour)}
            title={has(c.colour) ? c.says : "not known of these tokens"}
            onClick={() => onColour(c.colour)}
          >
            {c.name}
          </button>
        ))}
      </div>}
      {plain ? null : <p class="small soft">
        <span class="scale" aria-hidden="true">
          {["down-5", "down-3", "down-1", "", "up-1", "up-3", "up-5"]
            .filter((s) => colour !== "logprob" || !s.startsWith("up"))
            .map((s) => (
              <span key={s} class={s} />
            ))}
        </span>{" "}
        {COLOURS.find((c) => c.colour === colour)?.says}
        {masked.length ? `; ${number(masked.length)} of ${number(tokens.length)} dotted: left out of training` : ""}
      </p>}
      <div class="tokens" role="group" aria-label="Tokens. Arrow keys choose one." tabIndex={0} onClick={clicked} onKeyDown={pressed}>
        {tokens.slice(0, shown).map((t, n) => (
          <span
            key={n}
            data-n={n}
            class={`${shadeOf(t, colour)} ${t.trained ? "" : "masked"} ${n === chosen ? "chosen" : ""}`}
            title={explain(t)}
          >
            {t.text === null ? `${t.id} ` : visibleText(t.text)}
          </span>
        ))}
      </div>
      {tokens.length > shown ? (
        <button type="button" onClick={() => setShown(shown * 4)}>
          Show more ({number(tokens.length - shown)} tokens left)
        </button>
      ) : null}
      {token ? <p class="small" role="status">{explain(token)}</p> : null}
    </>
  );
}

export function explain(t: Token): string {
  const parts = [`id ${t.id}`];
  if (t.logprob !== null) parts.push(`log-probability ${number(t.logprob)} (probability ${number(Math.exp(t.logprob))})`);
  if (t.advantage !== null) parts.push(`advantage ${signed(t.advantage)}`);
  if (t.gap !== null) parts.push(`trainer ${signed(t.gap)} from the engine`);
  if (!t.trained) parts.push(`left out of training: ${t.masked ?? "no reason known"}`);
  return parts.join(", ");
}
