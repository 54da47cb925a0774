//! Reports outages of the store, whether no hub responds or the hub cannot reach the store: one event when an outage
//! begins and one when it ends.

use crate::protocol::HubStoreStatus;
use tortie_model::FeedEvent;

#[derive(Debug, Default)]
pub struct StoreOutage {
    reported: bool,
    /// Failed attempts of this client since the outage began.
    failed_attempts: u64,
}

impl StoreOutage {
    /// Records a failed attempt to reach any hub.
    pub fn record_failure(&mut self, reason: &str) -> Option<FeedEvent> {
        self.failed_attempts += 1;
        self.begin(reason)
    }

    /// Records the store status reported by a hub.
    pub fn apply_status(&mut self, status: &HubStoreStatus) -> Option<FeedEvent> {
        match &status.trouble {
            Some(reason) => self.begin(reason),
            None => {
                let failed_attempts = std::mem::take(&mut self.failed_attempts) + status.failed_attempts;
                std::mem::take(&mut self.reported).then_some(FeedEvent::ConnectionBack { failed_attempts })
            }
        }
    }

    fn begin(&mut self, reason: &str) -> Option<FeedEvent> {
        let first = !std::mem::replace(&mut self.reported, true);
        first.then(|| FeedEvent::ConnectionLost { reason: reason.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_reported_once() {
        let mut outage = StoreOutage::default();
        let lost = |reason: &str| Some(FeedEvent::ConnectionLost { reason: reason.to_owned() });
        let trouble = HubStoreStatus { trouble: Some("etcd is away".to_owned()), failed_attempts: 0 };
        assert_eq!(outage.apply_status(&HubStoreStatus::default()), None);
        assert_eq!(outage.record_failure("no hub"), lost("no hub"));
        assert_eq!(outage.record_failure("no hub"), None);
        assert_eq!(outage.apply_status(&trouble), None);
        let back = HubStoreStatus { trouble: None, failed_attempts: 3 };
        assert_eq!(outage.apply_status(&back), Some(FeedEvent::ConnectionBack { failed_attempts: 5 }));
        assert_eq!(outage.apply_status(&back), None);
        assert_eq!(outage.apply_status(&trouble), lost("etcd is away"));
    }
}
