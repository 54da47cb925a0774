//! `create`, `apply`, `replace` and `validate`: process the objects of files and print a summary.

use crate::analyze;
use crate::cli::{CreateArgs, FromFileArgs, GlobalArgs};
use crate::failure::{CommandResult, tell};
use crate::input;
use crate::namespace::RequestedNamespace;
use crate::outcome::{self, BatchOutcome, VerbWording};
use crate::progress::ProgressLine;
use crate::session;
use crate::verbs::{self, VerbError};
use std::io::Write;
use tortie_model::Resource;
use tortie_store::{ResourceClient, StoreError};

enum WriteVerb {
    Create { skip_exists: bool },
    Apply,
    Replace,
}

pub async fn create(args: &CreateArgs, global: &GlobalArgs, out: &mut dyn Write) -> CommandResult<()> {
    run(
        &args.input,
        global,
        WriteVerb::Create { skip_exists: args.skip_exists },
        outcome::CREATE_WORDING,
        out,
    )
    .await
}

pub async fn apply(args: &FromFileArgs, global: &GlobalArgs, out: &mut dyn Write) -> CommandResult<()> {
    run(args, global, WriteVerb::Apply, outcome::APPLY_WORDING, out).await
}

pub async fn replace(args: &FromFileArgs, global: &GlobalArgs, out: &mut dyn Write) -> CommandResult<()> {
    run(args, global, WriteVerb::Replace, outcome::REPLACE_WORDING, out).await
}

pub fn validate(args: &FromFileArgs, out: &mut dyn Write) -> CommandResult<()> {
    let resources = read(args)?;
    if resources.is_empty() {
        return nothing(out);
    }
    let mut outcome = BatchOutcome::of(resources.iter().map(Resource::kind));
    for mut resource in resources {
        let kind = resource.kind();
        let checked = verbs::place(&mut resource, asked(args)).and_then(|()| {
            resource.set_defaults();
            resource.validate().map_err(|error| VerbError::Store(StoreError::Validation(error)))
        });
        outcome.note(kind, checked);
    }
    tell(outcome.report(outcome::VALIDATE_WORDING), out)
}

async fn run(
    args: &FromFileArgs,
    global: &GlobalArgs,
    verb: WriteVerb,
    wording: VerbWording,
    out: &mut dyn Write,
) -> CommandResult<()> {
    let resources = read(args)?;
    if resources.is_empty() {
        return nothing(out);
    }
    let store = session::connect(&args.connection, global).await?;
    initialize(&store).await;
    let written = resources.clone();
    let outcome = write_all(&store, resources, asked(args), &verb, wording).await;
    let done = outcome.handled > 0;
    tell(outcome.report(wording), out)?;
    if done {
        analyze::warn(&store, written, asked(args)).await;
    }
    Ok(())
}

async fn write_all(
    store: &ResourceClient,
    resources: Vec<Resource>,
    asked: RequestedNamespace<'_>,
    verb: &WriteVerb,
    wording: VerbWording,
) -> BatchOutcome {
    let mut outcome = BatchOutcome::of(resources.iter().map(Resource::kind));
    let mut progress = ProgressLine::new(wording.present, resources.len());
    for mut resource in resources {
        let kind = resource.kind();
        let result = match verbs::place(&mut resource, asked) {
            Err(error) => Err(error),
            Ok(()) => match verb {
                WriteVerb::Apply => verbs::apply(store, resource).await.map(drop),
                WriteVerb::Replace => verbs::replace(store, resource).await.map(drop),
                WriteVerb::Create { skip_exists } => match verbs::create(store, resource).await {
                    Err(VerbError::Store(StoreError::AlreadyExists { .. })) if *skip_exists => Ok(()),
                    other => other.map(drop),
                },
            },
        };
        let failed = result.is_err();
        outcome.note(kind, result);
        progress.step();
        if failed && !wording.carries_on {
            break;
        }
    }
    outcome
}

/// Applies resources one by one, for commands whose resources do not come from a file.
pub async fn apply_all(store: &ResourceClient, resources: Vec<Resource>) -> BatchOutcome {
    write_all(store, resources, RequestedNamespace::default(), &WriteVerb::Apply, outcome::APPLY_WORDING)
        .await
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

fn asked(args: &FromFileArgs) -> RequestedNamespace<'_> {
    RequestedNamespace { namespace: args.namespace.namespace.as_deref(), all: false }
}

pub fn nothing(out: &mut dyn Write) -> CommandResult<()> {
    writeln!(out, "No resources specified")?;
    Ok(())
}
