import { useEffect, useState } from "preact/hooks";
import { type ClusterAnswer, request } from "../api";
import { useCluster } from "../data";
import { navigate, parameter, withParameters } from "../router";
import { Card, Loading, Name, Page, Table, Verdict } from "../ui";

interface EvaluatedRule {
  tier?: string;
  of: string;
  rule: number;
  action: string;
  says: string;
  matched: boolean;
  missing?: string[];
}

interface Section {
  node: string;
  endpoint?: string;
  direction?: string;
  stage?: string;
  allowed: boolean;
  because: string;
  rules: EvaluatedRule[];
  staged?: string[];
  advice?: string[];
}

interface End {
  name: string;
  address: string;
  node?: string;
}

interface Explanation {
  allowed: boolean;
  from: End;
  to: End;
  traffic: string;
  service?: { name: string; endpoints: { name: string; address: string; traffic: string; allowed: boolean }[]; explained?: string };
  sections: Section[];
  notes?: string[];
}

export function ExplainView() {
  const [from, to, port] = [parameter("from"), parameter("to"), parameter("port")];
  const path = from && to && port ? `/api/explain?${new URLSearchParams({ from, to, port }).toString()}` : null;
  const loaded = useCluster<Explanation>(path);
  return (
    <Page title="Explain" lead="Why traffic between two endpoints is allowed or denied: computed from the policies in the datastore, no packet is sent.">
      <QuestionForm key={`${from} ${to} ${port}`} from={from} to={to} port={port} />
      {path ? (
        <Loading loaded={loaded}>{(answer) => <Answer answer={answer} />}</Loading>
      ) : (
        <p class="muted">Places are pods (<code>shop/web-0</code>), services (<code>service:shop/web</code>), host endpoints (<code>hep:gateway</code>), nodes (<code>node:n1</code>) and addresses.</p>
      )}
    </Page>
  );
}

function QuestionForm({ from, to, port }: { from: string; to: string; port: string }) {
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const text = (name: string) => String(form.get(name) ?? "").trim();
    navigate(withParameters({ from: text("from"), to: text("to"), port: text("port") }));
  };
  return (
    <form class="filters" onSubmit={submit}>
      <PlaceField name="from" label="From" value={from} />
      <PlaceField name="to" label="To" value={to} />
      <div class="field">
        <label for="port">Protocol and port</label>
        <input id="port" name="port" defaultValue={port} placeholder="tcp/80" required />
      </div>
      <button type="submit">Explain</button>
    </form>
  );
}

function PlaceField({ name, label, value }: { name: string; label: string; value: string }) {
  const [text, setText] = useState(value);
  const [names, setNames] = useState<string[]>([]);
  useEffect(() => {
    const abort = new AbortController();
    const timer = window.setTimeout(async () => {
      const path = `/api/endpoints?${new URLSearchParams({ q: text }).toString()}`;
      // Without suggestions the field is still usable.
      const answer = await request<ClusterAnswer<string[]>>(path, undefined, abort.signal).catch(() => null);
      if (answer) setNames(answer.data);
    }, 200);
    return () => {
      window.clearTimeout(timer);
      abort.abort();
    };
  }, [text]);
  return (
    <div class="field">
      <label for={name}>{label}</label>
      <input id={name} name={name} value={text} list={`${name}-names`} placeholder="namespace/pod or address" required autocomplete="off" spellcheck={false} onInput={(event) => setText(event.currentTarget.value)} />
      <datalist id={`${name}-names`}>{names.map((known) => <option value={known} />)}</datalist>
    </div>
  );
}

function Answer({ answer }: { answer: Explanation }) {
  const showAll = parameter("all") === "1";
  return (
    <>
      <div class={`verdict-banner ${answer.allowed ? "good" : "bad"}`} role="status">
        <strong><Verdict allowed={answer.allowed} /></strong>
        <span><Name text={answer.traffic} /> from <Name text={answer.from.name} /> to <Name text={answer.to.name} /></span>
      </div>
      <ol class="route" aria-label="Path of the packet">
        <li><Stop title={answer.from.name} detail={answer.from.address} more={answer.from.node} /></li>
        {answer.sections.map((section) => (
          <li>
            <a class={`stop ${section.allowed ? "allowed" : "denied"}`} href={`#${sectionId(section)}`}>
              <span>{section.direction ?? "node"}{section.stage ? `, ${section.stage}` : ""}</span>
              <Name text={section.endpoint ?? section.node} />
              <Verdict allowed={section.allowed} />
            </a>
          </li>
        ))}
        <li><Stop title={answer.to.name} detail={answer.to.address} more={answer.to.node} /></li>
      </ol>
      {answer.service && (
        <Card title={`Endpoints of the service ${answer.service.name}`}>
          <Table
            caption="Endpoints of the service"
            empty="The service has no endpoint."
            rows={answer.service.endpoints}
            columns={[
              { head: "Endpoint", cell: (row) => <Name text={row.name} /> },
              { head: "Address", cell: (row) => <Name text={row.address} /> },
              { head: "Traffic", cell: (row) => <Name text={row.traffic} /> },
              { head: "Verdict", cell: (row) => <Verdict allowed={row.allowed} /> },
            ]}
          />
        </Card>
      )}
      {answer.notes?.map((note) => <p class="muted">Assumed: <Name text={note} mono={false} /></p>)}
      <p class="toggle">
        <a href={withParameters({ all: showAll ? "" : "1" })}>{showAll ? "Show only rules that decide or nearly match" : "Show every rule that was evaluated"}</a>
      </p>
      {answer.sections.map((section) => <SectionCard section={section} showAll={showAll} />)}
    </>
  );
}

function sectionId(section: Section): string {
  return `section-${section.direction ?? "node"}-${section.node}-${section.stage ?? ""}`;
}

function Stop({ title, detail, more }: { title: string; detail: string; more: string | undefined }) {
  return (
    <span class="stop end">
      <Name text={title} />
      <span><Name text={detail} /></span>
      {more && <span>on <Name text={more} /></span>}
    </span>
  );
}

function SectionCard({ section, showAll }: { section: Section; showAll: boolean }) {
  const rules = section.rules.filter((rule) => showAll || rule.matched || (rule.missing?.length ?? 0) <= 1);
  const title = section.endpoint ? `${section.direction} of ${section.endpoint}` : `Node ${section.node}`;
  return (
    <div id={sectionId(section)}>
      <Card title={title} tone={section.allowed ? "good" : "bad"}>
        <p>
          <Verdict allowed={section.allowed} /> <Name text={section.because} mono={false} />
        </p>
        {section.advice?.map((text) => <p class="advice">To change it: <Name text={text} mono={false} /></p>)}
        {section.staged?.map((text) => <p class="muted">Staged: <Name text={text} mono={false} /></p>)}
        <Table
          caption={`Rules evaluated for ${title}`}
          empty={section.rules.length > 0 ? `${section.rules.length} rules were evaluated; none matches or nearly matches.` : "No rule was evaluated."}
          rows={rules}
          columns={[
            { head: "Tier", cell: (rule) => <Name text={rule.tier ?? "profiles"} /> },
            { head: "Of", cell: (rule) => <Name text={rule.of} /> },
            { head: "#", number: true, cell: (rule) => rule.rule },
            { head: "Rule", cell: (rule) => <Name text={rule.says} mono={false} /> },
            { head: "Result", cell: (rule) => (rule.matched ? <strong>matches</strong> : <span>no: <Name text={rule.missing?.join("; ") ?? ""} mono={false} /></span>) },
          ]}
        />
      </Card>
    </div>
  );
}
