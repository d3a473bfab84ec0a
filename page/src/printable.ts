// What strangers wrote, as it is shown: what steers, hides or turns round a text is a sign that can be seen.

import { options } from "preact";

const STEERING = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g;
const SHOWN = ["title", "alt", "aria-label", "placeholder"];

/** Control characters become Unicode's pictures of them, what turns the direction becomes its number. */
export function printable(text: string): string {
  return text.replace(STEERING, (c) => {
    const code = c.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? "\u2421" : `‹U+${code.toString(16).toUpperCase().padStart(4, "0")}›`;
  });
}

/** All that is drawn from now on. What is typed or sent stays as it is. */
export function drawPrintable(): void {
  const before = options.vnode;
  options.vnode = (vnode) => {
    const node = vnode as { type: unknown; props: unknown };
    if (node.type === null && typeof node.props === "string") node.props = printable(node.props);
    else if (typeof node.type === "string") {
      const props = node.props as Record<string, unknown>;
      for (const name of SHOWN) if (typeof props[name] === "string") props[name] = printable(props[name] as string);
    }
    before?.(vnode);
  };
}
