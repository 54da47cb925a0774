import { render } from "preact";
import { useEffect } from "preact/hooks";
import { live, startLive } from "./live";
import { followLinks, path } from "./router";
import { loadSession, session, signInError } from "./session";
import { Notice, formatTime, visible } from "./ui";
import { ExplainView } from "./views/explain";
import { FlowsView } from "./views/flows";
import { MapView } from "./views/map";
import { NodesView } from "./views/nodes";
import { OverviewView } from "./views/overview";
import { PoliciesView } from "./views/policies";
import { RoutesView } from "./views/routes";
import { WhatIfView } from "./views/whatif";

const VIEWS = [
  { path: "/", title: "Overview", view: OverviewView },
  { path: "/map", title: "Map", view: MapView },
  { path: "/flows", title: "Flows", view: FlowsView },
  { path: "/policies", title: "Policy board", view: PoliciesView },
  { path: "/explain", title: "Explain", view: ExplainView },
  { path: "/what-if", title: "What if", view: WhatIfView },
  { path: "/routes", title: "Routes", view: RoutesView },
  { path: "/nodes", title: "Nodes", view: NodesView },
];

function App() {
  const info = session.value;
  if (!info) return <main class="alone"><p class="muted">Connecting to the console …</p></main>;
  if (!info.signedIn) return <SignIn />;
  return <Console version={info.version} />;
}

function SignIn() {
  return (
    <main class="alone">
      <img src="/icon.svg" alt="" width="56" height="56" />
      <h1>Tortie console</h1>
      {signInError.value && <Notice tone="bad">{visible(signInError.value)}</Notice>}
      <p>Open the newest link that <code>tortie console</code> has printed. Each link is valid once; after that a new one is printed.</p>
    </main>
  );
}

function Console({ version }: { version: string }) {
  useEffect(startLive, []);
  const current = VIEWS.find((view) => view.path === path.value);
  const View = current?.view ?? OverviewView;
  return (
    <div class="frame" onClick={followLinks}>
      <a class="skip" href="#content">Skip to the content</a>
      <nav aria-label="Views">
        <a class="brand" href="/"><img src="/icon.svg" alt="" width="28" height="28" /><span>Tortie</span></a>
        <ul>
          {VIEWS.map((view) => (
            <li><a href={view.path} aria-current={view === current ? "page" : undefined}>{view.title}</a></li>
          ))}
        </ul>
        <LiveBadge />
        <p class="version">{version}, read-only</p>
      </nav>
      <main id="content"><View key={path.value} /></main>
    </div>
  );
}

function LiveBadge() {
  const state = live.value;
  switch (state.kind) {
    case "connecting":
      return <p class="live" role="status">connecting …</p>;
    case "live":
      return <p class="live on" role="status">live</p>;
    case "store":
      return <p class="live off" role="status" title={visible(state.reason)}>datastore not followed since {formatTime(state.since)}</p>;
    case "console":
      return <p class="live off" role="status">the console does not answer</p>;
  }
}

const root = document.getElementById("app");
if (root) {
  root.replaceChildren();
  render(<App />, root);
  void loadSession();
}
