//! `version`: prints the versions of the client and the cluster.

use crate::cli::VersionArgs;
use crate::failure::{CommandError, CommandResult};
use crate::release::{CLIENT_VERSION, GIT_COMMIT};
use crate::session::{cluster_information, connect_quietly, string_at};
use serde_json::Value;
use std::io::Write;
use std::time::Duration;
use tortie_model::scalar::GoDuration;

pub async fn version(args: &VersionArgs, out: &mut dyn Write) -> CommandResult<()> {
    let poll = match &args.poll {
        None => Duration::ZERO,
        Some(text) => parse_poll(text)?,
    };
    writeln!(out, "Client Version:    {CLIENT_VERSION}")?;
    writeln!(out, "Git commit:        {GIT_COMMIT}")?;
    if args.client {
        return Ok(());
    }
    let Ok(store) = connect_quietly(&args.connection).await else {
        writeln!(out, "Unable to detect installed Calico version")?;
        return Ok(());
    };
    let mut shown = PrintedVersions::default();
    loop {
        match cluster_information(&store).await {
            Ok(cluster) => {
                out.write_all(shown.update(&cluster).as_bytes())?;
                out.flush()?;
                if poll.is_zero() {
                    return Ok(());
                }
            }
            Err(error) => {
                let error = CommandError::context("unable to retrieve Cluster Version or Type", error);
                if poll.is_zero() {
                    return Err(error);
                }
                let _ = writeln!(std::io::stderr(), "{error}");
                // Print everything again once the store responds.
                shown = PrintedVersions::default();
            }
        }
        tokio::time::sleep(poll).await;
    }
}

/// The values printed last, so that only changes are printed.
#[derive(Default)]
struct PrintedVersions {
    version: String,
    cluster_type: String,
}

impl PrintedVersions {
    /// Returns the text for the values of ClusterInformation that have changed.
    fn update(&mut self, cluster: &Value) -> String {
        let mut text = String::new();
        for (heading, field, printed) in [
            ("Cluster Version:   ", "/spec/calicoVersion", &mut self.version),
            ("Cluster Type:      ", "/spec/clusterType", &mut self.cluster_type),
        ] {
            let value = match string_at(cluster, field) {
                "" => "unknown",
                value => value,
            };
            if printed != value {
                text.push_str(&format!("{heading}{value}\n"));
                *printed = value.to_owned();
            }
        }
        text
    }
}

fn parse_poll(text: &str) -> CommandResult<Duration> {
    let parsed = text.parse::<GoDuration>().ok().and_then(GoDuration::to_std);
    parsed.ok_or_else(|| CommandError::message(format!("invalid poll duration specified: {text}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_are_printed_again() {
        let mut shown = PrintedVersions::default();
        let mut update =
            |version: &str| shown.update(&serde_json::json!({"spec": {"calicoVersion": version}}));
        assert_eq!(update("v3.32.0"), "Cluster Version:   v3.32.0\nCluster Type:      unknown\n");
        assert_eq!(update("v3.32.0"), "");
        assert_eq!(update("v3.32.1"), "Cluster Version:   v3.32.1\n");
    }

    #[test]
    fn durations_are_gos() {
        for (text, seconds) in
            [("10s", 10.0), ("1h30m", 5400.0), ("1.5s", 1.5), ("300ms", 0.3), ("0", 0.0), ("2µs", 2e-6)]
        {
            assert_eq!(parse_poll(text).ok(), Some(Duration::from_secs_f64(seconds)), "{text}");
        }
        for text in ["", "5", "s", "1x", "-1s", "1e9s", "99999999999999999999h", "."] {
            assert!(parse_poll(text).is_err(), "{text}");
        }
    }
}
