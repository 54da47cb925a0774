//! Commands for Neutron's driver: agent reports and port states. Pure: the time is an argument.
//!
//! The queue holds the latest state of each node and each port only. A state that the driver has processed stays known, so
//! that it is sent only once; it is sent again if the leader changes.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum number of nodes and ports whose states are kept.
pub const MAX_STATUSES: usize = 200_000;
/// Delay before a failed command is sent again.
const COMMAND_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Time limit for the driver to report a result. Then the command is sent again.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// State of a port in Neutron.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PortState {
    Active,
    Down,
    Error,
}

/// Subject of a command.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CommandSubject {
    Agent {
        host: String,
    },
    Port {
        host: String,
        port: String,
    },
    /// A resync that the driver runs itself.
    Resync,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandState {
    /// A heartbeat; the number distinguishes one from the next.
    Agent {
        beat: String,
        start_flag: bool,
    },
    Port(PortState),
    Resync(u64),
}

/// A command as the driver receives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DriverCommand {
    pub id: u64,
    #[serde(flatten)]
    pub operation: DriverOperation,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum DriverOperation {
    Agent { host: String, start_flag: bool },
    PortStatus { host: String, port: String, status: PortState },
    Resync,
}

/// Result of a command.
#[derive(Clone, Debug, Deserialize)]
pub struct CommandResult {
    pub id: u64,
    pub ok: bool,
    #[serde(default)]
    pub error: Option<String>,
}

#[derive(Debug)]
struct QueuedState {
    state: CommandState,
    is_delivered: bool,
    /// The entry was deleted from the datastore: forget it after delivery.
    is_final: bool,
    priority: CommandPriority,
    not_before: Duration,
    in_flight: Option<u64>,
}

/// Order in which commands are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CommandPriority {
    Live,
    Snapshot,
    Retry,
}

/// A command without a result.
#[derive(Debug)]
struct SentCommand {
    subject: CommandSubject,
    state: CommandState,
    until: Duration,
}

#[derive(Debug, Default)]
pub struct CommandQueue {
    states: BTreeMap<CommandSubject, QueuedState>,
    in_flight: BTreeMap<u64, SentCommand>,
    last_id: u64,
}

impl CommandQueue {
    /// Sets the latest state of a subject. Returns false if the limit is reached and the state is dropped. States of
    /// deleted entries make room for others: a follower, which sends none, would collect them for ever.
    pub fn set(
        &mut self,
        subject: CommandSubject,
        state: CommandState,
        priority: CommandPriority,
        is_final: bool,
    ) -> bool {
        if let Some(queued) = self.states.get_mut(&subject) {
            if is_final && queued.is_delivered && queued.state == state {
                self.states.remove(&subject);
                return true;
            }
            queued.is_final = is_final;
            if queued.state != state {
                queued.state = state;
                queued.is_delivered = false;
                queued.priority = priority;
                queued.not_before = Duration::ZERO;
            }
            return true;
        }
        if self.states.len() >= MAX_STATUSES && !self.remove_final() {
            return false;
        }
        let queued = QueuedState {
            state,
            is_delivered: false,
            is_final,
            priority,
            not_before: Duration::ZERO,
            in_flight: None,
        };
        self.states.insert(subject, queued);
        true
    }

    /// Forgets one subject whose entry was deleted. Returns whether there was one.
    fn remove_final(&mut self) -> bool {
        let is_removable = |queued: &QueuedState| queued.is_final && queued.in_flight.is_none();
        let found = self
            .states
            .iter()
            .find(|(subject, queued)| is_removable(queued) && !matches!(subject, CommandSubject::Resync));
        let Some(subject) = found.map(|(subject, _)| subject.clone()) else { return false };
        self.states.remove(&subject);
        true
    }

    /// Forgets a subject.
    pub fn remove(&mut self, subject: &CommandSubject) {
        self.states.remove(subject);
    }

    /// Marks all states as not delivered, for a daemon that begins to lead.
    pub fn restart(&mut self) {
        self.in_flight.clear();
        for queued in self.states.values_mut() {
            queued.in_flight = None;
            queued.is_delivered = false;
            queued.priority = CommandPriority::Snapshot;
        }
    }

    /// Returns the number of states that were not delivered.
    pub fn pending(&self) -> usize {
        self.states.values().filter(|queued| !queued.is_delivered).count()
    }

    /// Returns up to `limit` commands that are due. Without leadership these are only resyncs.
    pub fn take(&mut self, now: Duration, limit: usize, leads: bool) -> Vec<DriverCommand> {
        self.expire(now);
        let mut due: Vec<(CommandPriority, CommandSubject)> = self
            .states
            .iter()
            .filter(|(subject, queued)| {
                let may_send = leads || **subject == CommandSubject::Resync;
                may_send && !queued.is_delivered && queued.in_flight.is_none() && queued.not_before <= now
            })
            .map(|(subject, queued)| (queued.priority, subject.clone()))
            .collect();
        due.sort();
        due.into_iter().take(limit).filter_map(|(_, subject)| self.send(subject, now)).collect()
    }

    /// Returns the time of the next command that is not due yet.
    pub fn next_due(&self) -> Option<Duration> {
        let retries =
            self.states.values().filter(|queued| !queued.is_delivered && queued.in_flight.is_none());
        retries.map(|queued| queued.not_before).chain(self.in_flight.values().map(|sent| sent.until)).min()
    }

    fn send(&mut self, subject: CommandSubject, now: Duration) -> Option<DriverCommand> {
        let queued = self.states.get_mut(&subject)?;
        self.last_id += 1;
        queued.in_flight = Some(self.last_id);
        let operation = describe(&subject, &queued.state)?;
        let sent = SentCommand { subject, state: queued.state.clone(), until: now + COMMAND_TIMEOUT };
        self.in_flight.insert(self.last_id, sent);
        Some(DriverCommand { id: self.last_id, operation })
    }

    /// Records results. Returns how many commands succeeded and failed.
    pub fn complete(&mut self, results: &[CommandResult], now: Duration) -> (u64, u64) {
        let (mut succeeded, mut failed) = (0, 0);
        for result in results {
            let Some(sent) = self.in_flight.remove(&result.id) else { continue };
            if result.ok {
                succeeded += 1;
            } else {
                failed += 1;
                let reason = result.error.as_deref().unwrap_or("no reason");
                tracing::warn!(subject = ?sent.subject, reason, "Neutron's driver cannot process a command; it is repeated");
            }
            self.settle_result(&sent, result, now);
        }
        (succeeded, failed)
    }

    fn settle_result(&mut self, sent: &SentCommand, result: &CommandResult, now: Duration) {
        let Some(queued) = self.states.get_mut(&sent.subject) else { return };
        if queued.in_flight != Some(result.id) {
            return;
        }
        queued.in_flight = None;
        if queued.state != sent.state {
            return;
        }
        if !result.ok {
            queued.not_before = now + COMMAND_RETRY_DELAY;
            queued.priority = CommandPriority::Retry;
            return;
        }
        queued.is_delivered = true;
        if queued.is_final {
            self.states.remove(&sent.subject);
        }
    }

    /// Makes commands without a result due again.
    fn expire(&mut self, now: Duration) {
        let expired: Vec<u64> =
            self.in_flight.iter().filter(|(_, sent)| sent.until <= now).map(|(id, _)| *id).collect();
        for id in expired {
            let Some(sent) = self.in_flight.remove(&id) else { continue };
            if let Some(queued) =
                self.states.get_mut(&sent.subject).filter(|queued| queued.in_flight == Some(id))
            {
                queued.in_flight = None;
                queued.priority = CommandPriority::Retry;
            }
        }
    }
}

fn describe(subject: &CommandSubject, state: &CommandState) -> Option<DriverOperation> {
    match (subject, state) {
        (CommandSubject::Agent { host }, CommandState::Agent { start_flag, .. }) => {
            Some(DriverOperation::Agent { host: host.clone(), start_flag: *start_flag })
        }
        (CommandSubject::Port { host, port }, CommandState::Port(status)) => {
            Some(DriverOperation::PortStatus { host: host.clone(), port: port.clone(), status: *status })
        }
        (CommandSubject::Resync, _) => Some(DriverOperation::Resync),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn port(number: usize) -> CommandSubject {
        CommandSubject::Port { host: "cmp-1".to_owned(), port: format!("p{number}") }
    }

    fn set(queue: &mut CommandQueue, number: usize, state: PortState, priority: CommandPriority) -> bool {
        queue.set(port(number), CommandState::Port(state), priority, false)
    }

    fn done(command: &DriverCommand, ok: bool) -> CommandResult {
        CommandResult { id: command.id, ok, error: None }
    }

    fn status(command: &DriverCommand) -> (String, PortState) {
        match &command.operation {
            DriverOperation::PortStatus { port, status, .. } => (port.clone(), *status),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_the_latest_state_is_sent_once() {
        let mut queue = CommandQueue::default();
        set(&mut queue, 1, PortState::Down, CommandPriority::Live);
        set(&mut queue, 1, PortState::Active, CommandPriority::Live);
        let commands = queue.take(NOW, 10, true);
        assert_eq!(commands.iter().map(status).collect::<Vec<_>>(), [("p1".to_owned(), PortState::Active)]);
        assert!(queue.take(NOW, 10, true).is_empty(), "in flight");
        assert_eq!(queue.complete(&[done(&commands[0], true)], NOW), (1, 0));
        set(&mut queue, 1, PortState::Active, CommandPriority::Live);
        assert!(queue.take(NOW, 10, true).is_empty(), "delivered");
        queue.restart();
        assert_eq!(queue.take(NOW, 10, true).len(), 1, "a new leader sends everything");
    }

    #[test]
    fn a_change_in_flight_is_sent_afterwards() {
        let mut queue = CommandQueue::default();
        set(&mut queue, 1, PortState::Active, CommandPriority::Live);
        let first = queue.take(NOW, 10, true);
        set(&mut queue, 1, PortState::Error, CommandPriority::Live);
        assert!(queue.take(NOW, 10, true).is_empty());
        queue.complete(&[done(&first[0], true)], NOW);
        assert_eq!(
            queue.take(NOW, 10, true).iter().map(status).collect::<Vec<_>>(),
            [("p1".to_owned(), PortState::Error)]
        );
    }

    #[test]
    fn live_events_precede_snapshots() {
        let mut queue = CommandQueue::default();
        set(&mut queue, 1, PortState::Active, CommandPriority::Snapshot);
        set(&mut queue, 2, PortState::Active, CommandPriority::Live);
        let ports: Vec<String> = queue.take(NOW, 10, true).iter().map(|command| status(command).0).collect();
        assert_eq!(ports, ["p2", "p1"]);
    }

    #[test]
    fn failed_and_lost_commands_are_repeated() {
        let mut queue = CommandQueue::default();
        set(&mut queue, 1, PortState::Active, CommandPriority::Live);
        let command = queue.take(NOW, 1, true);
        queue.complete(&[done(&command[0], false)], NOW);
        assert!(queue.take(NOW, 1, true).is_empty());
        assert_eq!(queue.next_due(), Some(NOW + COMMAND_RETRY_DELAY));
        let again = NOW + COMMAND_RETRY_DELAY;
        assert_eq!(queue.take(again, 1, true).len(), 1);
        assert_eq!(queue.take(again + COMMAND_TIMEOUT, 1, true).len(), 1, "no result arrived");
        assert_eq!(queue.complete(&[done(&command[0], true)], again), (0, 0), "a late result is ignored");
    }

    #[test]
    fn followers_send_only_resyncs() {
        let mut queue = CommandQueue::default();
        set(&mut queue, 1, PortState::Active, CommandPriority::Live);
        queue.set(CommandSubject::Resync, CommandState::Resync(1), CommandPriority::Live, true);
        let commands = queue.take(NOW, 10, false);
        assert_eq!(commands.len(), 1);
        assert_eq!(commands[0].operation, DriverOperation::Resync);
        queue.complete(&[done(&commands[0], true)], NOW);
        assert_eq!(queue.pending(), 1, "a final state is forgotten after delivery");
    }

    #[test]
    fn deleted_entries_leave_nothing() {
        let mut queue = CommandQueue::default();
        let end = |queue: &mut CommandQueue, number| {
            let state = CommandState::Port(PortState::Error);
            queue.set(port(number), state, CommandPriority::Live, true)
        };
        // The state of the deletion was delivered before.
        set(&mut queue, 1, PortState::Error, CommandPriority::Live);
        let commands = queue.take(NOW, 10, true);
        queue.complete(&[done(&commands[0], true)], NOW);
        assert!(end(&mut queue, 1));
        assert!(queue.states.is_empty() && queue.take(NOW, 10, true).is_empty());
        // A follower delivers nothing.
        for number in 0..MAX_STATUSES {
            assert!(end(&mut queue, number));
        }
        assert!(
            set(&mut queue, MAX_STATUSES, PortState::Active, CommandPriority::Live),
            "instead of a deleted one"
        );
        assert_eq!(queue.states[&port(MAX_STATUSES)].state, CommandState::Port(PortState::Active));
        assert_eq!(queue.pending(), MAX_STATUSES);
    }

    #[test]
    fn states_beyond_the_limit_are_dropped() {
        let mut queue = CommandQueue::default();
        for number in 0..MAX_STATUSES {
            assert!(set(&mut queue, number, PortState::Down, CommandPriority::Snapshot));
        }
        assert!(!set(&mut queue, MAX_STATUSES, PortState::Down, CommandPriority::Live));
        assert!(set(&mut queue, 0, PortState::Active, CommandPriority::Live), "known ports keep their place");
        queue.remove(&port(1));
        assert!(set(&mut queue, MAX_STATUSES, PortState::Down, CommandPriority::Live));
    }
}
