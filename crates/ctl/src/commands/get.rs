//! `get`: prints objects by name, or lists of objects.

use super::{select_objects, watch, write::print_nothing};
use crate::cli::{GetArgs, GlobalArgs};
use crate::failure::{CommandError, CommandResult};
use crate::namespace::{RequestedNamespace, resolve};
use crate::output::columns::CellFacts;
use crate::output::{GetResult, OutputFormat, render};
use crate::session;
use serde_json::Value;
use std::io::Write;
use tortie_model::{Kind, Resource, ResourceList};
use tortie_store::ResourceClient;

/// The AS number of nodes and clusters that configure none.
const DEFAULT_AS_NUMBER: u32 = 64512;

pub async fn get(args: &GetArgs, global: &GlobalArgs, out: &mut dyn Write) -> CommandResult<()> {
    let format = OutputFormat::parse(&args.output)?;
    let wanted = select_objects(&args.selection).map_err(|error| match error {
        CommandError::Input(_) => error,
        other => CommandError::context("failed to get resources", other),
    })?;
    if wanted.is_empty() {
        return print_nothing(out);
    }
    let requested = RequestedNamespace { all: args.all_namespaces, ..(&args.selection.namespace).into() };
    let with_namespace = requested.all || requested.namespace.is_some_and(|n| !n.is_empty());
    let store = session::connect(&args.selection.connection, global).await?;
    if args.watch {
        return watch::watch(&store, wanted, requested, &format, out).await;
    }
    let mut found = Vec::new();
    let mut errors = Vec::new();
    for resource in wanted {
        match find(&store, &resource, requested).await {
            Ok(one) => found.push(one),
            Err(error) => errors.push(error.to_string()),
        }
    }
    if args.export && !args.selection.names.is_empty() {
        found.iter_mut().for_each(strip_metadata);
    }
    let facts = load_facts(&store, &found, &format).await;
    out.write_all(render(&found, &format, with_namespace, &facts)?.as_bytes())?;
    out.flush()?;
    if errors.is_empty() { Ok(()) } else { Err(CommandError::message(errors.join("\n"))) }
}

async fn find(
    store: &ResourceClient,
    wanted: &Resource,
    requested: RequestedNamespace<'_>,
) -> CommandResult<GetResult> {
    let kind = wanted.kind();
    let meta = wanted.metadata();
    let namespace = resolve(kind, &meta.namespace, requested)?;
    if !meta.name.is_empty() {
        if kind.is_namespaced() && namespace.is_empty() {
            return Err(CommandError::message(
                "cannot use --all-namespace flag for getting a single resource",
            ));
        }
        return Ok(GetResult::One(Box::new(store.get(kind, &namespace, &meta.name).await?)));
    }
    let within = (!namespace.is_empty()).then_some(namespace.as_str());
    let (mut list, unreadable) = store.list_all(kind, within).await?;
    for error in unreadable {
        // Ignore write errors: a closed standard error must not abort the command.
        let _ = writeln!(std::io::stderr(), "Warning: an entry cannot be read and is left out: {error}");
    }
    if kind == Kind::Tier {
        sort_tiers(&mut list);
    }
    Ok(GetResult::Listed(list))
}

/// Sorts tiers in the order in which they apply.
fn sort_tiers(tiers: &mut ResourceList) {
    tiers.items.sort_by(|a, b| {
        let by_order = read_tier_order(a).total_cmp(&read_tier_order(b));
        by_order.then_with(|| a.metadata().name.cmp(&b.metadata().name))
    });
}

fn read_tier_order(tier: &Resource) -> f64 {
    tier.to_value().pointer("/spec/order").and_then(Value::as_f64).unwrap_or(f64::INFINITY)
}

/// Removes the metadata that is specific to this cluster.
fn strip_metadata(found: &mut GetResult) {
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
async fn load_facts(store: &ResourceClient, found: &[GetResult], format: &OutputFormat) -> CellFacts {
    let template = matches!(format, OutputFormat::Template(_) | OutputFormat::TemplateFile(_));
    let nodes = found.iter().any(|f| f.kind() == Kind::Node);
    let tables = !matches!(format, OutputFormat::Yaml | OutputFormat::Json);
    if template || (nodes && tables) {
        load_cluster_facts(store).await
    } else {
        CellFacts { global_as_number: DEFAULT_AS_NUMBER }
    }
}

pub async fn load_cluster_facts(store: &ResourceClient) -> CellFacts {
    let configured = store.get(Kind::BGPConfiguration, "", "default").await.ok().and_then(|configuration| {
        let number = configuration.to_value().pointer("/spec/asNumber")?.as_u64()?;
        u32::try_from(number).ok()
    });
    CellFacts { global_as_number: configured.unwrap_or(DEFAULT_AS_NUMBER) }
}
