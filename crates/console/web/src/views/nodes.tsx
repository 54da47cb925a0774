import { useCluster } from "../data";
import { parameter } from "../router";
import { Card, FilterChoice, FilterField, Loading, Name, Page, Table, Tag, formatTime, matches } from "../ui";

interface NodeItem {
  name: string;
  addresses: string[];
  asNumber: string | null;
  workloads: number;
  blocks: number;
  encrypts: boolean;
  labels: string[];
  warnings: { object: string; reason: string; advice: string }[];
  report?: { updated: string | null; version: string; ready: boolean | null; established: number; notEstablished: number };
}

export function NodesView() {
  const loaded = useCluster<NodeItem[]>("/api/nodes");
  return (
    <Page title="Nodes" lead="What each node publishes about itself in the datastore, and what runs on it.">
      <div class="filters">
        <FilterField name="q" label="Filter" hint="name, address, label" />
        <FilterChoice name="show" label="Show" choices={[["", "all nodes"], ["warnings", "with warnings"]]} />
      </div>
      <Loading loaded={loaded}>{(nodes) => <NodeTable nodes={nodes} />}</Loading>
    </Page>
  );
}

function NodeTable({ nodes }: { nodes: NodeItem[] }) {
  const filter = parameter("q");
  const shown = nodes.filter(
    (node) => (parameter("show") === "" || node.warnings.length > 0) && matches(filter, node.name, ...node.addresses, ...node.labels),
  );
  return (
    <>
      <Card title="Nodes" count={shown.length}>
        <Table
          caption="Nodes"
          empty={nodes.length > 0 ? "No node matches the filter." : "There are no nodes."}
          rows={shown}
          columns={[
            { head: "Name", cell: (node) => <Name text={node.name} /> },
            { head: "Addresses", cell: (node) => node.addresses.map((address) => <div><Name text={address} /></div>) },
            { head: "Workloads", number: true, cell: (node) => node.workloads },
            { head: "Blocks", number: true, cell: (node) => node.blocks },
            { head: "AS", number: true, cell: (node) => <Name text={node.asNumber ?? "default"} /> },
            { head: "WireGuard", cell: (node) => (node.encrypts ? "key published" : "no key") },
            { head: "BGP", cell: (node) => (node.report ? `${node.report.established} up, ${node.report.notEstablished} down, ${node.report.updated ? formatTime(node.report.updated) : "never updated"}` : "not reported") },
            { head: "Warnings", cell: (node) => (node.warnings.length > 0 ? <Tag tone="warn">{node.warnings.length}</Tag> : "none") },
          ]}
        />
      </Card>
      {shown.filter((node) => node.warnings.length > 0).map((node) => (
        <Card title={`Warnings of ${node.name}`} count={node.warnings.length} tone="warn">
          <ul class="findings">
            {node.warnings.map((warning) => (
              <li>
                <Name text={warning.object} />
                <p><Name text={warning.reason} mono={false} /></p>
                <p class="advice"><Name text={warning.advice} mono={false} /></p>
              </li>
            ))}
          </ul>
        </Card>
      ))}
    </>
  );
}
