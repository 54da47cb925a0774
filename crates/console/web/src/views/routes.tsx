import { useCluster } from "../data";
import { parameter } from "../router";
import { Card, FilterField, Loading, Meter, Name, Page, Table, Tag, formatNumber, matches, visible } from "../ui";

export interface Usage {
  total: number;
  inUse: number;
  reserved: number;
  free: number;
}

interface BlockUse {
  cidr: string;
  owner: string | null;
  usage: Usage;
}

export interface Pool {
  name: string;
  cidr: string;
  enabled: boolean;
  encapsulation: string;
  natOutgoing: boolean;
  blockSize: number;
  usage: Usage;
  blocks: BlockUse[];
}

export interface Session {
  node: string;
  peer: string;
  kind: string;
  state: string;
  since: string;
}

interface Routing {
  pools: Pool[];
  orphans: BlockUse[];
  peers: { name: string; nodes: string; peer: string; asNumber: string }[];
  sessions: Session[];
  routes: { node: string; destination: string; gateway: string; interface: string; installed: boolean }[];
  omittedRoutes: number;
  tunnels: { node: string; kind: string; address: string }[];
  reports: boolean;
}

const MAX_PICTURE_BLOCKS = 1024;

export function RoutesView() {
  const loaded = useCluster<Routing>("/api/routes");
  return (
    <Page title="Routes and addresses" lead="Address pools with their blocks, BGP peers and sessions, tunnels and routes.">
      <div class="filters">
        <FilterField name="q" label="Filter" hint="node, address, pool" />
      </div>
      <Loading loaded={loaded}>{(data) => <RoutingContent data={data} />}</Loading>
    </Page>
  );
}

function share(usage: Usage): number {
  return usage.total > 0 ? usage.inUse / usage.total : 0;
}

function RoutingContent({ data }: { data: Routing }) {
  const filter = parameter("q");
  const sessions = data.sessions.filter((row) => matches(filter, row.node, row.peer, row.state));
  const routes = data.routes.filter((row) => matches(filter, row.node, row.destination, row.gateway, row.interface));
  const tunnels = data.tunnels.filter((row) => matches(filter, row.node, row.address, row.kind));
  const reported = data.reports ? "None." : "No node reports them: create a CalicoNodeStatus object for each node.";
  return (
    <>
      {data.pools.map((pool) => <PoolCard pool={pool} filter={filter} />)}
      {data.orphans.length > 0 && (
        <Card title="Blocks outside all pools" count={data.orphans.length} tone="warn">
          <BlockTable blocks={data.orphans} name="no pool" />
        </Card>
      )}
      <Card title="BGP sessions" count={data.sessions.length}>
        <Table
          caption="BGP sessions"
          empty={data.sessions.length > 0 ? "No session matches the filter." : reported}
          rows={sessions}
          columns={[
            { head: "Node", cell: (row) => <Name text={row.node} /> },
            { head: "Peer", cell: (row) => <Name text={row.peer} /> },
            { head: "Type", cell: (row) => <Name text={row.kind} mono={false} /> },
            { head: "State", cell: (row) => <span class={row.state === "Established" ? "action allow" : "action deny"}>{visible(row.state)}</span> },
            { head: "Since", cell: (row) => <Name text={row.since} mono={false} /> },
          ]}
        />
      </Card>
      <Card title="Configured BGP peers" count={data.peers.length}>
        <Table
          caption="Configured BGP peers"
          empty="None: nodes peer with each other if the mesh is enabled."
          rows={data.peers.filter((row) => matches(filter, row.name, row.nodes, row.peer))}
          columns={[
            { head: "Name", cell: (row) => <Name text={row.name} /> },
            { head: "Nodes", cell: (row) => <Name text={row.nodes} /> },
            { head: "Peer", cell: (row) => <Name text={row.peer} /> },
            { head: "AS", number: true, cell: (row) => <Name text={row.asNumber} /> },
          ]}
        />
      </Card>
      <Card title="Tunnels" count={data.tunnels.length}>
        <Table
          caption="Tunnels"
          empty={data.tunnels.length > 0 ? "No tunnel matches the filter." : "No node has a tunnel address."}
          rows={tunnels}
          columns={[
            { head: "Node", cell: (row) => <Name text={row.node} /> },
            { head: "Type", cell: (row) => <Name text={row.kind} mono={false} /> },
            { head: "Address", cell: (row) => <Name text={row.address} /> },
          ]}
        />
      </Card>
      <Card title="Routes of nodes" count={data.routes.length + data.omittedRoutes}>
        <Table
          caption="Routes of nodes"
          empty={data.routes.length > 0 ? "No route matches the filter." : reported}
          rows={routes}
          columns={[
            { head: "Node", cell: (row) => <Name text={row.node} /> },
            { head: "Destination", cell: (row) => <Name text={row.destination} /> },
            { head: "Gateway", cell: (row) => <Name text={row.gateway} /> },
            { head: "Interface", cell: (row) => <Name text={row.interface} /> },
            { head: "State", cell: (row) => (row.installed ? "installed" : "known") },
          ]}
        />
        {data.omittedRoutes > 0 && <p class="muted">{data.omittedRoutes} more routes are not shown.</p>}
      </Card>
    </>
  );
}

function PoolCard({ pool, filter }: { pool: Pool; filter: string }) {
  const blocks = pool.blocks.filter((block) => matches(filter, pool.name, block.cidr, block.owner ?? ""));
  if (filter !== "" && blocks.length === 0 && !matches(filter, pool.name, pool.cidr)) return null;
  return (
    <Card title={`Pool ${visible(pool.name)}`}>
      <div class="pool">
        <Name text={pool.cidr} />
        <Meter share={share(pool.usage)} label={`Pool ${pool.name}`} />
        <span>{formatNumber(pool.usage.inUse)} of {formatNumber(pool.usage.total)} in use, {formatNumber(pool.usage.reserved)} reserved</span>
      </div>
      <p class="tags">
        {!pool.enabled && <Tag tone="warn">disabled</Tag>}
        <Tag>encapsulation: {pool.encapsulation}</Tag>
        <Tag>blocks of /{pool.blockSize}</Tag>
        <Tag>{pool.natOutgoing ? "NAT for traffic that leaves" : "no NAT"}</Tag>
      </p>
      <BlockPicture blocks={blocks} name={pool.name} />
      <details>
        <summary>{blocks.length} {blocks.length === 1 ? "block" : "blocks"} as a table</summary>
        <BlockTable blocks={blocks} name={pool.name} />
      </details>
    </Card>
  );
}

/** A square for each block, filled as far as its addresses are in use; the table has the same numbers. */
function BlockPicture({ blocks, name }: { blocks: BlockUse[]; name: string }) {
  if (blocks.length === 0) return <p class="muted">No node has a block of this pool.</p>;
  const shown = blocks.slice(0, MAX_PICTURE_BLOCKS);
  const columns = Math.min(32, shown.length);
  const rows = Math.ceil(shown.length / columns);
  return (
    <svg class="blocks" width={columns * 18} height={rows * 18} viewBox={`0 0 ${columns * 18} ${rows * 18}`} role="img" aria-label={`Fill level of ${blocks.length} blocks of pool ${visible(name)}; the table below has the numbers`}>
      {shown.map((block, index) => {
        const height = Math.max(share(block.usage) * 14, block.usage.inUse > 0 ? 1.5 : 0);
        const [x, y] = [(index % columns) * 18 + 1, Math.floor(index / columns) * 18 + 1];
        return (
          <g>
            <title>{visible(`${block.cidr} of ${block.owner ?? "no node"}: ${formatNumber(block.usage.inUse)} of ${formatNumber(block.usage.total)}`)}</title>
            <rect class="track" x={x} y={y} width="14" height="14" rx="2" />
            <rect class="fill" x={x} y={y + 14 - height} width="14" height={height} rx="1" />
          </g>
        );
      })}
    </svg>
  );
}

function BlockTable({ blocks, name }: { blocks: BlockUse[]; name: string }) {
  return (
    <Table
      caption={`Blocks of ${visible(name)}`}
      empty="None."
      rows={blocks}
      columns={[
        { head: "Block", cell: (block) => <Name text={block.cidr} /> },
        { head: "Node", cell: (block) => <Name text={block.owner ?? "none"} /> },
        { head: "In use", number: true, cell: (block) => formatNumber(block.usage.inUse) },
        { head: "Free", number: true, cell: (block) => formatNumber(block.usage.free) },
        { head: "Total", number: true, cell: (block) => formatNumber(block.usage.total) },
      ]}
    />
  );
}
