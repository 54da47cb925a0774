//! Keeps the certificates that the webhooks make for themselves: in a Secret that all replicas share, and in the configuration of the
//! webhooks, which says whom Kubernetes believes.

use crate::server::Pair;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tortie_store::Backoff;
use tortie_store::orchestrator::{Orchestrator, Secret, is_too_late};
use tortie_tls::{Lifetimes, OwnCertificates};

pub const SECRET: &str = "calico-webhooks-tls";
pub const CONFIGURATION: &str = "calico-webhooks";
/// The service in front of the webhooks.
const SERVICE: &str = "calico-webhooks";
/// Between looks. Whoever applies the configuration anew may have made Kubernetes forget whom to believe.
const PAUSE: Duration = Duration::from_secs(10);
/// While there is no configuration, and after something was written.
const SHORT_PAUSE: Duration = Duration::from_secs(1);

pub struct Keeper {
    pub orchestrator: Orchestrator,
    pub namespace: String,
    pub lifetimes: Lifetimes,
    /// What connections are accepted with.
    pub serving: watch::Sender<Option<Arc<Pair>>>,
    /// Whether there is such a thing.
    pub certified: watch::Sender<bool>,
}

impl Keeper {
    pub async fn run(self) {
        let mut backoff = Backoff::default();
        loop {
            match self.look().await {
                Ok(pause) => {
                    backoff.reset();
                    tokio::time::sleep(pause).await;
                }
                Err(error) => {
                    // The certificate in use is good for a third of its life yet.
                    tracing::warn!(error, "certificates cannot be looked after; trying again");
                    tokio::time::sleep(backoff.pause()).await;
                }
            }
        }
    }

    /// One step towards certificates that are good and believed; how long it is until the next look.
    async fn look(&self) -> Result<Duration, String> {
        let secret = self.orchestrator.secret(&self.namespace, SECRET).await.map_err(text)?;
        let configuration = self.orchestrator.webhook_configuration(CONFIGURATION).await.map_err(text)?;
        let believed = configuration.as_ref().map(|configuration| configuration.believed());
        let kept = read(&secret);
        let names = self.names();
        let renewed = OwnCertificates::renewed(&kept, believed.as_deref(), &names, self.lifetimes, now())?;
        if let Some(renewed) = renewed {
            let secret = Secret { data: written(&renewed), version: secret.version };
            let stored = self.orchestrator.write_secret(&self.namespace, SECRET, &secret).await;
            return match stored {
                Ok(()) => {
                    tracing::info!("{}/{SECRET} has new certificates", self.namespace);
                    Ok(SHORT_PAUSE)
                }
                // Somebody else was quicker: what stands there now?
                Err(error) if is_too_late(&error) => Ok(SHORT_PAUSE),
                Err(error) => Err(error.to_string()),
            };
        }
        if let Some(configuration) = &configuration
            && believed.as_deref() != Some(kept.authorities.as_str())
        {
            let written = self.orchestrator.set_believed(configuration, &kept.authorities).await;
            return match written {
                Ok(()) => Ok(SHORT_PAUSE),
                Err(error) if is_too_late(&error) => Ok(SHORT_PAUSE),
                Err(error) => Err(error.to_string()),
            };
        }
        let pair = Pair::from_pem(&kept.certificate, &kept.key)?;
        self.serving.send_if_modified(|current| {
            let differs = current.as_deref() != Some(&pair);
            if differs {
                *current = Some(Arc::new(pair));
            }
            differs
        });
        self.certified.send_replace(true);
        Ok(if configuration.is_none() { SHORT_PAUSE } else { PAUSE.min(self.lifetimes.certificate / 12) })
    }

    /// Under which the API server reaches the service.
    fn names(&self) -> Vec<String> {
        let namespace = &self.namespace;
        vec![format!("{SERVICE}.{namespace}.svc"), format!("{SERVICE}.{namespace}"), SERVICE.to_owned()]
    }
}

fn read(secret: &Secret) -> OwnCertificates {
    let text = |key: &str| secret.data.get(key).cloned().unwrap_or_default();
    OwnCertificates {
        authorities: text("ca.crt"),
        authority_key: text("ca.key"),
        certificate: text("tls.crt"),
        key: text("tls.key"),
    }
}

fn written(kept: &OwnCertificates) -> std::collections::BTreeMap<String, String> {
    let pairs = [
        ("ca.crt", &kept.authorities),
        ("ca.key", &kept.authority_key),
        ("tls.crt", &kept.certificate),
        ("tls.key", &kept.key),
    ];
    pairs.into_iter().map(|(key, text)| (key.to_owned(), text.clone())).collect()
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn text(error: tortie_store::Error) -> String {
    error.to_string()
}
