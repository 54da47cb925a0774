//! `get`: prints objects by name, or lists of objects.

use super::{selected, watch, write::nothing};
use crate::cli::{GetArgs, GlobalArgs};
use crate::failure::{CommandError, CommandResult};
use crate::namespace::{RequestedNamespace, resolve};
use crate::output::columns::CellFacts;
use crate::output::{GetResult, OutputFormat, render};
use crate::session;
use std::io::Write;
use tortie_model::{Kind, Resource, ResourceList};
use tortie_store::ResourceClient;

/// The AS number of nodes and clusters that configure none.
const DEFAULT_AS_NUMBER: u32 = 64512;

pub async fn get(args: &GetArgs, global: &GlobalArgs, out: &mut dyn Write) -> CommandResult<()> {
    let format = OutputFormat::parse(&args.output).map_err(CommandError::Message)?;
    let wanted = selected(&args.selection).map_err(|failure| match failure {
        CommandError::Input(_) => failure,
        other => CommandError::message(format!("failed to get resources: {other}")),
    })?;
    if wanted.is_empty() {
        return nothing(out);
    }
    let asked = RequestedNamespace {
        namespace: args.selection.namespace.namespace.as_deref(),
        all: args.all_namespaces,
    };
    let with_namespace = asked.all || asked.namespace.is_some_and(|n| !n.is_empty());
    let store = session::connect(&args.selection.connection, global).await?;
    if args.watch {
        return watch::watch(&store, wanted, asked, &format, out).await;
    }
    let mut found = Vec::new();
    let mut errors = Vec::new();
    for resource in wanted {
        match find(&store, &resource, asked).await {
            Ok(one) => found.push(one),
            Err(error) => errors.push(error),
        }
    }
    if args.export && !args.selection.names.is_empty() {
        found.iter_mut().for_each(strip);
    }
    let facts = facts(&store, &found, &format).await;
    let text = render(&found, &format, with_namespace, &facts).map_err(CommandError::Message)?;
    out.write_all(text.as_bytes())?;
    out.flush()?;
    if errors.is_empty() { Ok(()) } else { Err(CommandError::Message(errors.join("\n"))) }
}

async fn find(
    store: &ResourceClient,
    wanted: &Resource,
    asked: RequestedNamespace<'_>,
) -> std::result::Result<GetResult, String> {
    let (kind, meta) = (wanted.kind(), wanted.metadata());
    let namespace = resolve(kind, &meta.namespace, asked).map_err(|error| error.to_string())?;
    if !meta.name.is_empty() {
        if kind.is_namespaced() && namespace.is_empty() {
            return Err("cannot use --all-namespace flag for getting a single resource".to_owned());
        }
        let one = store.get(kind, &namespace, &meta.name).await.map_err(|error| error.to_string())?;
        return Ok(GetResult::One(Box::new(one)));
    }
    let within = (!namespace.is_empty()).then_some(namespace.as_str());
    let (mut list, unreadable) = store.list_all(kind, within).await.map_err(|error| error.to_string())?;
    for error in unreadable {
        // Ignore write errors: a closed standard error must not abort the command.
        let _ = writeln!(std::io::stderr(), "Warning: an entry cannot be read and is left out: {error}");
    }
    sort(&mut list);
    Ok(GetResult::Listed(list))
}

/// Sorts tiers in the order in which they apply.
fn sort(list: &mut ResourceList) {
    if list.kind == Kind::Tier {
        let order = |r: &Resource| {
            r.to_value().pointer("/spec/order").and_then(|o| o.as_f64()).unwrap_or(f64::INFINITY)
        };
        list.items.sort_by(|a, b| {
            order(a).total_cmp(&order(b)).then_with(|| a.metadata().name.cmp(&b.metadata().name))
        });
    }
}

/// Removes the metadata that is specific to this cluster.
fn strip(found: &mut GetResult) {
    if let GetResult::One(resource) = found {
        let meta = resource.metadata_mut();
        meta.namespace.clear();
        meta.uid.clear();
        meta.resource_version.clear();
        meta.creation_timestamp = None;
        meta.deletion_timestamp = None;
        meta.deletion_grace_period_seconds = None;
    }
}

/// Looks up the cluster's AS number if the output may need it.
async fn facts(store: &ResourceClient, found: &[GetResult], format: &OutputFormat) -> CellFacts {
    let template = matches!(format, OutputFormat::Template(_) | OutputFormat::TemplateFile(_));
    let nodes = found.iter().any(|f| f.kind() == Kind::Node);
    let tables = !matches!(format, OutputFormat::Yaml | OutputFormat::Json);
    if template || (nodes && tables) {
        cluster_facts(store).await
    } else {
        CellFacts { global_as_number: DEFAULT_AS_NUMBER }
    }
}

pub async fn cluster_facts(store: &ResourceClient) -> CellFacts {
    let configured = store.get(Kind::BGPConfiguration, "", "default").await.ok().and_then(|configuration| {
        let number = configuration.to_value().pointer("/spec/asNumber")?.as_u64()?;
        u32::try_from(number).ok()
    });
    CellFacts { global_as_number: configured.unwrap_or(DEFAULT_AS_NUMBER) }
}
