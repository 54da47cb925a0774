import { useCluster } from "../data";
import { parameter } from "../router";
import { Card, FilterChoice, FilterField, Loading, Name, Page, Table, Tag, matches } from "../ui";

interface Rule {
  rule: number;
  action: string;
  text: string;
}

interface Policy {
  kind: string;
  namespace: string;
  name: string;
  order: number | null;
  selector: string;
  types: string[];
  staged: string | null;
  endpoints: number;
  ingress: Rule[];
  egress: Rule[];
  modes: string[];
}

interface Tier {
  name: string;
  order: number | null;
  defaultAction: string;
  exists: boolean;
  policies: Policy[];
}

export function PoliciesView() {
  const loaded = useCluster<Tier[]>("/api/policies");
  return (
    <Page title="Policy board" lead="Tiers in the order in which a packet passes them, each with its policies and rules.">
      <Loading loaded={loaded}>{(tiers) => <Board tiers={tiers} />}</Loading>
    </Page>
  );
}

function select(policy: Policy): boolean {
  const kind = parameter("kind");
  if (kind === "staged" && policy.staged === null) return false;
  if (kind === "enforced" && policy.staged !== null) return false;
  if (kind === "unused" && policy.endpoints > 0) return false;
  const rules = [...policy.ingress, ...policy.egress].map((rule) => rule.text);
  return matches(parameter("q"), `${policy.namespace}/${policy.name}`, policy.selector, policy.kind, ...rules);
}

function Board({ tiers }: { tiers: Tier[] }) {
  const shown = tiers.map((tier) => ({ ...tier, policies: tier.policies.filter(select) }));
  const isFiltered = parameter("q") !== "" || parameter("kind") !== "";
  return (
    <>
      <ol class="pipeline" aria-label="Order of the tiers">
        {tiers.map((tier) => (
          <li>
            <a href={`#tier-${tier.name}`} class="stage">
              <Name text={tier.name} />
              <span>{tier.policies.length} {tier.policies.length === 1 ? "policy" : "policies"}</span>
              <span class="end">end: {tier.defaultAction || "unknown"}</span>
            </a>
          </li>
        ))}
        <li><span class="stage"><span>profiles</span><span class="end">end: Deny</span></span></li>
      </ol>
      <div class="filters">
        <FilterField name="q" label="Filter" hint="name, selector, rule" />
        <FilterChoice
          name="kind"
          label="Show"
          choices={[["", "all policies"], ["enforced", "enforced"], ["staged", "staged"], ["unused", "applying to no endpoint"]]}
        />
      </div>
      {shown.map((tier) => (
        <div id={`tier-${tier.name}`} hidden={isFiltered && tier.policies.length === 0}>
          <Card title={`Tier ${tier.name}`} count={tier.policies.length}>
            <p class="muted">
              order {tier.order ?? "none"} · endpoints with a policy of this tier and no matching rule: {tier.defaultAction || "unknown"}
              {!tier.exists && " · this tier does not exist: its policies are not enforced"}
            </p>
            {tier.policies.length === 0 && <p class="muted">No policies.</p>}
            {tier.policies.slice(0, 500).map((policy) => <PolicyEntry key={`${policy.kind}/${policy.namespace}/${policy.name}`} policy={policy} />)}
            {tier.policies.length > 500 && <p class="muted">{tier.policies.length - 500} more are not shown: use the filter.</p>}
          </Card>
        </div>
      ))}
    </>
  );
}

function PolicyEntry({ policy }: { policy: Policy }) {
  const name = policy.namespace ? `${policy.namespace}/${policy.name}` : policy.name;
  return (
    <details class="policy" open={parameter("open") === `${policy.kind}/${name}`}>
      <summary>
        <Name text={name} />
        <span class="tags">
          <Tag>{policy.kind}</Tag>
          {policy.staged !== null && <Tag tone="staged">staged: {policy.staged}</Tag>}
          {policy.modes.map((mode) => <Tag>{mode}</Tag>)}
          <Tag tone={policy.endpoints === 0 ? "warn" : ""}>{policy.endpoints} {policy.endpoints === 1 ? "endpoint" : "endpoints"}</Tag>
        </span>
      </summary>
      <p class="muted">
        order {policy.order ?? "none"} · applies to <Name text={policy.selector || "all()"} /> · {policy.types.join(" and ") || "no direction"}
      </p>
      {policy.types.includes("Ingress") && <Rules title="Ingress" rules={policy.ingress} name={name} />}
      {policy.types.includes("Egress") && <Rules title="Egress" rules={policy.egress} name={name} />}
    </details>
  );
}

function Rules({ title, rules, name }: { title: string; rules: Rule[]; name: string }) {
  return (
    <>
      <h3>{title}</h3>
      <Table
        caption={`${title} rules of ${name}`}
        empty="No rules: the end of the tier decides."
        rows={rules}
        columns={[
          { head: "#", number: true, cell: (rule) => rule.rule },
          { head: "Action", cell: (rule) => <span class={`action ${rule.action.toLowerCase()}`}>{rule.action}</span> },
          { head: "Rule", cell: (rule) => <Name text={rule.text} mono={false} /> },
        ]}
      />
    </>
  );
}
