// The plug-ins that are there, what failed in them, and their views: paragraphs, tables and lines that they describe.

import type { JSX } from "preact";
import { useAsk } from "../data";
import { textOf } from "../messages";
import { Chart } from "../parts/chart";
import { Mark, Refused } from "../parts/ui";
import { link, type Place } from "../route";
import type { Plugin, PluginBlock, PluginView } from "../types";

function Block({ block }: { block: PluginBlock }): JSX.Element {
  return (
    <section>
      {block.title ? <h2>{block.title}</h2> : null}
      {block.kind === "text" ? <p>{block.text}</p> : null}
      {block.kind === "line" ? (
        <Chart label={block.title} xs={block.points.map(([x]) => x)} series={[{ name: block.title, colour: "live", ys: block.points.map(([, y]) => y) }]} time />
      ) : null}
      {block.kind === "table" ? (
        <table>
          <thead>
            <tr>
              {block.columns.map((name) => (
                <th scope="col" key={name}>{name}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {block.rows.map((row, at) => (
              <tr key={at}>
                {row.map((value, column) => (
                  <td key={column}>{textOf(value)}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      ) : null}
    </section>
  );
}

function View({ name, view }: { name: string; view: string }): JSX.Element {
  const { data, error } = useAsk<PluginView>(`/plugins/${encodeURIComponent(name)}/views/${encodeURIComponent(view)}`, ["episode", "adapter"]);
  return (
    <>
      <p><a href={link("plugins")}>Plug-ins</a></p>
      <Refused error={error} />
      <h1>{data?.title ?? name}</h1>
      {data?.blocks.map((block, at) => <Block block={block} key={at} />)}
    </>
  );
}

export function Plugins({ place }: { place: Place }): JSX.Element {
  const [name = "", ...view] = place.id.split("/");
  if (view.length) return <View name={name} view={view.join("/")} key={place.id} />;
  return <Listed />;
}

function Listed(): JSX.Element {
  const { data, error } = useAsk<{ plugins: Plugin[] }>("/plugins", ["status"]);
  return (
    <>
      <h1>Plug-ins</h1>
      <Refused error={error} />
      {data && !data.plugins.length ? <p class="empty">No plug-in is installed.</p> : null}
      <table>
        <tbody>
          {data?.plugins.map((p) => (
            <tr key={p.name}>
              <th scope="row">{p.name}</th>
              <td>
                {p.text}
                {p.error ? <p><Mark kind="bad">{p.errors} × failed, last: {p.error}</Mark></p> : null}
              </td>
              <td>{p.enabled ? "" : "turned off"}</td>
              <td>
                {Object.entries(p.views).map(([view, title]) => (
                  <a href={link("plugins", `${p.name}/${view}`)} key={view}>{title}</a>
                ))}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}
