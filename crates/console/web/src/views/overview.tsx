import { useCluster } from "../data";
import { parameter } from "../router";
import { Card, FilterField, Loading, Meter, Name, Page, Table, formatNumber, matches } from "../ui";
import type { Pool, Session } from "./routes";

interface Finding {
  object: string;
  check: string;
  reason: string;
  advice: string;
}

interface Overview {
  findings: Finding[];
  unreadable: string[];
  warnings: { node: string; object: string; reason: string; advice: string }[];
  nearlyFull: Pool[];
  sessionsDown: Session[];
  sessions: number;
  size: Record<string, number>;
}

const SIZES: [string, string, string][] = [
  ["nodes", "nodes", "/nodes"],
  ["workloads", "workloads", "/nodes"],
  ["hostEndpoints", "host endpoints", "/nodes"],
  ["namespaces", "namespaces", "/policies"],
  ["tiers", "tiers", "/policies"],
  ["policies", "policies", "/policies"],
  ["stagedPolicies", "staged policies", "/policies?kind=staged"],
  ["pools", "address pools", "/routes"],
  ["addressesInUse", "addresses in use", "/routes"],
];

export function OverviewView() {
  const loaded = useCluster<Overview>("/api/overview");
  return (
    <Page title="Overview" lead="What is wrong comes first, then the size of the cluster.">
      <Loading loaded={loaded}>{(data) => <OverviewContent data={data} />}</Loading>
    </Page>
  );
}

function OverviewContent({ data }: { data: Overview }) {
  const filter = parameter("q");
  const findings = data.findings.filter((row) => matches(filter, row.object, row.reason, row.check));
  // Nodes' warnings are among the findings, once for all nodes; the table by node is on the page of nodes.
  const problems = data.findings.length + data.unreadable.length + data.nearlyFull.length + data.sessionsDown.length;
  return (
    <>
      <div class={`verdict-banner ${problems === 0 ? "good" : "warn"}`}>
        <strong>{problems === 0 ? "Nothing wrong was found." : problems === 1 ? "1 thing needs attention." : `${problems} things need attention.`}</strong>
        <span>
          {data.sessions > 0
            ? `${data.sessions - data.sessionsDown.length} of ${data.sessions} reported BGP sessions are established.`
            : "No node reports BGP sessions: that needs CalicoNodeStatus objects."}
        </span>
      </div>
      <Card title="Likely mistakes" count={data.findings.length} tone={data.findings.length ? "warn" : "good"}>
        {data.findings.length > 0 && (
          <div class="filters">
            <FilterField name="q" label="Filter" hint="object, reason" />
          </div>
        )}
        <ul class="findings">
          {findings.slice(0, 200).map((finding) => (
            <li>
              <Name text={finding.object} /> <span class="tag">{finding.check}</span>
              <p><Name text={finding.reason} mono={false} /></p>
              <p class="advice"><Name text={finding.advice} mono={false} /></p>
            </li>
          ))}
        </ul>
        {data.findings.length === 0 && <p class="muted">The checks of <code>tortie analyze</code> find nothing.</p>}
        {data.findings.length > 0 && findings.length === 0 && <p class="muted">No finding matches the filter.</p>}
        {findings.length > 200 && <p class="muted">{findings.length - 200} more are not shown: use the filter.</p>}
      </Card>
      {data.unreadable.length > 0 && (
        <Card title="Objects that cannot be read" count={data.unreadable.length} tone="bad">
          <ul class="findings">
            {data.unreadable.slice(0, 100).map((text) => <li><Name text={text} mono={false} /></li>)}
          </ul>
        </Card>
      )}
      {data.nearlyFull.length > 0 && (
        <Card title="Address pools nearly full" count={data.nearlyFull.length} tone="bad">
          <Table
            caption="Address pools nearly full"
            empty=""
            rows={data.nearlyFull}
            columns={[
              { head: "Pool", cell: (pool) => <Name text={pool.name} /> },
              { head: "Range", cell: (pool) => <Name text={pool.cidr} /> },
              { head: "Use", cell: (pool) => <Meter share={1 - pool.usage.free / pool.usage.total} label={pool.name} /> },
              { head: "Free", number: true, cell: (pool) => formatNumber(pool.usage.free) },
            ]}
          />
        </Card>
      )}
      {data.sessionsDown.length > 0 && (
        <Card title="BGP sessions down" count={data.sessionsDown.length} tone="bad">
          <Table
            caption="BGP sessions that are not established"
            empty=""
            rows={data.sessionsDown}
            columns={[
              { head: "Node", cell: (row) => <Name text={row.node} /> },
              { head: "Peer", cell: (row) => <Name text={row.peer} /> },
              { head: "State", cell: (row) => <Name text={row.state} /> },
              { head: "Since", cell: (row) => <Name text={row.since} mono={false} /> },
            ]}
          />
        </Card>
      )}
      <ul class="tiles">
        {SIZES.map(([key, label, link]) => (
          <li>
            <a class="tile" href={link}>
              <span class="figure">{formatNumber(data.size[key] ?? 0)}</span> <span class="label">{label}</span>
            </a>
          </li>
        ))}
      </ul>
    </>
  );
}
