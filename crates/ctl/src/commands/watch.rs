//! `get --watch`: prints the existing objects, then every change.

use super::get::load_cluster_facts;
use crate::failure::CommandResult;
use crate::namespace::{RequestedNamespace, resolve};
use crate::output::columns::CellFacts;
use crate::output::table::ColumnWidths;
use crate::output::{OutputError, OutputFormat, TableLayout};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use tortie_model::{Kind, Resource, StoreKey, StoreValue, codec};
use tortie_store::{ResourceClient, StoreEvent};

pub async fn watch(
    store: &ResourceClient,
    wanted: Vec<Resource>,
    requested: RequestedNamespace<'_>,
    format: &OutputFormat,
    out: &mut dyn Write,
) -> CommandResult<()> {
    let Some(kind) = wanted.first().map(Resource::kind) else { return Ok(()) };
    let namespace = resolve(kind, "", requested)?;
    let within = (!namespace.is_empty()).then_some(namespace.as_str());
    let names: Vec<&str> =
        wanted.iter().map(|r| r.metadata().name.as_str()).filter(|n| !n.is_empty()).collect();
    let mut printer = WatchPrinter::new(kind, format, requested, load_cluster_facts(store).await)?;
    let mut known = KnownResources::default();
    let mut changes = store.watch(kind, within)?;
    while let Some(event) = changes.next().await {
        match event {
            StoreEvent::InSync(_) => printer.in_sync(out)?,
            StoreEvent::Unreadable { key, error, .. } => {
                // The watch continues without this entry. Ignore write errors: a closed standard error must
                // not end the watch.
                let _ = writeln!(std::io::stderr(), "{key}: {error}");
            }
            other => {
                if let Some((what, resource)) = known.update(other)
                    && (names.is_empty() || names.contains(&resource.metadata().name.as_str()))
                {
                    printer.print(what, &resource, out)?;
                }
            }
        }
    }
    Ok(())
}

/// The objects received so far: distinguishes additions from changes, and provides the last state of deleted
/// objects.
#[derive(Default)]
struct KnownResources(BTreeMap<StoreKey, Resource>);

impl KnownResources {
    fn update(&mut self, event: StoreEvent) -> Option<(&'static str, Resource)> {
        match event {
            StoreEvent::Put(entry) => {
                let StoreValue::Resource(resource) = entry.value else { return None };
                let before = self.0.insert(entry.key, resource.clone());
                Some((if before.is_some() { "MODIFIED" } else { "ADDED" }, resource))
            }
            StoreEvent::Delete { key, .. } => self.0.remove(&key).map(|resource| ("DELETED", resource)),
            StoreEvent::InSync(_)
            | StoreEvent::Unreadable { .. }
            | StoreEvent::Reached(_)
            | StoreEvent::Reset => None,
        }
    }
}

enum WatchFormat {
    Table(TableLayout),
    Yaml,
    Json,
}

/// Prints changes one by one. Rows of the initial snapshot are buffered to compute the column widths.
struct WatchPrinter {
    shape: WatchFormat,
    facts: CellFacts,
    widths: ColumnWidths,
    waiting: Option<Vec<Vec<String>>>,
}

impl WatchPrinter {
    fn new(
        kind: Kind,
        format: &OutputFormat,
        requested: RequestedNamespace<'_>,
        facts: CellFacts,
    ) -> Result<WatchPrinter, OutputError> {
        let with_namespace = requested.all || requested.namespace.is_some();
        let shape = match format {
            OutputFormat::Yaml => WatchFormat::Yaml,
            OutputFormat::Json => WatchFormat::Json,
            OutputFormat::Template(_) | OutputFormat::TemplateFile(_) => {
                return Err(OutputError::WatchTemplate);
            }
            table => WatchFormat::Table(TableLayout::new(kind, table, with_namespace)?),
        };
        Ok(WatchPrinter { shape, facts, widths: ColumnWidths::default(), waiting: Some(Vec::new()) })
    }

    fn print(&mut self, what: &str, resource: &Resource, out: &mut dyn Write) -> CommandResult<()> {
        match &self.shape {
            WatchFormat::Yaml => write!(out, "---\n{}", codec::to_yaml(&build_event(what, resource)))?,
            WatchFormat::Json => writeln!(out, "{}", build_event(what, resource))?,
            WatchFormat::Table(layout) => {
                let mut row = layout.row(resource, &self.facts);
                row.insert(0, what.to_owned());
                match &mut self.waiting {
                    Some(rows) => rows.push(row),
                    None => {
                        self.widths.widen(&row);
                        out.write_all(self.widths.line(&row).as_bytes())?;
                    }
                }
            }
        }
        out.flush()?;
        Ok(())
    }

    fn in_sync(&mut self, out: &mut dyn Write) -> CommandResult<()> {
        let (WatchFormat::Table(layout), Some(rows)) = (&self.shape, self.waiting.take()) else {
            return Ok(());
        };
        let mut headings = layout.headings();
        headings.insert(0, "EVENT".to_owned());
        // Width of the longest EVENT value.
        self.widths.widen(&["MODIFIED".to_owned()]);
        self.widths.widen(&headings);
        rows.iter().for_each(|row| self.widths.widen(row));
        for row in std::iter::once(&headings).chain(&rows) {
            out.write_all(self.widths.line(row).as_bytes())?;
        }
        out.flush()?;
        Ok(())
    }
}

fn build_event(event: &str, resource: &Resource) -> serde_json::Value {
    json!({"type": event, "object": resource.to_value()})
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_store::StoreEntry;

    fn tier(name: &str) -> Resource {
        let mut resource = Resource::new(Kind::Tier);
        resource.metadata_mut().name = name.into();
        resource
    }

    fn key(name: &str) -> StoreKey {
        StoreKey::Resource { kind: Kind::Tier, namespace: String::new(), name: name.into() }
    }

    fn put(name: &str) -> StoreEvent {
        StoreEvent::Put(StoreEntry {
            key: key(name),
            value: StoreValue::Resource(tier(name)),
            revision: 1.into(),
        })
    }

    #[test]
    fn additions_changes_and_deletions_are_distinguished() {
        let mut known = KnownResources::default();
        let mut what = |event| known.update(event).map(|(what, r)| format!("{what} {}", r.metadata().name));
        assert_eq!(what(put("a")).as_deref(), Some("ADDED a"));
        assert_eq!(what(put("a")).as_deref(), Some("MODIFIED a"));
        assert_eq!(
            what(StoreEvent::Delete { key: key("a"), revision: 3.into() }).as_deref(),
            Some("DELETED a")
        );
        assert_eq!(what(StoreEvent::Delete { key: key("a"), revision: 4.into() }), None);
        assert_eq!(what(put("a")).as_deref(), Some("ADDED a"));
    }

    #[test]
    fn later_rows_continue_the_table_of_the_snapshot() {
        let facts = CellFacts { global_as_number: 1 };
        let mut printer =
            WatchPrinter::new(Kind::Tier, &OutputFormat::Ps, RequestedNamespace::default(), facts).unwrap();
        let mut out = Vec::new();
        printer.print("ADDED", &tier("default"), &mut out).unwrap();
        assert!(out.is_empty());
        printer.in_sync(&mut out).unwrap();
        printer.print("DELETED", &tier("default"), &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "EVENT      NAME      ORDER   \nADDED      default   <nil>   \nDELETED    default   <nil>   \n"
        );
    }
}
