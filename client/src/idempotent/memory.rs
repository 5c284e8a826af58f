//! Keys in this process: for one process, and for tests.

use std::{collections::HashMap, convert::Infallible, sync::Mutex, time::Duration};

use tokio::time::Instant;

use super::{Claim, Store};
use crate::lock;

/// Keys in the memory of this process: no other member knows them, and a restart forgets them.
#[derive(Debug)]
pub struct Memory {
    keys: Mutex<HashMap<String, State>>,
    count_max: usize,
}

#[derive(Debug)]
struct State {
    /// Who has claimed it; `None` once it is consumed.
    token: Option<String>,
    until: Instant,
}

impl Memory {
    /// Keeps at most so many keys. When they are all in use, the one whose time ends first makes
    /// room: rather a repeat than no end of memory.
    pub fn new(count_max: usize) -> Self {
        Self { keys: Mutex::default(), count_max: count_max.max(1) }
    }

    fn make_room(&self, keys: &mut HashMap<String, State>, now: Instant) {
        if keys.len() < self.count_max {
            return;
        }
        keys.retain(|_, state| now < state.until);
        if keys.len() >= self.count_max {
            // An eighth at a time, so that not every claim has to look at all of them.
            let mut ends: Vec<_> = keys.values().map(|state| state.until).collect();
            let (_, end, _) = ends.select_nth_unstable(self.count_max / 8);
            let end = *end;
            keys.retain(|_, state| end < state.until);
            tracing::warn!(count_max = self.count_max, "keys are forgotten before their time");
        }
    }

    /// Changes the state of a key that this token has claimed.
    fn with_claim(&self, key: &str, token: &str, next: Option<State>) -> bool {
        let now = Instant::now();
        let mut keys = lock(&self.keys);
        let is_claim = |state: &&State| now < state.until && state.token.as_deref() == Some(token);
        if keys.get(key).filter(is_claim).is_none() {
            return false;
        }
        match next {
            Some(state) => drop(keys.insert(key.into(), state)),
            None => drop(keys.remove(key)),
        }
        true
    }
}

impl Store for Memory {
    type Error = Infallible;

    async fn claim(&self, key: &str, token: &str, time: Duration) -> Result<Claim, Infallible> {
        let now = Instant::now();
        let mut keys = lock(&self.keys);
        if let Some(state) = keys.get(key).filter(|state| now < state.until) {
            return Ok(if state.token.is_some() { Claim::Held } else { Claim::Consumed });
        }
        self.make_room(&mut keys, now);
        keys.insert(key.into(), State { token: Some(token.into()), until: now + time });
        Ok(Claim::Granted)
    }

    async fn finish(&self, key: &str, token: &str, time: Duration) -> Result<bool, Infallible> {
        let until = Instant::now() + time;
        Ok(self.with_claim(key, token, Some(State { token: None, until })))
    }

    async fn release(&self, key: &str, token: &str) -> Result<bool, Infallible> {
        Ok(self.with_claim(key, token, None))
    }
}
