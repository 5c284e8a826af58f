//! A busy load measured in turns alone and beside something that should not disturb it.
//!
//! A broker at the edge of its device falls into one of several rhythms of group commit and stays in
//! it for seconds, so one window of either kind says little: several of each alternate.

use std::io;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::{Session, Target, latency_text};
use crate::load::{Budget, Load};
use crate::measure::{Tally, median, per_second};
use crate::produce::{LoadArgs, drain};
use crate::reactor::{Actor, Stop, run};

/// The busy load's options.
#[derive(Args, Clone, Debug)]
pub(crate) struct BusyArgs {
    /// Connections of the busy load
    #[arg(long, default_value_t = 1)]
    pub(crate) connections: u32,
    /// Requests in flight on each of them
    #[arg(long, default_value_t = 8)]
    pub(crate) in_flight: u32,
    /// Body bytes of one message
    #[arg(long, default_value_t = 1024)]
    pub(crate) body: usize,
    /// Seconds of each window
    #[arg(long, default_value_t = 5.0)]
    pub(crate) seconds: f64,
    /// Seconds of load before the first window
    #[arg(long, default_value_t = 3.0)]
    pub(crate) warmup: f64,
    /// Bytes of bodies of each window at most
    #[arg(long, default_value_t = 2_000_000_000)]
    pub(crate) bytes_max: u64,
    /// Windows beside the disturbance, each between two without it
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
}

/// What one window brought.
pub(crate) struct Window {
    rate: f64,
    tally: Tally,
}

impl Window {
    /// The window as JSON.
    pub(crate) fn json(&self) -> Value {
        json!({
            "messages_per_second": self.rate,
            "latency": self.tally.latency_json(),
            "errors": self.tally.errors_json(),
        })
    }

    /// The window as text.
    pub(crate) fn text(&self) -> String {
        let errors = self.tally.errors_json();
        format!(
            "{:.0} msg/s   {}   errors {errors}",
            self.rate,
            latency_text(&self.tally.latency_json())
        )
    }
}

impl BusyArgs {
    /// Opens the busy load as actor 0.
    ///
    /// # Errors
    ///
    /// As the system reports them.
    pub(crate) fn open(&self, target: &Target, session: &Session) -> io::Result<Load> {
        LoadArgs {
            connections: self.connections,
            in_flight: self.in_flight,
            body: self.body,
            batch: 1,
            rate: None,
            tag: None,
        }
        .open(target, session, 0)
    }

    /// Lets the broker warm up.
    ///
    /// # Errors
    ///
    /// Ends the run.
    pub(crate) fn warm_up(&self, load: &mut Load, session: &mut Session) -> io::Result<()> {
        self.windowed(load, None, session, self.warmup).map(|_| ())
    }

    /// Measures one window of the load, with `others` (actor 1) served beside it.
    ///
    /// # Errors
    ///
    /// Ends the run.
    pub(crate) fn window(
        &self,
        load: &mut Load,
        others: Option<&mut dyn Actor>,
        session: &mut Session,
    ) -> io::Result<Window> {
        self.windowed(load, others, session, self.seconds)
    }

    fn windowed(
        &self,
        load: &mut Load,
        others: Option<&mut dyn Actor>,
        session: &mut Session,
        seconds: f64,
    ) -> io::Result<Window> {
        let budget = Budget { messages: u64::MAX, bytes: self.bytes_max };
        let reactor = &mut session.reactor;
        load.begin(budget, reactor)?;
        let from = reactor.now();
        let until = from.plus(Duration::from_secs_f64(seconds));
        match others {
            Some(others) => run(reactor, &mut [load, others], until, Stop::AnyDone)?,
            None => run(reactor, &mut [load], until, Stop::AnyDone)?,
        }
        let rate = per_second(load.tally.messages, from, reactor.now());
        let tally = load.tally.clone();
        drain(load, reactor)?;
        Ok(Window { rate, tally })
    }
}

/// Windows that alternate: the first and the last are without the disturbance.
#[derive(Default)]
pub(crate) struct Rounds {
    alone: Vec<Window>,
    beside: Vec<Window>,
}

impl Rounds {
    pub(crate) fn push_alone(&mut self, window: Window) {
        self.alone.push(window);
    }

    pub(crate) fn push_beside(&mut self, window: Window) {
        self.beside.push(window);
    }

    /// The median of each round's rate beside as a part of the mean of the rates around it.
    pub(crate) fn part(&self) -> f64 {
        let around = self.alone.windows(2).filter_map(|pair| match pair {
            [before, after] => Some(f64::midpoint(before.rate, after.rate)),
            _ => None,
        });
        median(self.beside.iter().zip(around).map(|(beside, alone)| beside.rate / alone))
    }

    /// The windows as JSON.
    pub(crate) fn json(&self) -> Value {
        let all = |windows: &[Window]| windows.iter().map(Window::json).collect::<Vec<_>>();
        json!({ "alone": all(&self.alone), "beside": all(&self.beside) })
    }

    /// The windows as text, one line each, and what follows.
    pub(crate) fn text(&self) -> String {
        let line = |what: &str, window: &Window| format!("busy {what} {}\n", window.text());
        let mut text = String::new();
        for (turn, alone) in self.alone.iter().enumerate() {
            text += &line("alone ", alone);
            if let Some(beside) = self.beside.get(turn) {
                text += &line("beside", beside);
            }
        }
        text + &format!("beside / alone = {:.3}", self.part())
    }
}
