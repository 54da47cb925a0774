//! `create`, `apply`, `replace` and `validate`: process the objects of files and print a summary.

use crate::analyze;
use crate::cli::{Create, FromFile, Global};
use crate::failure::{Result, tell};
use crate::input;
use crate::namespace::Asked;
use crate::outcome::{self, Outcome, Wording};
use crate::progress::Progress;
use crate::session;
use crate::verbs::{self, VerbError};
use std::io::Write;
use tortie_model::Resource;
use tortie_store::{Error, Resources};

enum Verb {
    Create { skip_exists: bool },
    Apply,
    Replace,
}

pub async fn create(args: &Create, global: &Global, out: &mut dyn Write) -> Result<()> {
    run(&args.input, global, Verb::Create { skip_exists: args.skip_exists }, outcome::CREATE, out).await
}

pub async fn apply(args: &FromFile, global: &Global, out: &mut dyn Write) -> Result<()> {
    run(args, global, Verb::Apply, outcome::APPLY, out).await
}

pub async fn replace(args: &FromFile, global: &Global, out: &mut dyn Write) -> Result<()> {
    run(args, global, Verb::Replace, outcome::REPLACE, out).await
}

pub fn validate(args: &FromFile, out: &mut dyn Write) -> Result<()> {
    let resources = read(args)?;
    if resources.is_empty() {
        return nothing(out);
    }
    let mut outcome = Outcome::of(resources.iter().map(Resource::kind));
    for mut resource in resources {
        let kind = resource.kind();
        let checked = verbs::place(&mut resource, asked(args)).and_then(|()| {
            resource.set_defaults();
            resource.validate().map_err(|error| VerbError::Store(Error::Validation(error)))
        });
        outcome.note(kind, checked);
    }
    tell(outcome.report(outcome::VALIDATE), out)
}

async fn run(
    args: &FromFile,
    global: &Global,
    verb: Verb,
    wording: Wording,
    out: &mut dyn Write,
) -> Result<()> {
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
    store: &Resources,
    resources: Vec<Resource>,
    asked: Asked<'_>,
    verb: &Verb,
    wording: Wording,
) -> Outcome {
    let mut outcome = Outcome::of(resources.iter().map(Resource::kind));
    let mut progress = Progress::new(wording.present, resources.len());
    for mut resource in resources {
        let kind = resource.kind();
        let result = match verbs::place(&mut resource, asked) {
            Err(error) => Err(error),
            Ok(()) => match verb {
                Verb::Apply => verbs::apply(store, resource).await.map(drop),
                Verb::Replace => verbs::replace(store, resource).await.map(drop),
                Verb::Create { skip_exists } => match verbs::create(store, resource).await {
                    Err(VerbError::Store(Error::AlreadyExists { .. })) if *skip_exists => Ok(()),
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
pub async fn apply_all(store: &Resources, resources: Vec<Resource>) -> Outcome {
    write_all(store, resources, Asked::default(), &Verb::Apply, outcome::APPLY).await
}

/// Initialises the datastore. A user who may only write some kinds may lack the permission; then the write
/// itself reports the error.
async fn initialize(store: &Resources) {
    if let Err(error) = store.ensure_initialized("", "").await {
        tracing::info!(%error, "the datastore could not be initialised");
    }
}

fn read(args: &FromFile) -> Result<Vec<Resource>> {
    Ok(input::resources(&args.filename, args.reading.recursive, args.reading.skip_empty)?)
}

fn asked(args: &FromFile) -> Asked<'_> {
    Asked { namespace: args.namespace.namespace.as_deref(), all: false }
}

pub fn nothing(out: &mut dyn Write) -> Result<()> {
    writeln!(out, "No resources specified")?;
    Ok(())
}
