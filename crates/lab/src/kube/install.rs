//! What the cluster must know of us before our daemon starts: the account it has and what that may do.

use super::{READY_LIMIT, control, dir};
use crate::cluster::{Cluster, Datastore};
use crate::error::{Error, Result};
use crate::place::Place;
use std::fs;
use std::time::{Duration, Instant};

/// What people apply is what the lab applies.
const KINDS: &str = include_str!("../../../../deploy/00-crds.yaml");
const ACCESS: &str = include_str!("../../../../deploy/10-access.yaml");
/// For the API server to serve a new kind.
const LIMIT: &str = "--timeout=60s";
const PAUSE: Duration = Duration::from_millis(500);

pub async fn apply(place: &Place, cluster: &Cluster) -> Result<()> {
    if cluster.datastore == Datastore::Kubernetes {
        let file = write(place, "crds.yaml", KINDS)?;
        run(place, cluster, &["apply", "--server-side", "--filename", &file]).await?;
        run(place, cluster, &["wait", "--for=condition=Established", LIMIT, "--filename", &file]).await?;
    }
    let file = write(place, "access.yaml", ACCESS)?;
    run(place, cluster, &["apply", "--filename", &file]).await
}

fn write(place: &Place, name: &str, text: &str) -> Result<String> {
    let file = dir(place).join(name);
    fs::write(&file, text).map_err(Error::file(&file))?;
    Ok(file.display().to_string())
}

/// Tries again for a while: a server that is ready does not have its namespaces at once.
async fn run(place: &Place, cluster: &Cluster, arguments: &[&str]) -> Result<()> {
    let deadline = Instant::now() + READY_LIMIT;
    loop {
        let Err(reason) = control::kubectl(place, cluster, arguments).await else { return Ok(()) };
        if Instant::now() > deadline {
            return Err(Error::refused(format!("kubectl {}: {reason}", arguments.join(" "))));
        }
        tokio::time::sleep(PAUSE).await;
    }
}
