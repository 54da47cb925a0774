//! Detects outages of the store over all watches of a feed, and reports each outage once at its start and once at its
//! end.

use tortie_model::FeedEvent;
use tortie_store::WatchConnection;

/// The state of the connection that was reported last.
#[derive(Debug, Default)]
pub struct OutageReport {
    /// The sum of failed attempts when the current outage began; None without an outage.
    began_at: Option<u64>,
    /// Whether the last call saw a distrusted watch: the store responds, but its list lacks so many objects that the
    /// watch does not accept it.
    distrusted: bool,
}

impl OutageReport {
    /// Returns the event to report, given the current state of every watch.
    pub fn look<'a>(&mut self, watches: impl IntoIterator<Item = &'a WatchConnection>) -> Option<FeedEvent> {
        let mut failed_attempts = 0;
        let mut reason = None;
        let mut distrusted = false;
        for connection in watches {
            failed_attempts += connection.failed_attempts;
            // Missing objects take precedence over a lost connection as the reported reason.
            if connection.distrusted && !distrusted {
                (distrusted, reason) = (true, None);
            }
            if connection.distrusted || !distrusted {
                reason = reason.or(connection.trouble.as_ref());
            }
        }
        let newly_distrusted = distrusted && !self.distrusted;
        self.distrusted = distrusted;
        match (self.began_at, reason) {
            (Some(_), Some(reason)) if newly_distrusted => {
                Some(FeedEvent::ConnectionLost { reason: reason.clone() })
            }
            (None, Some(reason)) => {
                self.began_at = Some(failed_attempts);
                Some(FeedEvent::ConnectionLost { reason: reason.clone() })
            }
            (Some(before), None) => {
                self.began_at = None;
                // The attempt that led to the first report counts as well.
                let failed_attempts = failed_attempts.saturating_sub(before) + 1;
                Some(FeedEvent::ConnectionBack { failed_attempts })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(trouble: Option<&str>, failed_attempts: u64) -> WatchConnection {
        WatchConnection { trouble: trouble.map(str::to_owned), failed_attempts, distrusted: false }
    }

    #[test]
    fn an_outage_of_many_watches_is_reported_once() {
        let mut outage = OutageReport::default();
        let mut watches = vec![standing(None, 0); 20];
        assert_eq!(outage.look(&watches), None);
        watches[3] = standing(Some("refused"), 1);
        let lost = FeedEvent::ConnectionLost { reason: "refused".to_owned() };
        assert_eq!(outage.look(&watches), Some(lost));
        for attempt in 2..10 {
            watches.fill(standing(Some("still refused"), attempt));
            assert_eq!(outage.look(&watches), None);
        }
        watches.fill(standing(None, 10));
        watches[7] = standing(Some("refused"), 10);
        assert_eq!(outage.look(&watches), None, "one watch is still without its store");
        watches[7] = standing(None, 10);
        assert_eq!(outage.look(&watches), Some(FeedEvent::ConnectionBack { failed_attempts: 200 }));
        assert_eq!(outage.look(&watches), None);
        watches[0] = standing(Some("again"), 11);
        assert!(matches!(outage.look(&watches), Some(FeedEvent::ConnectionLost { .. })));
        watches[5] = WatchConnection { distrusted: true, ..standing(Some("most is missing"), 12) };
        let missing = FeedEvent::ConnectionLost { reason: "most is missing".to_owned() };
        assert_eq!(outage.look(&watches), Some(missing), "it is not hidden by an outage");
        assert_eq!(outage.look(&watches), None);
    }
}
