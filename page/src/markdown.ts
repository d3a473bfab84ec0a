// The part of Markdown that replies use: headings, lists, code, quotes, bold, links. No HTML: what is no mark stays text.

export type Inline = string | { kind: "code" | "bold" | "link"; text: string; href?: string };

export type Block =
  | { kind: "heading" | "text" | "quote" | "code"; text: string }
  | { kind: "list"; ordered: boolean; items: { depth: number; number: number; text: string }[] };

// each part has a limit, so that no text makes the search slow
const INLINE = /`([^`\n]{1,500})`|\*\*([^*\n]{1,500})\*\*|\[([^\][\n]{1,300})\]\((https?:\/\/[^\s()]{1,2000})\)|(https?:\/\/[^\s<>()"'`]{1,2000}(?<![.,;:!?]))/g;
const ITEM = /^( {0,12})(?:[-*+]|(\d{1,6})[.)]) +(?=\S)/;
const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const HEADING = /^#{1,6} +(?=\S)/;

export function inlines(text: string): Inline[] {
  const found: Inline[] = [];
  let end = 0;
  for (const m of text.matchAll(INLINE)) {
    if (m.index > end) found.push(text.slice(end, m.index));
    const [all, code, bold, said, href, bare] = m;
    if (code !== undefined) found.push({ kind: "code", text: code });
    else if (bold !== undefined) found.push({ kind: "bold", text: bold });
    else found.push({ kind: "link", text: said ?? bare ?? "", href: href ?? bare ?? "" });
    end = m.index + all.length;
  }
  if (end < text.length) found.push(text.slice(end));
  return found;
}

export function blocks(text: string): Block[] {
  const found: Block[] = [];
  const lines = text.split("\n");
  for (let n = 0; n < lines.length; n += 1) {
    const line = lines[n] ?? "";
    const last = found.at(-1);
    const fence = FENCE.exec(line)?.[1];
    const item = ITEM.exec(line);
    if (fence) {
      const from = n + 1;
      // a fence that nothing ends holds the rest, as in a reply that was cut off
      do n += 1;
      while (n < lines.length && !(lines[n] ?? "").trimStart().startsWith(fence));
      found.push({ kind: "code", text: lines.slice(from, n).join("\n") });
    } else if (item) {
      const ordered = item[2] !== undefined;
      const one = { depth: Math.floor((item[1] ?? "").length / 2), number: Number(item[2] ?? 0), text: line.slice(item[0].length) };
      if (last?.kind === "list" && (one.depth > 0 || last.ordered === ordered)) last.items.push(one);
      else found.push({ kind: "list", ordered, items: [one] });
    } else if (HEADING.test(line)) found.push({ kind: "heading", text: line.replace(HEADING, "") });
    else if (line.startsWith("|")) join(found, "code", line); // a table keeps its columns
    else if (line.startsWith("> ")) join(found, "quote", line.slice(2));
    else if (last?.kind === "list" && line.startsWith("  ") && line.trim()) {
      const one = last.items.at(-1);
      if (one) one.text += `\n${line.trim()}`;
    } else if (line.trim() || last?.kind === "text") join(found, "text", line);
  }
  return found;
}

function join(found: Block[], kind: "text" | "quote" | "code", line: string): void {
  const last = found.at(-1);
  if (last?.kind === kind) last.text += `\n${line}`;
  else found.push({ kind, text: line });
}

/** Whether there is something that would look other than it was written. */
export function isMarked(text: string): boolean {
  return blocks(text).some((b) => b.kind !== "text" || inlines(b.text).some((part) => typeof part !== "string"));
}
