// A reply's Markdown as elements of the page's own: no HTML of the reply's is ever parsed.

import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { blocks, inlines } from "../markdown";

function Line({ text }: { text: string }): JSX.Element {
  return (
    <>
      {inlines(text).map((part, n) =>
        typeof part === "string" ? part
        : part.kind === "code" ? <code key={n}>{part.text}</code>
        : part.kind === "bold" ? <strong key={n}>{part.text}</strong>
        : <a key={n} href={part.href} title={part.href} rel="noopener noreferrer nofollow" target="_blank">{part.text}</a>,
      )}
    </>
  );
}

export function Markdown({ text }: { text: string }): JSX.Element {
  const parts = useMemo(() => blocks(text), [text]);
  return (
    <div class="markdown" dir="auto">
      {parts.map((b, n) => {
        if (b.kind === "code") return <pre key={n}>{b.text}</pre>;
        if (b.kind === "quote") return <blockquote key={n}><Line text={b.text} /></blockquote>;
        // no h1 to h6: a reply's headings are none of the page's
        if (b.kind !== "list") return <p key={n}>{b.kind === "heading" ? <strong><Line text={b.text} /></strong> : <Line text={b.text.trimEnd()} />}</p>;
        const items = b.items.map((one, i) => (
          <li key={i} style={{ marginInlineStart: `${one.depth}em` }} {...(b.ordered && one.number ? { value: one.number } : {})}><Line text={one.text} /></li>
        ));
        return b.ordered ? <ol key={n}>{items}</ol> : <ul key={n}>{items}</ul>;
      })}
    </div>
  );
}
