//! The store's news, from all ranges into one channel.

use crate::state::State;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tortie_model::KeyRange;
use tortie_store::{Client, Event};

const QUEUE: usize = 1024;
/// How often a silent watch is asked whether it is in trouble.
const LOOK: Duration = Duration::from_secs(1);

/// Follows the ranges; each event says which range it is from.
pub fn follow(client: &Client, ranges: Vec<KeyRange>, state: &Arc<State>) -> mpsc::Receiver<(usize, Event)> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    for (index, range) in ranges.into_iter().enumerate() {
        let mut watch = client.watch(range.clone(), None);
        let (sender, state) = (sender.clone(), state.clone());
        let part = format!("datastore {}", range.prefix());
        tokio::spawn(async move {
            let mut look = tokio::time::interval(LOOK);
            let mut trouble = None;
            loop {
                tokio::select! {
                    event = watch.next() => match event {
                        Some(event) => if sender.send((index, event)).await.is_err() { return },
                        None => return,
                    },
                    _ = look.tick() => {
                        let now = watch.trouble();
                        if now != trouble {
                            trouble = now;
                            state.set_trouble(&part, trouble.clone());
                        }
                    }
                }
            }
        });
    }
    receiver
}
