// The shell: where one is, whether the proxy answers, and the view of the place.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { goInto, key, setKey, tenant } from "./api";
import { useAsk, useConnection } from "./data";
import { KEYS, useKeys } from "./keyboard";
import { tell } from "./live";
import { Scopes } from "./may";
import { link, type Place, usePlace } from "./route";
import type { Status } from "./types";
import { Adapters } from "./views/adapters";
import { Audit } from "./views/audit";
import { Cases } from "./views/cases";
import { Compare } from "./views/compare";
import { Cost } from "./views/cost";
import { Episode } from "./views/episode";
import { Episodes } from "./views/episodes";
import { Group } from "./views/group";
import { Groups } from "./views/groups";
import { Judge } from "./views/judge";
import { Label } from "./views/label";
import { Now } from "./views/now";
import { Plugins } from "./views/plugins";
import { Tasks } from "./views/tasks";
import { Tenants } from "./views/tenants";
import { Training } from "./views/training";

const VIEWS: { view: string; name: string; key: string; also?: string[] }[] = [
  { view: "now", name: "Now", key: "n" },
  { view: "episodes", name: "Episodes", key: "e", also: ["episode", "compare"] },
  { view: "tasks", name: "Tasks", key: "w" },
  { view: "groups", name: "Groups", key: "g", also: ["group"] },
  { view: "adapters", name: "Adapters", key: "a" },
  { view: "cases", name: "Cases", key: "c" },
  { view: "training", name: "Training", key: "t" },
  { view: "cost", name: "Cost", key: "o" },
  { view: "judge", name: "Judge", key: "r" },
  { view: "label", name: "Label", key: "l" },
  { view: "audit", name: "Audit", key: "u" },
  { view: "plugins", name: "Plug-ins", key: "p" },
  { view: "tenants", name: "Tenants", key: "m" },
];

function View({ place, status }: { place: Place; status: Status | null }): JSX.Element {
  switch (place.view) {
    case "now":
      return <Now status={status} />;
    case "episodes":
      return <Episodes place={place} status={status} />;
    case "episode":
      return <Episode place={place} key={place.id + (place.query.key ?? "")} />;
    case "tasks":
      return <Tasks place={place} />;
    case "compare":
      return <Compare place={place} />;
    case "groups":
      return <Groups place={place} />;
    case "group":
      return <Group place={place} key={place.id} />;
    case "adapters":
      return <Adapters place={place} />;
    case "cases":
      return <Cases place={place} />;
    case "training":
      return <Training place={place} />;
    case "cost":
      return <Cost place={place} />;
    case "judge":
      return <Judge status={status} />;
    case "audit":
      return <Audit place={place} />;
    case "tenants":
      return <Tenants />;
    case "plugins":
      return <Plugins place={place} />;
    case "label":
      return <Label place={place} />;
    default:
      return (
        <div class="empty">
          <h1>There is no view “{place.view}”</h1>
          <a href={link("now")}>Go to Now</a>
        </div>
      );
  }
}

function useTheme(): [string, () => void] {
  const [theme, setTheme] = useState(
    () => localStorage.getItem("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"),
  );
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  return [
    theme,
    () => {
      const next = theme === "dark" ? "light" : "dark";
      localStorage.setItem("theme", next);
      setTheme(next);
    },
  ];
}

function Lost({ since }: { since: number }): JSX.Element {
  return (
    <div class="banner" role="alert">
      <strong>The proxy does not answer.</strong>
      <span>What you see is from {new Date(since).toLocaleTimeString("en-GB")}. The page tries again by itself.</span>
      <button type="button" onClick={() => tell("all")}>
        Try again now
      </button>
    </div>
  );
}

function InPlace({ of }: { of: string }): JSX.Element {
  return (
    <div class="banner warn" role="status">
      <strong>You are in the place of {of}.</strong>
      <span>All that you see and change here is this tenant’s.</span>
      <button type="button" onClick={() => goInto("")}>
        Back to all
      </button>
    </div>
  );
}

function Login(): JSX.Element {
  const [value, setValue] = useState("");
  const use = (event: Event): void => {
    event.preventDefault();
    setKey(value.trim());
    tell("all");
  };
  return (
    <form class="banner warn" aria-label="API key" onSubmit={use}>
      <label>
        {key() ? "Unknown API key. Enter another: " : "This proxy asks for an API key: "}
        <input type="password" autocomplete="off" value={value} onInput={(e) => setValue(e.currentTarget.value)} />
      </label>
      <button class="primary">Use it</button>
      <span class="small">The key is kept in this tab only. A key with the scope viewer can look and change nothing.</span>
    </form>
  );
}

function Keys({ close }: { close: () => void }): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} onClose={close} aria-label="Keys">
      <h1>Keys</h1>
      <table>
        <tbody>
          {KEYS.map(([name, what]) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              <td>{what}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="row">
        <button type="button" onClick={() => dialog.current?.close()}>
          Close
        </button>
        {key() ? (
          <button type="button" onClick={() => (setKey(""), location.reload())}>
            Forget this tab's API key
          </button>
        ) : null}
      </p>
    </dialog>
  );
}

export function App(): JSX.Element {
  const place = usePlace();
  const { lost, needsKey } = useConnection();
  const { data: status } = useAsk<Status>("/status", ["call", "episode", "group", "reward", "adapter", "step", "status"]);
  const [theme, flip] = useTheme();
  const [help, setHelp] = useState(false);
  const going = useRef(0);
  const seen = useRef(Date.now());
  if (!lost) seen.current = Date.now();
  const main = useRef<HTMLElement>(null);
  const current = VIEWS.find((v) => v.view === place.view || v.also?.includes(place.view));
  useEffect(() => {
    document.title = `${place.id || current?.name || "?"} · Slipstream`;
  }, [place.view, place.id]);
  const go = (name: string): boolean | void => {
    const view = VIEWS.find((v) => v.key === name);
    if (!view || Date.now() - going.current > 1000) return false;
    going.current = 0;
    location.hash = link(view.view);
  };
  useKeys({
    "?": () => setHelp((shown) => !shown),
    "/": () => {
      const search = document.querySelector<HTMLInputElement>("[data-search]");
      if (search) search.focus();
      else location.hash = link("episodes", "", { focus: "q" });
    },
    g: () => (Date.now() - going.current < 1000 ? go("g") : void (going.current = Date.now())),
    ...Object.fromEntries(["n", "e", "w", "a", "c", "t", "o", "r", "l", "u", "p", "m"].map((name) => [name, () => go(name)])),
  });
  const engines = status?.engines ?? [];
  const down = engines.filter((e) => !e.ok).length;
  return (
    <>
      <a class="skip" href="#main" onClick={(e) => (e.preventDefault(), main.current?.focus())}>
        To the content
      </a>
      <header class="top">
        <strong>Slipstream</strong>
        <nav aria-label="Views" tabIndex={-1}>
          {VIEWS.filter((v) => v.view !== "tenants" || status?.tenants).map((v) => (
            <a key={v.view} href={link(v.view)} aria-current={v === current ? "page" : undefined}>
              {v.name}
            </a>
          ))}
        </nav>
        <span class="pulse" role="status">
          <span class={`mark ${lost || down ? "bad" : status ? "good" : "idle"}`}>
            {lost ? "no answer" : down ? `${down} of ${engines.length} engines down` : status ? "live" : "…"}
          </span>
        </span>
        <button type="button" onClick={flip} aria-label={theme === "dark" ? "Light colours" : "Dark colours"}>
          {theme === "dark" ? "☀" : "☾"}
        </button>
        <button type="button" onClick={() => setHelp(true)} aria-label="Keys">
          ?
        </button>
      </header>
      {tenant() ? <InPlace of={tenant()} /> : null}
      {needsKey ? <Login /> : null}
      {lost ? <Lost since={seen.current} /> : null}
      <main id="main" ref={main} tabIndex={-1}>
        <Scopes.Provider value={status?.scopes ?? null}>
          <View place={place} status={status} />
        </Scopes.Provider>
      </main>
      {help ? <Keys close={() => setHelp(false)} /> : null}
    </>
  );
}
