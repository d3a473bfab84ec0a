// Why nothing is learned, or agents' calls fail: the list of `slipstream status`, the worst first, remarks folded.

import type { JSX } from "preact";
import { causesOf } from "../funnel";
import { plural } from "../format";
import type { FunnelLine, Status } from "../types";
import { Mark, Said } from "./ui";

const MARKS: Record<FunnelLine["severity"], [string, string]> = {
  blocks: ["bad", "stops"],
  slows: ["control", "slows"],
  remark: ["idle", "remark"],
};

/** `count`: of how many causes. */
export function SeverityMark({ severity, count = 1 }: { severity: FunnelLine["severity"]; count?: number }): JSX.Element {
  const [kind, word] = MARKS[severity];
  return <Mark kind={kind}>{count > 1 ? `${word} × ${count}` : word}</Mark>;
}

export function Cause({ line }: { line: FunnelLine }): JSX.Element {
  return (
    <li data-severity={line.severity}>
      <SeverityMark severity={line.severity} />{" "}
      <span class="what">
        <Said text={line.text} />
        {line.fix ? <span class="soft"> → <Said text={line.fix} /></span> : null}
      </span>
    </li>
  );
}

export function Causes({ status }: { status: Status }): JSX.Element {
  const { troubles, remarks } = causesOf(status);
  return (
    <section class="causes" aria-label="What is wrong">
      {troubles.length ? (
        <ol class="plain">
          {troubles.map((line) => (
            <Cause key={line.stage + line.cause + line.text} line={line} />
          ))}
        </ol>
      ) : (
        <p class="soft">Nothing is in the way: steps come as groups fill.</p>
      )}
      {remarks.length ? (
        <details>
          <summary>{plural(remarks.length, "remark")} on what comes next</summary>
          <ul class="plain">
            {remarks.map((line) => (
              <Cause key={line.stage + line.cause + line.text} line={line} />
            ))}
          </ul>
        </details>
      ) : null}
    </section>
  );
}
