//! What a command prints: a table, or fields of one thing, as aligned text or JSON.

use serde_json::{Map, Value};

/// The result of a command.
#[derive(Debug)]
pub(crate) enum Report {
    /// Things of one kind, a line each.
    Rows {
        /// Names of the columns, as in JSON.
        columns: Vec<&'static str>,
        /// One value for each column.
        rows: Vec<Vec<Value>>,
    },
    /// One thing, a line for each field.
    Fields(Vec<(&'static str, Value)>),
}

/// Space between columns.
const GAP: &str = "  ";

impl Report {
    /// An array of objects, or one object, with a line break at the end.
    pub(crate) fn to_json(&self) -> String {
        let value = match self {
            Self::Rows { columns, rows } => {
                let object = |row: &Vec<Value>| object(columns.iter().copied().zip(row.clone()));
                rows.iter().map(object).collect()
            }
            Self::Fields(fields) => object(fields.iter().cloned()),
        };
        format!("{value:#}\n")
    }

    /// Columns side by side, those of numbers to the right; or names and values.
    pub(crate) fn to_text(&self) -> String {
        match self {
            Self::Rows { columns, rows } => {
                let header = columns.iter().map(|name| name.to_uppercase().replace('_', " "));
                let cells = rows.iter().map(|row| row.iter().map(cell).collect());
                let table: Vec<Vec<String>> =
                    std::iter::once(header.collect()).chain(cells).collect();
                let is_number = |at| {
                    let mut values = rows.iter().filter_map(|row| row.get(at));
                    !rows.is_empty() && values.all(|v: &Value| v.is_number() || v.is_null())
                };
                let right: Vec<_> = (0..columns.len()).map(is_number).collect();
                aligned(&table, &right)
            }
            Self::Fields(fields) => {
                let line = |(name, value): &(&str, Value)| {
                    vec![format!("{}:", name.replace('_', " ")), cell(value)]
                };
                aligned(&fields.iter().map(line).collect::<Vec<_>>(), &[false, false])
            }
        }
    }
}

fn object(entries: impl Iterator<Item = (&'static str, Value)>) -> Value {
    Value::Object(entries.map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
}

/// A value as people read it. Line breaks and other control characters are escaped, so that what a
/// producer wrote can neither break the table nor reach the terminal's own language.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) if text.is_empty() => "-".into(),
        Value::Array(values) if values.is_empty() => "-".into(),
        Value::String(text) => escaped(text),
        Value::Array(values) => values.iter().map(cell).collect::<Vec<_>>().join(","),
        Value::Object(entries) => {
            let entries =
                entries.iter().map(|(name, value)| format!("{}={}", escaped(name), cell(value)));
            entries.collect::<Vec<_>>().join(" ")
        }
        value => value.to_string(),
    }
}

fn escaped(text: &str) -> String {
    let escape = |c: char| match c {
        c if c.is_control() => c.escape_default().to_string(),
        c => c.to_string(),
    };
    text.chars().map(escape).collect()
}

fn aligned(table: &[Vec<String>], right: &[bool]) -> String {
    let width =
        |at: usize| table.iter().filter_map(|row| row.get(at)).map(|c| c.chars().count()).max();
    let widths: Vec<_> = (0..right.len()).map(|at| width(at).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in table {
        let cells = row.iter().zip(widths.iter().zip(right));
        let cells = cells.map(|(cell, (width, is_right))| match is_right {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        text.push_str(cells.collect::<Vec<_>>().join(GAP).trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_are_aligned_and_numbers_stand_to_the_right() {
        let report = Report::Rows {
            columns: vec!["broker", "queue_id", "tag"],
            rows: vec![
                vec![json!("a"), json!(7), json!("x")],
                vec![json!("bbbbbbb"), json!(12345), Value::Null],
            ],
        };
        let want = "BROKER   QUEUE ID  TAG\na               7  x\nbbbbbbb     12345  -\n";
        assert_eq!(report.to_text(), want);
        let read: Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(read[1], json!({"broker": "bbbbbbb", "queue_id": 12345, "tag": null}));
    }

    #[test]
    fn fields_stand_under_each_other() {
        let report = Report::Fields(vec![("id", json!("x")), ("queue_offset", json!(3))]);
        assert_eq!(report.to_text(), "id:            x\nqueue offset:  3\n");
        assert_eq!(report.to_json(), "{\n  \"id\": \"x\",\n  \"queue_offset\": 3\n}\n");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let report = Report::Fields(vec![("body", json!("a\n\u{1b}[31mb"))]);
        assert_eq!(report.to_text(), "body:  a\\n\\u{1b}[31mb\n");
    }
}
