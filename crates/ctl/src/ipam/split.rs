//! `ipam split`: replaces one pool with several smaller ones; all addresses stay assigned.

use super::IpamSplitArgs;
use crate::failure::{CommandError, CommandResult};
use crate::migrate::lock::is_locked;
use crate::session::string_at;
use serde_json::json;
use std::io::Write;
use tortie_ipam::space;
use tortie_model::{Kind, Resource, StoreKey, StoreValue};
use tortie_store::{EntryChange, ResourceClient};

/// Number of characters kept from the old name, so that the new names do not exceed the limit.
const MAX_KEPT_NAME_CHARS: usize = 245;
/// Maximum number of changes per transaction; etcd accepts 128 operations.
const MAX_TRANSACTION_CHANGES: usize = 100;

pub async fn split(args: &IpamSplitArgs, store: &ResourceClient, out: &mut dyn Write) -> CommandResult<()> {
    let number = args.number.parse::<u32>().ok().filter(|n| *n >= 2 && n.is_power_of_two());
    let Some(number) = number else {
        return Err(CommandError::message(format!(
            "the number of pools to split into must be a power of 2 and at least 2, not '{}'",
            args.number
        )));
    };
    // Checked before the first write: an interrupted split would leave a pool that is disabled and not
    // replaced.
    if !store.client().has_transactions() {
        return Err(CommandError::message(
            "ipam split is not supported on the Kubernetes API datastore, which changes one object at a time",
        ));
    }
    if !is_locked(store).await? {
        return Err(CommandError::message(
            "the datastore is not locked: run 'calicoctl datastore migrate lock' before splitting an IP pool",
        ));
    }
    let pool = find_pool(args, store).await?;
    let name = pool.metadata().name.clone();
    let pieces = divide(&pool, number)?;

    let mut old = pool.to_value();
    old["spec"]["disabled"] = json!(true);
    let old = convert_to_resource(old)?;
    let revision = store.update(old).await?.metadata().resource_version.clone();
    let revision = revision.parse().map_err(|_| CommandError::message("the pool has no revision"))?;
    let mut changes: Vec<EntryChange> = pieces.iter().map(|piece| create(piece.clone())).collect();
    changes.push(EntryChange::Delete { key: StoreKey::resource(Kind::IPPool, "", &name), revision });
    for batch in changes.chunks(MAX_TRANSACTION_CHANGES) {
        store.client().transact(batch).await?;
    }
    writeln!(out, "IP Pool {name} was successfully split into {number} smaller pools.")?;
    for piece in &pieces {
        let object = piece.to_value();
        writeln!(out, "Created {} with CIDR {}.", piece.metadata().name, string_at(&object, "/spec/cidr"))?;
    }
    Ok(())
}

async fn find_pool(args: &IpamSplitArgs, store: &ResourceClient) -> CommandResult<Resource> {
    if let Some(name) = &args.name {
        return Ok(store.get(Kind::IPPool, "", name).await?);
    }
    let wanted = args.cidr.as_deref().unwrap_or_default();
    let pools = store.list(Kind::IPPool, None).await?.items;
    let found = pools.into_iter().find(|pool| string_at(&pool.to_value(), "/spec/cidr") == wanted);
    found.ok_or_else(|| {
        CommandError::message(format!("Unable to find IP pool covering the specified CIDR {wanted}"))
    })
}

/// Returns the new pools: enabled, and otherwise identical to the old pool except for name and CIDR.
fn divide(pool: &Resource, number: u32) -> CommandResult<Vec<Resource>> {
    let read = tortie_ipam::facts::pool(pool);
    let read = read.ok_or_else(|| CommandError::message("the pool's CIDR or block size is not valid"))?;
    let bits = u8::try_from(number.trailing_zeros()).unwrap_or(u8::MAX);
    let prefix = read.cidr.prefix_len().saturating_add(bits);
    if prefix > read.block_prefix {
        return Err(CommandError::message(format!(
            "IP pool {} has only {} blocks of /{}: it cannot be split into {number} pools",
            read.cidr,
            read.block_count(),
            read.block_prefix
        )));
    }
    let short: String = read.name.chars().take(MAX_KEPT_NAME_CHARS).collect();
    (0..number)
        .map(|index| {
            let cidr = space::nth_block(&read.cidr, prefix, u128::from(index));
            let cidr = cidr.ok_or_else(|| CommandError::message("the pool cannot be split that far"))?;
            let mut object = pool.to_value();
            object["metadata"] = json!({
                "name": format!("split-{short}-{index}"),
                "uid": uuid::Uuid::new_v4().to_string(),
                "creationTimestamp": format!("{:.0}", jiff::Timestamp::now()),
            });
            object["spec"]["cidr"] = json!(cidr.to_string());
            if let Some(spec) = object["spec"].as_object_mut() {
                spec.remove("disabled");
            }
            if let Some(object) = object.as_object_mut() {
                object.remove("status");
            }
            convert_to_resource(object)
        })
        .collect()
}

fn convert_to_resource(object: serde_json::Value) -> CommandResult<Resource> {
    Resource::from_store(Kind::IPPool, object).map_err(CommandError::message)
}

fn create(pool: Resource) -> EntryChange {
    EntryChange::Create {
        key: StoreKey::resource(Kind::IPPool, "", &pool.metadata().name),
        value: StoreValue::Resource(pool),
    }
}
