//! BIRD as the BGP backend: writes its configuration and monitors it. BIRD itself is started by other means.
//!
//! BIRD learns the routes of workloads from the kernel and writes the routes of its peers there itself, so this
//! backend sends no routes to the engine: the dataplane leaves routes of BIRD's protocol alone as long as it gets
//! none.

use super::backend::{BgpBackend, BgpBackendError, BirdPaths};
use super::secrets::{PasswordReader, has_passwords};
use crate::engine::{PlanChange, PlanReceiver};
use crate::queries::RunningBgp;
use crate::state::NodeState;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tortie_bgp::bird::{BirdConfig, BirdControl, ControlError, render};
use tortie_plan::PlanUpdate;
use tortie_plan::bgp::BgpConfig;

/// Interval between checks of BIRD, its configuration file and the passwords.
const BIRD_POLL_INTERVAL: Duration = Duration::from_secs(2);
/// First and longest delay between attempts while something is wrong.
const MIN_BIRD_RETRY_DELAY: Duration = Duration::from_millis(250);
const MAX_BIRD_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Mode of the configuration file, which contains passwords. BIRD may run as another user, so the group of the
/// directory can read it.
const BIRD_CONFIG_MODE: u32 = 0o640;

/// Component name of the backend in the node's state.
pub const BIRD_COMPONENT: &str = "bird";

pub struct BirdTask {
    state: Arc<NodeState>,
    secrets: PasswordReader,
    file: PathBuf,
    control: BirdControl,
    /// Marker file, by which a later speaker of our own knows that the kernel contains routes of BGP.
    restart_marker: PathBuf,
    bgp: Option<Arc<BgpConfig>>,
    /// The desired configuration; None until the plan contains the BGP settings.
    rendered: Option<BirdConfig>,
    /// Start time of the BIRD that has loaded the configuration, and when it did.
    loaded: Option<(SystemTime, SystemTime)>,
    /// The state that was logged last.
    reported: Option<String>,
}

impl BirdTask {
    pub fn new(
        state: Arc<NodeState>,
        secrets: PasswordReader,
        paths: BirdPaths,
        restart_marker: PathBuf,
    ) -> BirdTask {
        BirdTask {
            state,
            secrets,
            file: paths.config,
            control: BirdControl::new(paths.socket),
            restart_marker,
            bgp: None,
            rendered: None,
            loaded: None,
            reported: None,
        }
    }

    pub async fn run(mut self, mut plan: PlanReceiver) {
        let mut poll_delay = BIRD_POLL_INTERVAL;
        let mut retry_delay = MIN_BIRD_RETRY_DELAY;
        loop {
            tokio::select! {
                change = plan.recv() => match change {
                    Some(change) => self.apply_plan_change(change),
                    // BIRD continues without the node.
                    None => return,
                },
                () = tokio::time::sleep(poll_delay) => {}
            }
            let trouble = self.reconcile().await.err();
            if trouble.is_some() {
                poll_delay = retry_delay;
                retry_delay = (retry_delay * 2).min(MAX_BIRD_RETRY_DELAY);
            } else {
                poll_delay = BIRD_POLL_INTERVAL;
                retry_delay = MIN_BIRD_RETRY_DELAY;
            }
            self.report(trouble.map(|trouble| trouble.to_string()));
        }
    }

    fn apply_plan_change(&mut self, change: PlanChange) {
        let bgp = match change {
            PlanChange::Resync(plan) => plan.bgp,
            PlanChange::Updates(updates) => updates.into_iter().rev().find_map(|update| match update {
                PlanUpdate::Bgp(bgp) => Some(bgp),
                _ => None,
            }),
        };
        if bgp.is_some() {
            self.bgp = bgp;
            self.rendered = None;
        }
    }

    /// Makes BIRD follow the plan and the secrets. The error is the reason why this is not possible.
    async fn reconcile(&mut self) -> Result<(), BgpBackendError> {
        let Some(bgp) = self.bgp.clone() else { return Ok(()) };
        self.state.set_bgp_log_severity(bgp.log_severity);
        if has_passwords(&bgp) || self.rendered.is_none() {
            self.secrets.follow(&bgp);
            self.check_passwords(&bgp)?;
            self.rendered = render(&bgp, |secret| self.secrets.read(secret));
        }
        let rendered = self.rendered.as_ref().ok_or(BgpBackendError::NoRouterId)?;
        if fs::read(&self.file).ok().as_deref() != Some(rendered.text.as_bytes()) {
            self.loaded = None;
            self.write(&rendered.text).await?;
        }
        let mut started = self.control.started().await.map_err(|error| self.control_error(error))?;
        // A BIRD that has been restarted may have read another file.
        let configured = match self.loaded {
            Some((same, configured)) if same == started => configured,
            _ => {
                self.control.configure(&self.file).await.map_err(|error| self.control_error(error))?;
                started = self.control.started().await.map_err(|error| self.control_error(error))?;
                super::write_marker(&self.restart_marker);
                tracing::info!(file = %self.file.display(), "BIRD loaded its configuration");
                SystemTime::now()
            }
        };
        self.loaded = Some((started, configured));
        let backend = BgpBackend::Bird { control: self.control.clone(), asn: bgp.as_number };
        self.state.set_running_bgp(Some(RunningBgp { backend, started, configured }));
        Ok(())
    }

    /// Fails while passwords are not known after a start of the node. BIRD may have sessions with them, which would end
    /// with a configuration that leaves them out.
    fn check_passwords(&self, bgp: &BgpConfig) -> Result<(), BgpBackendError> {
        if self.loaded.is_some() || !self.file.exists() {
            return Ok(());
        }
        self.secrets
            .find_pending(bgp)
            .map_or(Ok(()), |pending| Err(BgpBackendError::PendingPassword(pending)))
    }

    /// Writes the configuration file, unless BIRD rejects its contents.
    async fn write(&self, text: &str) -> Result<(), BgpBackendError> {
        let new = write_beside(&self.file, text).map_err(|error| self.file_error(error))?;
        match self.control.check(&new).await {
            // A BIRD that does not run yet reads the file when it starts.
            Ok(()) | Err(ControlError::Unreachable { .. }) => {}
            Err(error) => {
                let _ = fs::remove_file(&new);
                return Err(error.into());
            }
        }
        let renamed = fs::rename(&new, &self.file).and_then(|()| sync_dir(&self.file));
        renamed.map_err(|error| self.file_error(error))
    }

    fn file_error(&self, source: io::Error) -> BgpBackendError {
        BgpBackendError::ConfigFile { path: self.file.clone(), source }
    }

    fn control_error(&self, error: ControlError) -> BgpBackendError {
        match error {
            source @ ControlError::Unreachable { .. } => BgpBackendError::BirdDown {
                source,
                config: self.file.clone(),
                socket: self.control.path().to_owned(),
            },
            other => other.into(),
        }
    }

    /// Logs a problem once, and its end.
    fn report(&mut self, trouble: Option<String>) {
        if trouble.is_some() {
            self.state.set_running_bgp(None);
        }
        let skipped = self.rendered.as_ref().map(|rendered| rendered.skipped.join("; "));
        let skipped = skipped.filter(|skipped| !skipped.is_empty());
        self.state.set_warning(BIRD_COMPONENT, skipped.clone());
        self.state.set_trouble(BIRD_COMPONENT, trouble.clone());
        let now = trouble.or(skipped);
        if self.reported != now {
            match &now {
                Some(trouble) => tracing::warn!(trouble, "cannot apply the BGP configuration to BIRD"),
                None => tracing::info!("the BGP configuration is applied to BIRD"),
            }
            self.reported = now;
        }
    }
}

/// Writes a new file beside `file`, to be renamed over it.
fn write_beside(file: &Path, text: &str) -> io::Result<PathBuf> {
    let dir = file.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(dir)?;
    let mut name = std::ffi::OsString::from(".");
    name.push(file.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    name.push(".new");
    let new = dir.join(name);
    let mut opened = File::create(&new)?;
    opened.set_permissions(Permissions::from_mode(BIRD_CONFIG_MODE))?;
    chown(&new, None, Some(fs::metadata(dir)?.gid()))?;
    opened.write_all(text.as_bytes())?;
    opened.sync_all()?;
    Ok(new)
}

fn sync_dir(file: &Path) -> io::Result<()> {
    file.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::super::secrets::PasswordError;
    use super::*;
    use crate::startup::EnvironmentVariables;
    use std::collections::BTreeMap;
    use std::net::Ipv4Addr;
    use tortie_plan::bgp::{AdvertisedNextHop, BgpSession, BgpSessionKind, PasswordReference};
    use tortie_store::config::KubernetesTarget;

    fn config_with_password(password: PasswordReference) -> BgpConfig {
        let session = BgpSession {
            kind: BgpSessionKind::Global,
            peer: Ipv4Addr::new(192, 0, 2, 1).into(),
            port: 179,
            remote_as: 65001,
            local_as: None,
            source: None,
            passive: false,
            password: Some(password),
            restart_time: None,
            keepalive: None,
            ttl_security: None,
            next_hop: AdvertisedNextHop::Auto,
            reflect: None,
            allow_own_as: 0,
            filters: Vec::new(),
            reachable_by: None,
        };
        BgpConfig {
            as_number: 64512,
            router_id: Some(Ipv4Addr::new(192, 0, 2, 9)),
            sessions: BTreeMap::from([("Global_192_0_2_1".to_owned(), session)]),
            ..BgpConfig::default()
        }
    }

    #[tokio::test]
    async fn bird_keeps_sessions_until_passwords_are_known() {
        let dir = tempfile::tempdir().unwrap();
        let secrets_dir = dir.path().join("secrets");
        // Nothing listens there.
        let target =
            KubernetesTarget { endpoint: "http://127.0.0.1:9".to_owned(), ..KubernetesTarget::default() };
        let secrets =
            PasswordReader::new(secrets_dir.clone(), Some(&target), &EnvironmentVariables::default());
        let paths = BirdPaths { config: dir.path().join("bird.conf"), socket: dir.path().join("bird.ctl") };
        let file = paths.config.clone();
        let state = Arc::new(NodeState::new("n1"));
        let mut task = BirdTask::new(state, secrets, paths, dir.path().join("marker"));
        let reference = PasswordReference { name: "bgp".to_owned(), key: "router".to_owned() };
        task.bgp = Some(Arc::new(config_with_password(reference.clone())));
        fs::write(&file, "previous").unwrap();

        let error = task.reconcile().await.unwrap_err();
        assert!(matches!(error, BgpBackendError::PendingPassword(PasswordError::NotRead { .. })), "{error}");
        let attempt = async {
            while !matches!(task.secrets.read(&reference), Err(PasswordError::Unavailable { .. })) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), attempt).await.unwrap();
        let error = task.reconcile().await.unwrap_err();
        assert!(matches!(error, BgpBackendError::PendingPassword(_)), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "previous");

        fs::create_dir_all(secrets_dir.join("bgp")).unwrap();
        fs::write(secrets_dir.join("bgp/router"), "hunter2").unwrap();
        let error = task.reconcile().await.unwrap_err();
        assert!(matches!(error, BgpBackendError::BirdDown { .. }), "{error}");
        assert!(fs::read_to_string(&file).unwrap().contains("password \"hunter2\""));
    }
}
