//! Sends the records to the collector that the settings name.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::JoinHandle;
use tortie_compute::NodeParameters;
use tortie_flows::{CollectorTarget, FlowCollector, FlowPusher, PushState};

/// The task that sends, if a collector is set.
#[derive(Debug, Default)]
pub struct CollectorSender {
    target: Option<CollectorTarget>,
    running: Option<(JoinHandle<()>, Arc<Mutex<PushState>>)>,
    problem: Option<String>,
}

impl CollectorSender {
    /// Starts, stops or restarts the task after a change of the settings. The certificate is the one for hubs, as in Felix.
    pub fn configure(&mut self, parameters: &NodeParameters, collector: &Arc<FlowCollector>) {
        let server = &parameters.flow_logs_goldmane_server;
        self.problem = None;
        let mut target = None;
        if !server.is_empty() {
            let files = [
                ("TyphaCertFile", &parameters.typha_cert_file),
                ("TyphaKeyFile", &parameters.typha_key_file),
                ("TyphaCAFile", &parameters.typha_ca_file),
            ];
            let missing: Vec<&str> =
                files.iter().filter(|(_, file)| file.is_empty()).map(|(name, _)| *name).collect();
            if missing.is_empty() {
                target = Some(CollectorTarget {
                    server: server.clone(),
                    server_name: None,
                    certificate: PathBuf::from(&parameters.typha_cert_file),
                    key: PathBuf::from(&parameters.typha_key_file),
                    authority: PathBuf::from(&parameters.typha_ca_file),
                });
            } else {
                let missing = missing.join(", ");
                self.problem = Some(format!(
                    "flowLogsGoldmaneServer: flows are not sent to {server}: the collector requires a certificate; set {missing}"
                ));
            }
        }
        if target == self.target {
            return;
        }
        self.stop();
        self.target.clone_from(&target);
        if let Some(target) = target {
            let pusher = FlowPusher::new(collector.clone(), target);
            let state = pusher.state();
            self.running = Some((tokio::spawn(pusher.run()), state));
        }
    }

    fn stop(&mut self) {
        if let Some((task, _)) = self.running.take() {
            task.abort();
        }
    }

    /// Returns the state of the connection, if a collector is set.
    pub fn state(&self) -> Option<PushState> {
        let (_, state) = self.running.as_ref()?;
        Some(state.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Returns why the settings cannot be used.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }
}

impl Drop for CollectorSender {
    fn drop(&mut self) {
        self.stop();
    }
}
