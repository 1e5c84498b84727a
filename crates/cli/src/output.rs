//! Answers on stdout: tables for people, JSON and CSV for programs.
//!
//! Colours and bars appear on a terminal only. What came from tasks is shown with its control characters
//! escaped, so that a payload cannot write to the terminal of whoever looks at it. Never talks to a server.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::Result;
use clap::ValueEnum;
use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;

use crate::exit::Failure;
use crate::json::Json;
use crate::span::about;

/// How an answer is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Table,
    /// One JSON value, as the server said it
    Json,
    /// One JSON value per line
    Jsonl,
    /// With a header line
    Csv,
}

/// How a column shows its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    Plain,
    /// A number, to the right.
    Number,
    /// Milliseconds, as a person says them.
    Age,
    /// A state, in its colour.
    State,
    /// Any JSON, cut where it gets long.
    Brief,
}

/// A column of a table: its title, a JSON pointer to its value, and how that is shown.
pub(crate) type Column = (&'static str, &'static str, Show);

/// Where answers go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    format: Format,
    colour: bool,
}

impl Output {
    pub(crate) fn new(format: Format) -> Output {
        let colour = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        Output { format, colour }
    }

    /// Whether a program reads along.
    pub(crate) fn is_for_people(self) -> bool {
        self.format == Format::Table
    }

    /// Which form was asked for, for what is not a list.
    pub(crate) fn format(self) -> Format {
        self.format
    }

    /// A list of things; `name` is what the server calls the list.
    pub(crate) fn list(self, name: &str, items: &[Json], columns: &[Column]) -> Result<()> {
        match self.format {
            Format::Table if items.is_empty() => note(&format!("no {name}")),
            Format::Table => print(&self.table(items, columns)),
            Format::Json => {
                let items: Vec<&str> = items.iter().map(Json::raw).collect();
                print(&format!("{{\"{name}\":[{}]}}", items.join(",")))
            }
            Format::Jsonl => items.iter().try_for_each(|item| print(item.raw())),
            Format::Csv => csv(items, columns),
        }
    }

    /// The list that stands in one field of an answer; programs get the whole answer.
    pub(crate) fn list_in(self, answer: &Json, field: &str, columns: &[Column]) -> Result<()> {
        match self.format {
            Format::Json => print(answer.raw()),
            _ => self.list(field, &answer.items(field), columns),
        }
    }

    /// One thing, a line for each of its facts.
    pub(crate) fn one(self, item: &Json, columns: &[Column]) -> Result<()> {
        match self.format {
            Format::Table => {
                let width = columns.iter().map(|(title, ..)| title.len()).max().unwrap_or(0);
                for (title, pointer, show) in columns {
                    let text =
                        shown(item.value(), pointer, if *show == Show::Brief { Show::Plain } else { *show });
                    if !text.is_empty() {
                        print(&format!("{title:width$}  {text}"))?;
                    }
                }
                Ok(())
            }
            Format::Json | Format::Jsonl => print(item.raw()),
            Format::Csv => csv(std::slice::from_ref(item), columns),
        }
    }

    /// One thing, with a sentence of our own for people.
    pub(crate) fn say(self, item: &Json, sentence: &str) -> Result<()> {
        match self.format {
            Format::Table => print(&escape(sentence)),
            Format::Json | Format::Jsonl => print(item.raw()),
            Format::Csv => {
                let fields = item.value().as_object();
                let names: Vec<String> = fields.iter().flat_map(|f| f.keys()).map(|k| csv_field(k)).collect();
                let values: Vec<String> =
                    fields.iter().flat_map(|f| f.values()).map(|v| csv_field(&text(v))).collect();
                print(&names.join(","))?;
                print(&values.join(","))
            }
        }
    }

    fn table(self, items: &[Json], columns: &[Column]) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        if io::stdout().is_terminal() {
            table.set_content_arrangement(ContentArrangement::Dynamic);
        }
        table.set_header(columns.iter().map(|&(title, _, show)| {
            let cell = Cell::new(title.to_uppercase());
            let cell = if right(show) { cell.set_alignment(CellAlignment::Right) } else { cell };
            if self.colour { cell.add_attribute(Attribute::Bold) } else { cell }
        }));
        for item in items {
            table.add_row(columns.iter().map(|&(_, pointer, show)| self.cell(item.value(), pointer, show)));
        }
        let text = table.to_string();
        text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
    }

    fn cell(self, item: &Value, pointer: &str, show: Show) -> Cell {
        let text = shown(item, pointer, show);
        let colour = match text.as_str() {
            _ if !self.colour || show != Show::State => None,
            "done" | "running" | "ready" | "up" => Some(Color::Green),
            "claimed" | "draining" => Some(Color::Cyan),
            "retrying" | "delayed" | "blocked" | "stopping" => Some(Color::Yellow),
            "dead" | "failed" | "expired" | "lost" | "down" => Some(Color::Red),
            _ => None,
        };
        let cell = Cell::new(text);
        let cell = if right(show) { cell.set_alignment(CellAlignment::Right) } else { cell };
        match colour {
            Some(colour) => cell.fg(colour),
            None => cell,
        }
    }
}

fn right(show: Show) -> bool {
    matches!(show, Show::Number | Show::Age)
}

fn shown(item: &Value, pointer: &str, show: Show) -> String {
    let Some(value) = item.pointer(pointer).filter(|value| !value.is_null()) else { return String::new() };
    match show {
        Show::Age => value.as_u64().map_or_else(|| text(value), about),
        Show::Brief => escape(&brief(&text(value), 60)),
        Show::Plain | Show::Number | Show::State => escape(&text(value)),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn brief(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// The text with control characters made visible.
pub(crate) fn escape(text: &str) -> String {
    if !text.contains(char::is_control) {
        return text.to_owned();
    }
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

fn csv(items: &[Json], columns: &[Column]) -> Result<()> {
    print(&columns.iter().map(|(title, ..)| csv_field(title)).collect::<Vec<_>>().join(","))?;
    for item in items {
        let row: Vec<String> = columns
            .iter()
            .map(|(_, pointer, _)| csv_field(&item.value().pointer(pointer).map(text).unwrap_or_default()))
            .collect();
        print(&row.join(","))?;
    }
    Ok(())
}

fn csv_field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// A line on stdout; a closed pipe is an error, which `main` forgives.
pub(crate) fn print(line: &str) -> Result<()> {
    writeln!(io::stdout().lock(), "{line}")?;
    Ok(())
}

/// A line on stderr, beside the answer. Nothing is lost when nobody reads it.
pub(crate) fn note(line: &str) -> Result<()> {
    let _ = writeln!(io::stderr().lock(), "{line}");
    Ok(())
}

/// A bar on stderr for long work; it shows on a terminal only. `length` is not always known.
pub(crate) fn progress(length: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr_with_hz(10));
    let template = match length {
        Some(_) => "{wide_bar} {human_pos}/{human_len} {per_sec} {eta}",
        None => "{spinner} {human_pos} {per_sec} {elapsed}",
    };
    bar.set_style(ProgressStyle::with_template(template).expect("the template is fixed and valid"));
    bar
}

/// Asks before something is destroyed. Without a terminal there is nobody to ask: `--yes` is needed.
pub(crate) fn confirm(yes: bool, what: &str) -> Result<()> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::usage(format!("will not {what} without being asked twice: add --yes")).into());
    }
    let _ = write!(io::stderr().lock(), "{what}? [y/N] ");
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new(crate::exit::Exit::Failure, "left as it is").into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_show_values_and_hide_control_characters() {
        let item = json!({"a": "x\u{1b}[31m", "n": 90_000, "deep": {"b": true}, "nothing": null});
        for (pointer, show, expected) in [
            ("/a", Show::Plain, "x\\u{1b}[31m"),
            ("/n", Show::Age, "90 s"),
            ("/deep/b", Show::Plain, "true"),
            ("/nothing", Show::Plain, ""),
            ("/absent", Show::Plain, ""),
        ] {
            assert_eq!(shown(&item, pointer, show), expected, "{pointer}");
        }
    }

    #[test]
    fn csv_quotes_what_needs_it() {
        for (text, expected) in [("plain", "plain"), ("a,b", "\"a,b\""), ("say \"x\"", "\"say \"\"x\"\"\"")] {
            assert_eq!(csv_field(text), expected);
        }
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(brief("äöü", 2), "äö…");
        assert_eq!(brief("äöü", 3), "äöü");
    }
}
