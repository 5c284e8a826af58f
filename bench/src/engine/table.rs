//! Rows for people, printed as they come, and for programs.

use std::io;

use serde_json::{Value, json};

use crate::cli::say;
use crate::measure::median;

/// What a row is held against.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bar {
    AtLeast(f64),
    AtMost(f64),
    /// For information.
    None,
}

#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<Value>,
    case: String,
}

/// One row: a figure from several repetitions.
pub(crate) struct Row {
    /// What was done.
    pub(crate) what: String,
    /// The middle repetition in words.
    pub(crate) got: String,
    /// What the figure is: a ratio to something, or a value with its unit.
    pub(crate) measure: &'static str,
    /// The figure of each repetition.
    pub(crate) values: Vec<f64>,
    pub(crate) bar: Bar,
    /// Everything else, by repetition.
    pub(crate) details: Vec<Value>,
}

impl Table {
    pub(crate) fn begin(&mut self, case: &str) -> io::Result<()> {
        case.clone_into(&mut self.case);
        say(&format!("\n{case}"))
    }

    /// Prints a row and keeps it.
    pub(crate) fn add(&mut self, row: Row) -> io::Result<()> {
        let middle = median(row.values.iter().copied());
        let (low, high) = row
            .values
            .iter()
            .fold((f64::MAX, f64::MIN), |(low, high), &value| (low.min(value), high.max(value)));
        let (bar, met) = match row.bar {
            Bar::AtLeast(bar) => (format!("   bar >= {bar}"), Some(middle >= bar)),
            Bar::AtMost(bar) => (format!("   bar <= {bar}"), Some(middle <= bar)),
            Bar::None => (String::new(), None),
        };
        let verdict = match met {
            Some(true) => " met",
            Some(false) => " MISSED",
            None => "",
        };
        say(&format!(
            "  {:<44} {:<52} {} {middle:.3} [{low:.3} to {high:.3}]{bar}{verdict}",
            row.what, row.got, row.measure
        ))?;
        self.rows.push(json!({
            "case": self.case,
            "what": row.what,
            "measure": row.measure,
            "median": middle,
            "values": row.values,
            "bar": match row.bar {
                Bar::AtLeast(bar) => json!({ "at_least": bar }),
                Bar::AtMost(bar) => json!({ "at_most": bar }),
                Bar::None => Value::Null,
            },
            "met": met,
            "repetitions": row.details,
        }));
        Ok(())
    }

    pub(crate) fn json(&self) -> &[Value] {
        &self.rows
    }
}
