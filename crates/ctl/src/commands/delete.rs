//! `delete`: removes objects listed in a file, or by kind and names; continues after failures.

use super::{select_objects, write::print_nothing};
use crate::cli::{DeleteArgs, GlobalArgs};
use crate::failure::{CommandError, CommandResult, print_report};
use crate::ipam::pool_use;
use crate::outcome::BatchOutcome;
use crate::session;
use crate::verbs::{self, VerbError};
use std::io::Write;
use tortie_model::{Kind, Resource};
use tortie_store::{ResourceClient, StoreError};

pub async fn delete(args: &DeleteArgs, global: &GlobalArgs, out: &mut dyn Write) -> CommandResult<()> {
    let resources = select_objects(&args.selection)?;
    if resources.is_empty() {
        return print_nothing(out);
    }
    if resources.iter().any(|r| r.metadata().name.is_empty()) {
        return Err(CommandError::EmptyName);
    }
    let store = session::connect(&args.selection.connection, global).await?;
    let mut outcome = BatchOutcome::new(resources.iter().map(Resource::kind));
    for mut resource in resources {
        let kind = resource.kind();
        let result = match verbs::set_namespace(&mut resource, (&args.selection.namespace).into()) {
            Err(error) => Err(error),
            Ok(()) => delete_one(&store, &resource, args.force).await,
        };
        let result = match result {
            Err(VerbError::Store(StoreError::DoesNotExist { .. })) if args.skip_not_exists => Ok(()),
            other => other,
        };
        outcome.record(kind, result);
    }
    print_report(outcome.report_deletion(), out)
}

async fn delete_one(store: &ResourceClient, resource: &Resource, force: bool) -> verbs::VerbResult<()> {
    if resource.kind() == Kind::IPPool && !force {
        pool_use::check_unused(store, &resource.metadata().name).await?;
    }
    verbs::delete(store, resource).await
}
