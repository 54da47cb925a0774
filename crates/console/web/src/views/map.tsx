import { useCluster } from "../data";
import { navigate, parameter, withParameters } from "../router";
import { session } from "../session";
import { Card, FilterChoice, Loading, Name, Page, Table, formatBytes, formatNumber, visible } from "../ui";
import { NoCollector } from "./flows";

interface Line {
  from: string;
  to: string;
  allowed: number;
  denied: number;
  bytes: number;
}

interface MapData {
  layout: { places: Record<string, { column: number; row: number }> };
  lines: Line[];
  folded: number;
  omitted: number;
}

/** The collector publishes flows every 15 seconds. */
const REFRESH_SECONDS = 15;
const [BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y] = [170, 40, 90, 18];

export function MapView() {
  return (
    <Page title="Map" lead="Who talks to whom. Boxes keep their places while the page is open and when it is loaded again.">
      {session.value?.collector ? <MapLoader /> : <NoCollector />}
    </Page>
  );
}

function MapLoader() {
  const parameters = new URLSearchParams({ seconds: parameter("since") || "900" });
  const namespace = parameter("namespace");
  if (namespace) parameters.set("namespace", namespace);
  const loaded = useCluster<MapData>(`/api/map?${parameters.toString()}`, REFRESH_SECONDS);
  return (
    <>
      <div class="filters">
        <FilterChoice name="since" label="From the last" choices={[["", "15 minutes"], ["60", "minute"], ["300", "5 minutes"], ["3600", "hour"]]} />
        <FilterChoice name="verdict" label="Lines" choices={[["", "all"], ["denied", "with denied traffic"]]} />
        {namespace && <a class="button" href={withParameters({ namespace: "" })}>All namespaces</a>}
      </div>
      <Loading loaded={loaded}>{(data) => <MapContent data={data} namespace={namespace} />}</Loading>
    </>
  );
}

function MapContent({ data, namespace }: { data: MapData; namespace: string }) {
  const places = Object.entries(data.layout.places);
  if (places.length === 0) return <p class="muted">The collector has no flows of this time.</p>;
  const lines = data.lines.filter((line) => parameter("verdict") === "" || line.denied > 0);
  const width = (Math.max(...places.map(([, place]) => place.column)) + 1) * (BOX_WIDTH + GAP_X);
  const height = (Math.max(...places.map(([, place]) => place.row)) + 1) * (BOX_HEIGHT + GAP_Y) + 10;
  const corner = (name: string) => {
    const place = data.layout.places[name];
    return place && { x: place.column * (BOX_WIDTH + GAP_X) + 4, y: place.row * (BOX_HEIGHT + GAP_Y) + 6 };
  };
  const isNamespace = (name: string) => !name.startsWith("(") && !name.includes("/");
  const show = (name: string) => {
    if (isNamespace(name) && name !== namespace) navigate(withParameters({ namespace: name }));
  };
  return (
    <>
      <div class="scroll map" role="region" aria-label="Map of the traffic; the table below has the same content" tabIndex={0}>
        <svg width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="group" aria-label={`${places.length} boxes and ${lines.length} lines`}>
          {lines.map((line) => {
            const [from, to] = [corner(line.from), corner(line.to)];
            if (!from || !to) return null;
            const [x1, y1, x2, y2] = [from.x + BOX_WIDTH, from.y + BOX_HEIGHT / 2, to.x, to.y + BOX_HEIGHT / 2];
            const bend = Math.max(40, Math.abs(x2 - x1) / 2);
            // Traffic inside a box is a loop at its right side.
            const isLoop = line.from === line.to;
            const path = isLoop
              ? `M${x1} ${y1 - 10}C${x1 + 40} ${y1 - 16} ${x1 + 40} ${y1 + 16} ${x1} ${y1 + 10}`
              : `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
            const tone = line.denied > 0 ? (line.allowed > 0 ? "mixed" : "denied") : "";
            const weight = 1 + Math.min(4, Math.log10(line.allowed + line.denied + 1));
            return (
              <g>
                <title>{visible(`${line.from} to ${line.to}: ${line.allowed} allowed, ${line.denied} denied`)}</title>
                <path class={`line ${tone}`} d={path} stroke-width={weight} />
                <circle class={`line-end ${tone}`} cx={isLoop ? x1 : x2} cy={isLoop ? y1 + 10 : y2} r="4" />
              </g>
            );
          })}
          {places.map(([name]) => {
            const at = corner(name)!;
            const text = visible(name.startsWith(`${namespace}/`) ? name.slice(namespace.length + 1) : name);
            const opens = isNamespace(name) && name !== namespace;
            return (
              <g
                class={`box ${opens ? "opens" : ""}`}
                {...(opens ? { tabindex: 0, role: "button", "aria-label": `Show the workloads of ${text}` } : {})}
                onClick={() => show(name)}
                onKeyDown={(event) => {
                  if (event.key === "Enter" || event.key === " ") {
                    event.preventDefault();
                    show(name);
                  }
                }}
              >
                <title>{visible(name)}</title>
                <rect x={at.x} y={at.y} width={BOX_WIDTH} height={BOX_HEIGHT} rx="6" />
                <text x={at.x + 10} y={at.y + 25}>{text.length > 22 ? `${text.slice(0, 21)}…` : text}</text>
              </g>
            );
          })}
        </svg>
      </div>
      {data.folded > 0 && <p class="muted">{data.folded} boxes with the least traffic are folded into “(others)”.</p>}
      {data.omitted > 0 && <p class="muted">{data.omitted} flows were left out: choose a shorter time.</p>}
      <Card title="Lines" count={lines.length}>
        <Table
          caption="Traffic between the boxes"
          empty="None."
          rows={[...lines].sort((a, b) => b.denied - a.denied || b.allowed - a.allowed)}
          columns={[
            { head: "From", cell: (line) => <Name text={line.from} /> },
            { head: "To", cell: (line) => <Name text={line.to} /> },
            { head: "Allowed", number: true, cell: (line) => formatNumber(line.allowed) },
            { head: "Denied", number: true, cell: (line) => formatNumber(line.denied) },
            { head: "Bytes", number: true, cell: (line) => formatBytes(line.bytes) },
          ]}
        />
      </Card>
    </>
  );
}
