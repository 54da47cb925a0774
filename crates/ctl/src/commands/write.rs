//! `create`, `apply`, `replace` and `validate`: process the objects of files and print a summary.

use crate::analyze;
use crate::cli::{FromFileArgs, GlobalArgs};
use crate::failure::{CommandResult, print_report};
use crate::input::{self, AcceptedKinds};
use crate::namespace::RequestedNamespace;
use crate::outcome::{self, BatchOutcome, VerbWording};
use crate::progress::ProgressLine;
use crate::session;
use crate::verbs::{self, VerbError};
use std::io::Write;
use tortie_model::Resource;
use tortie_store::{ResourceClient, StoreError};

#[derive(Clone, Copy)]
pub enum WriteVerb {
    Create { skip_exists: bool },
    Apply,
    Replace,
}

impl WriteVerb {
    fn wording(self) -> VerbWording {
        match self {
            WriteVerb::Create { .. } => outcome::CREATE_WORDING,
            WriteVerb::Apply => outcome::APPLY_WORDING,
            WriteVerb::Replace => outcome::REPLACE_WORDING,
        }
    }
}

pub fn validate(args: &FromFileArgs, out: &mut dyn Write) -> CommandResult<()> {
    let reading = &args.reading;
    let kinds = AcceptedKinds::All;
    let resources = input::resources_of(kinds, &args.filename, reading.recursive, reading.skip_empty)?;
    if resources.is_empty() {
        return print_nothing(out);
    }
    let mut outcome = BatchOutcome::new(resources.iter().map(Resource::kind));
    for mut resource in resources {
        let kind = resource.kind();
        let checked = verbs::set_namespace(&mut resource, (&args.namespace).into()).and_then(|()| {
            resource.set_defaults();
            resource.validate().map_err(|error| VerbError::Store(StoreError::Validation(error)))
        });
        outcome.record(kind, checked);
    }
    print_report(outcome.report(outcome::VALIDATE_WORDING), out)
}

pub async fn write(
    args: &FromFileArgs,
    global: &GlobalArgs,
    verb: WriteVerb,
    out: &mut dyn Write,
) -> CommandResult<()> {
    let resources = read(args)?;
    if resources.is_empty() {
        return print_nothing(out);
    }
    let store = session::connect(&args.connection, global).await?;
    initialize(&store).await;
    let written = resources.clone();
    let outcome = write_all(&store, resources, (&args.namespace).into(), verb).await;
    let done = outcome.handled > 0;
    print_report(outcome.report(verb.wording()), out)?;
    if done {
        analyze::warn(&store, written, (&args.namespace).into()).await;
    }
    Ok(())
}

async fn write_all(
    store: &ResourceClient,
    resources: Vec<Resource>,
    requested: RequestedNamespace<'_>,
    verb: WriteVerb,
) -> BatchOutcome {
    let mut outcome = BatchOutcome::new(resources.iter().map(Resource::kind));
    let mut progress = ProgressLine::new(verb.wording().present, resources.len());
    for mut resource in resources {
        let kind = resource.kind();
        let result = match verbs::set_namespace(&mut resource, requested) {
            Err(error) => Err(error),
            Ok(()) => match verb {
                WriteVerb::Apply => verbs::apply(store, resource).await.map(drop),
                WriteVerb::Replace => verbs::replace(store, resource).await.map(drop),
                WriteVerb::Create { skip_exists } => match verbs::create(store, resource).await {
                    Err(VerbError::Store(StoreError::AlreadyExists { .. })) if skip_exists => Ok(()),
                    other => other.map(drop),
                },
            },
        };
        let failed = result.is_err();
        outcome.record(kind, result);
        progress.step();
        if failed && !verb.wording().continues_after_errors {
            break;
        }
    }
    outcome
}

/// Applies resources one by one, for commands whose resources do not come from a file.
pub async fn apply_all(store: &ResourceClient, resources: Vec<Resource>) -> BatchOutcome {
    write_all(store, resources, RequestedNamespace::default(), WriteVerb::Apply).await
}

/// Initialises the datastore. A user who may only write some kinds may lack the permission; then the write
/// itself reports the error.
async fn initialize(store: &ResourceClient) {
    if let Err(error) = store.ensure_initialized("", "").await {
        tracing::info!(%error, "the datastore could not be initialised");
    }
}

fn read(args: &FromFileArgs) -> CommandResult<Vec<Resource>> {
    Ok(input::resources(&args.filename, args.reading.recursive, args.reading.skip_empty)?)
}

pub fn print_nothing(out: &mut dyn Write) -> CommandResult<()> {
    writeln!(out, "No resources specified")?;
    Ok(())
}
