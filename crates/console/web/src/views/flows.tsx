import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, request } from "../api";
import { navigate, parameter, withParameters } from "../router";
import { session } from "../session";
import { Card, FilterChoice, FilterField, Name, Notice, Page, Table, Verdict, formatBytes, formatTime, matches, visible } from "../ui";

interface Hit {
  kind: string;
  name: string;
  namespace: string;
  tier: string;
  action: string;
  rule_index: number;
}

export interface Flow {
  start_time: string;
  end_time: string;
  action: string;
  source_name: string;
  source_namespace: string;
  source_labels: string;
  dest_name: string;
  dest_namespace: string;
  dest_labels: string;
  protocol: string;
  dest_port: number;
  reporter: string;
  policies: { enforced: Hit[]; pending: Hit[] };
  packets_in: number;
  packets_out: number;
  bytes_in: number;
  bytes_out: number;
}

/** Rows that are kept; older ones make room. */
const MAX_ROWS = 5000;
const ROW_HEIGHT = 34;
const VISIBLE_ROWS = 18;
/** Time until the stream is opened again after it ended. */
const RETRY_MILLISECONDS = 3000;

export function NoCollector() {
  return (
    <Notice tone="info">
      No flow collector is configured, so there is no traffic to show. Run <code>tortie flows serve</code> (or Goldmane) and start the
      console with <code>--collector HOST:PORT</code> and its certificates.
    </Notice>
  );
}

export function place(namespace: string, name: string): string {
  return namespace === "" || namespace === "-" ? name : `${namespace}/${name}`;
}

/** Identity of a flow: records of the same flow in several buckets have it. */
function keyOf(flow: Flow): string {
  return JSON.stringify([
    flow.source_namespace,
    flow.source_name,
    flow.dest_namespace,
    flow.dest_name,
    flow.protocol,
    flow.dest_port,
    flow.reporter,
    flow.action,
    flow.policies,
  ]);
}

export function FlowsView() {
  return (
    <Page title="Flows" lead="Traffic of all namespaces as the collector receives it: the newest first.">
      {session.value?.collector ? <FlowList /> : <NoCollector />}
    </Page>
  );
}

function sinceSeconds(): number {
  return Number(parameter("since") || "900");
}

function FlowList() {
  const [flows, setFlows] = useState<Flow[]>([]);
  const [state, setState] = useState("loading");
  const [error, setError] = useState("");
  const [lost, setLost] = useState(0);
  const paused = parameter("paused") === "1";
  /** Grows when the stream is opened again. Then the list is also read again: the stream starts with the present. */
  const [attempt, setAttempt] = useState(0);
  /** End of each flow in the list. The stream repeats those of buckets that were not complete. */
  const listed = useRef(new Map<string, string>());
  const since = sinceSeconds();
  useEffect(() => {
    const abort = new AbortController();
    const load = async () => {
      try {
        const answer = await request<{ data: { flows: Flow[]; omitted: number } }>(`/api/flows?startTimeGte=${-since}`, undefined, abort.signal);
        listed.current = new Map(answer.data.flows.map((flow) => [keyOf(flow), flow.end_time]));
        setFlows(answer.data.flows);
        setLost(answer.data.omitted);
        setError("");
        setState((last) => (last === "loading" ? "loaded" : last));
      } catch (failure) {
        if (abort.signal.aborted) return;
        setError(failure instanceof ApiError ? failure.message : String(failure));
      }
    };
    void load();
    return () => abort.abort();
  }, [since, attempt]);
  useEffect(() => {
    if (paused) return;
    const source = new EventSource("/api/flows/stream");
    let retry: ReturnType<typeof setTimeout> | undefined;
    const reopen = () => {
      source.close();
      setState("reconnecting");
      clearTimeout(retry);
      retry = setTimeout(() => setAttempt((last) => last + 1), RETRY_MILLISECONDS);
    };
    source.addEventListener("open", () => setState("live"));
    source.addEventListener("flows", (event) => {
      const batch = JSON.parse((event as MessageEvent<string>).data) as { flows: Flow[]; lost: number };
      const fresh = batch.flows.filter((flow) => (listed.current.get(keyOf(flow)) ?? "") < flow.end_time);
      setFlows((last) => [...fresh.reverse(), ...last].slice(0, MAX_ROWS));
      setLost((last) => Math.max(last, batch.lost));
      setError("");
    });
    source.addEventListener("ended", reopen);
    source.addEventListener("error", reopen);
    return () => {
      clearTimeout(retry);
      source.close();
    };
  }, [paused, attempt]);
  const togglePause = () => {
    if (paused) setAttempt((last) => last + 1);
    navigate(withParameters({ paused: paused ? "" : "1" }));
  };
  const [q, verdict, namespace] = [parameter("q"), parameter("verdict"), parameter("namespace")];
  const shown = useMemo(
    () =>
      flows.filter(
        (flow) =>
          (verdict === "" || (verdict === "denied") === (flow.action === "Deny")) &&
          (namespace === "" || flow.source_namespace === namespace || flow.dest_namespace === namespace) &&
          matches(q, place(flow.source_namespace, flow.source_name), place(flow.dest_namespace, flow.dest_name), `${flow.protocol}/${flow.dest_port}`),
      ),
    [flows, q, verdict, namespace],
  );
  return (
    <>
      <div class="filters">
        <FilterField name="q" label="Filter" hint="name, tcp/80" />
        <FilterField name="namespace" label="Namespace" hint="all" />
        <FilterChoice name="verdict" label="Verdict" choices={[["", "all"], ["allowed", "allowed"], ["denied", "denied"]]} />
        <FilterChoice name="since" label="From the last" choices={[["", "15 minutes"], ["60", "minute"], ["300", "5 minutes"], ["3600", "hour"]]} />
        <button type="button" aria-pressed={paused} onClick={togglePause}>{paused ? "Continue" : "Pause"}</button>
      </div>
      {error && <Notice tone="bad">{visible(error)}</Notice>}
      <p role="status" class="muted">
        {shown.length} of {flows.length} flows · {paused ? "paused" : state}
        {lost > 0 && ` · ${lost} more are not shown`}
      </p>
      <FlowTable flows={shown} />
    </>
  );
}

function FlowTable({ flows }: { flows: Flow[] }) {
  const [first, setFirst] = useState(0);
  const [open, setOpen] = useState<Flow | null>(null);
  const region = useRef<HTMLDivElement>(null);
  const start = Math.max(0, Math.min(first, flows.length - VISIBLE_ROWS) - 5);
  const rows = flows.slice(start, start + VISIBLE_ROWS + 10);
  if (flows.length === 0) return <p class="muted">No flows match.</p>;
  return (
    <>
      <div class="scroll rows" role="region" aria-label="Flows" tabIndex={0} ref={region} onScroll={(event) => setFirst(Math.floor(event.currentTarget.scrollTop / ROW_HEIGHT))}>
        <table aria-rowcount={flows.length}>
          <thead>
            <tr>{["Start", "From", "To", "Port", "Verdict", "Bytes", ""].map((head) => <th scope="col" class={head === "Bytes" ? "number" : undefined}>{head || <span class="hidden">Details</span>}</th>)}</tr>
          </thead>
          <tbody>
            {start > 0 && <tr aria-hidden="true"><td colSpan={7} style={{ height: `${start * ROW_HEIGHT}px` }} /></tr>}
            {rows.map((flow, index) => (
              <tr aria-rowindex={start + index + 1}>
                <td>{formatTime(flow.start_time)}</td>
                <td><Name text={place(flow.source_namespace, flow.source_name)} /></td>
                <td><Name text={place(flow.dest_namespace, flow.dest_name)} /></td>
                <td><Name text={`${flow.protocol}/${flow.dest_port}`} /></td>
                <td><Verdict allowed={flow.action !== "Deny"} /></td>
                <td class="number">{formatBytes(flow.bytes_in + flow.bytes_out)}</td>
                <td><button type="button" class="plain" onClick={() => setOpen(flow)}>Details</button></td>
              </tr>
            ))}
            {start + rows.length < flows.length && <tr aria-hidden="true"><td colSpan={7} style={{ height: `${(flows.length - start - rows.length) * ROW_HEIGHT}px` }} /></tr>}
          </tbody>
        </table>
      </div>
      {open && <FlowDetails flow={open} />}
    </>
  );
}

function FlowDetails({ flow }: { flow: Flow }) {
  const [from, to] = [place(flow.source_namespace, flow.source_name), place(flow.dest_namespace, flow.dest_name)];
  const question = new URLSearchParams({ from, to, port: `${flow.protocol}/${flow.dest_port}` });
  return (
    <Card title={`${visible(from)} to ${visible(to)}`} tone={flow.action === "Deny" ? "bad" : "good"}>
      <p>
        <Verdict allowed={flow.action !== "Deny"} /> reported by the {flow.reporter === "Src" ? "source" : "destination"}, {flow.packets_in + flow.packets_out} packets · <a href={`/explain?${question.toString()}`}>Explain</a>
      </p>
      <Table
        caption="Policies that this flow passed"
        empty="No policy is recorded."
        rows={[...flow.policies.enforced.map((hit) => ({ hit, staged: false })), ...flow.policies.pending.map((hit) => ({ hit, staged: true }))]}
        columns={[
          { head: "Set", cell: (row) => (row.staged ? "with staged" : "enforced") },
          { head: "Tier", cell: (row) => <Name text={row.hit.tier} /> },
          { head: "Policy", cell: (row) => <Name text={`${row.hit.kind} ${place(row.hit.namespace, row.hit.name)}`} /> },
          { head: "Rule", number: true, cell: (row) => (row.hit.rule_index < 0 ? "end" : row.hit.rule_index + 1) },
          { head: "Action", cell: (row) => row.hit.action },
        ]}
      />
      <p class="muted">Labels of the source: <Name text={flow.source_labels || "none"} />; of the destination: <Name text={flow.dest_labels || "none"} /></p>
    </Card>
  );
}
