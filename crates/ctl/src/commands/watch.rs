//! `get --watch`: prints the existing objects, then every change.

use super::get::cluster_facts;
use crate::failure::{Failure, Result};
use crate::namespace::{Asked, resolve};
use crate::output::columns::Facts;
use crate::output::table::Widths;
use crate::output::{Format, Layout};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use tortie_model::{Key, Kind, Resource, Value, codec};
use tortie_store::{Event, Resources};

pub async fn watch(
    store: &Resources,
    wanted: Vec<Resource>,
    asked: Asked<'_>,
    format: &Format,
    out: &mut dyn Write,
) -> Result<()> {
    let Some(kind) = wanted.first().map(Resource::kind) else { return Ok(()) };
    let namespace = resolve(kind, "", asked).map_err(|error| Failure::message(error.to_string()))?;
    let within = (!namespace.is_empty()).then_some(namespace.as_str());
    let names: Vec<&str> =
        wanted.iter().map(|r| r.metadata().name.as_str()).filter(|n| !n.is_empty()).collect();
    let mut printer =
        Printer::new(kind, format, asked, cluster_facts(store).await).map_err(Failure::Message)?;
    let mut known = Known::default();
    let mut changes = store.watch(kind, within)?;
    while let Some(event) = changes.next().await {
        match event {
            Event::InSync(_) => printer.in_sync(out)?,
            Event::Unreadable { key, error, .. } => {
                // The watch continues without this entry. Ignore write errors: a closed standard error must
                // not end the watch.
                let _ = writeln!(std::io::stderr(), "{key}: {error}");
            }
            other => {
                if let Some((what, resource)) = known.note(other)
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
struct Known(BTreeMap<Key, Resource>);

impl Known {
    fn note(&mut self, event: Event) -> Option<(&'static str, Resource)> {
        match event {
            Event::Put(entry) => {
                let Value::Resource(resource) = entry.value else { return None };
                let before = self.0.insert(entry.key, resource.clone());
                Some((if before.is_some() { "MODIFIED" } else { "ADDED" }, resource))
            }
            Event::Delete { key, .. } => self.0.remove(&key).map(|resource| ("DELETED", resource)),
            Event::InSync(_) | Event::Unreadable { .. } | Event::Reached(_) | Event::Reset => None,
        }
    }
}

enum Shape {
    Table(Layout),
    Yaml,
    Json,
}

/// Prints changes one by one. Rows of the initial snapshot are buffered to compute the column widths.
struct Printer {
    shape: Shape,
    facts: Facts,
    widths: Widths,
    waiting: Option<Vec<Vec<String>>>,
}

impl Printer {
    fn new(
        kind: Kind,
        format: &Format,
        asked: Asked<'_>,
        facts: Facts,
    ) -> std::result::Result<Printer, String> {
        let with_namespace = asked.all || asked.namespace.is_some();
        let shape = match format {
            Format::Yaml => Shape::Yaml,
            Format::Json => Shape::Json,
            Format::Template(_) | Format::TemplateFile(_) => {
                return Err(
                    "--watch prints tables, yaml or json; a go-template needs the whole result".to_owned()
                );
            }
            table => Shape::Table(Layout::new(kind, table, with_namespace)?),
        };
        Ok(Printer { shape, facts, widths: Widths::default(), waiting: Some(Vec::new()) })
    }

    fn print(&mut self, what: &str, resource: &Resource, out: &mut dyn Write) -> Result<()> {
        let change = || json!({"type": what, "object": resource.to_value()});
        match &self.shape {
            Shape::Yaml => write!(out, "---\n{}", codec::to_yaml(&change()))?,
            Shape::Json => writeln!(out, "{}", change())?,
            Shape::Table(layout) => {
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

    fn in_sync(&mut self, out: &mut dyn Write) -> Result<()> {
        let (Shape::Table(layout), Some(rows)) = (&self.shape, self.waiting.take()) else { return Ok(()) };
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

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_store::Entry;

    fn tier(name: &str) -> Resource {
        let mut resource = Resource::new(Kind::Tier);
        resource.metadata_mut().name = name.into();
        resource
    }

    fn key(name: &str) -> Key {
        Key::Resource { kind: Kind::Tier, namespace: String::new(), name: name.into() }
    }

    fn put(name: &str) -> Event {
        Event::Put(Entry { key: key(name), value: Value::Resource(tier(name)), revision: 1.into() })
    }

    #[test]
    fn additions_changes_and_deletions_are_distinguished() {
        let mut known = Known::default();
        let mut what = |event| known.note(event).map(|(what, r)| format!("{what} {}", r.metadata().name));
        assert_eq!(what(put("a")).as_deref(), Some("ADDED a"));
        assert_eq!(what(put("a")).as_deref(), Some("MODIFIED a"));
        assert_eq!(what(Event::Delete { key: key("a"), revision: 3.into() }).as_deref(), Some("DELETED a"));
        assert_eq!(what(Event::Delete { key: key("a"), revision: 4.into() }), None);
        assert_eq!(what(put("a")).as_deref(), Some("ADDED a"));
    }

    #[test]
    fn the_snapshot_is_a_table_that_later_rows_continue() {
        let facts = Facts { global_as_number: 1 };
        let mut printer = Printer::new(Kind::Tier, &Format::Ps, Asked::default(), facts).unwrap();
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
