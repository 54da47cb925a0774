//! When the store is out of reach, be it that no hub answers or that the hub does not reach it: said once when it begins and
//! once when it ends.

use crate::protocol::Status;
use tortie_model::FeedEvent;

#[derive(Debug, Default)]
pub struct Outage {
    said: bool,
    /// Attempts of this client since then.
    failed_attempts: u64,
}

impl Outage {
    /// No hub can be reached.
    pub fn failed(&mut self, reason: &str) -> Option<FeedEvent> {
        self.failed_attempts += 1;
        self.begin(reason)
    }

    /// What a hub says of itself.
    pub fn heard(&mut self, status: &Status) -> Option<FeedEvent> {
        match &status.trouble {
            Some(reason) => self.begin(reason),
            None => {
                let failed_attempts = std::mem::take(&mut self.failed_attempts) + status.failed_attempts;
                std::mem::take(&mut self.said).then_some(FeedEvent::ConnectionBack { failed_attempts })
            }
        }
    }

    fn begin(&mut self, reason: &str) -> Option<FeedEvent> {
        let first = !std::mem::replace(&mut self.said, true);
        first.then(|| FeedEvent::ConnectionLost { reason: reason.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_said_once_whoever_has_it() {
        let mut outage = Outage::default();
        let lost = |reason: &str| Some(FeedEvent::ConnectionLost { reason: reason.to_owned() });
        let trouble = Status { trouble: Some("etcd is away".to_owned()), failed_attempts: 0 };
        assert_eq!(outage.heard(&Status::default()), None);
        assert_eq!(outage.failed("no hub"), lost("no hub"));
        assert_eq!(outage.failed("no hub"), None);
        assert_eq!(outage.heard(&trouble), None);
        let back = Status { trouble: None, failed_attempts: 3 };
        assert_eq!(outage.heard(&back), Some(FeedEvent::ConnectionBack { failed_attempts: 5 }));
        assert_eq!(outage.heard(&back), None);
        assert_eq!(outage.heard(&trouble), lost("etcd is away"));
    }
}
