//! Reads a history line by line; what is wrong is told with its line.

use std::io::{self, BufRead};

use super::{Call, Deed, Line, Outcome, VERSION};

/// A line longer than this is none of ours.
const LINE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Why a history cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file itself.
    #[error("line {line}: cannot read: {source}")]
    Io {
        /// Where it stopped.
        line: u32,
        /// Why.
        source: io::Error,
    },
    /// A line that is no line of a history.
    #[error("line {line}: {what}")]
    Line {
        /// Which.
        line: u32,
        /// What is wrong with it.
        what: String,
    },
    /// A file without its first fact.
    #[error("there is no \"run\" line: is this a history?")]
    NoRun,
}

/// Hands every line with its number, from 1, to `take`; empty lines are passed over.
pub fn read(
    mut from: impl BufRead,
    mut take: impl FnMut(u32, Line) -> Result<(), String>,
) -> Result<(), Error> {
    let mut bytes = Vec::new();
    let mut runs = 0u32;
    for line in 1u32.. {
        bytes.clear();
        let read = io::Read::take(&mut from, LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut bytes);
        if read.map_err(|source| Error::Io { line, source })? == 0 {
            break;
        }
        let fault = |what: String| Error::Line { line, what };
        if bytes.len() > LINE_BYTES_MAX {
            return Err(fault(format!("longer than {LINE_BYTES_MAX} bytes")));
        }
        if bytes.trim_ascii().is_empty() {
            continue;
        }
        let parsed: Line = serde_json::from_slice(&bytes).map_err(|error| fault(said(&error)))?;
        match &parsed {
            Line::Run(run) if run.version != VERSION => {
                return Err(fault(format!("version {} is not understood, only {VERSION}", run.version)));
            }
            Line::Run(_) => runs += 1,
            Line::Call(call) => whole(call).map_err(fault)?,
            _ => {}
        }
        take(line, parsed).map_err(fault)?;
    }
    if runs == 0 { Err(Error::NoRun) } else { Ok(()) }
}

/// What the parser says, without its own count of lines: it saw only one.
fn said(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or(&text);
    format!("{what} (column {})", error.column())
}

/// Whether a call says all that its kind and outcome must.
fn whole(call: &Call) -> Result<(), String> {
    if call.end_us < call.start_us {
        return Err(format!("the call ends at {} us, before it starts at {} us", call.end_us, call.start_us));
    }
    let is_ok = call.outcome == Outcome::Ok;
    let verb = call.deed.verb().as_str();
    let missing = match &call.deed {
        Deed::Enqueue(enqueue) if is_ok && enqueue.task.is_none() => Some("task"),
        Deed::Fail(fail) if is_ok && fail.state.is_none() => Some("state"),
        Deed::PutBack(on) | Deed::Discard(on) | Deed::Cancel(on) | Deed::Requeue(on) => {
            match (on.task, &on.queue) {
                (None, None) => return Err(format!("{verb}: \"task\" or \"queue\" is missing")),
                (Some(_), Some(_)) => return Err(format!("{verb}: \"task\" or \"queue\", not both")),
                (Some(_), None) if is_ok && on.state.is_none() => Some("state"),
                _ => None,
            }
        }
        Deed::Get { state: None, .. } if is_ok => Some("state"),
        Deed::EndSession { session: None, worker: None } => Some("session\" or \"worker"),
        _ => None,
    };
    match missing {
        Some(field) if is_ok => Err(format!("{verb}: \"{field}\" is missing in an answer")),
        Some(field) => Err(format!("{verb}: \"{field}\" is missing")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Run;

    fn fault_of(lines: &[&str]) -> String {
        let text = lines.join("\n");
        read(text.as_bytes(), |_, _| Ok(())).unwrap_err().to_string()
    }

    const RUN: &str = r#"{"run":{"version":1,"name":"a run"}}"#;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let id: model::TaskId = "01994c2e-8f00-7001-8000-000000000001".parse().unwrap();
        let call = Call {
            client: "w1".to_owned(),
            start_us: 1,
            end_us: 2,
            outcome: Outcome::Rejected("stale_token".to_owned()),
            index: "1:7".parse().unwrap(),
            deed: Deed::Ack(super::super::Settle::of(id, 3)),
        };
        let lines = [Line::Run(Run::new("a run")), Line::Call(call)];
        let text: Vec<String> = lines.iter().map(Line::to_json).collect();
        assert_eq!(
            text[1],
            r#"{"call":{"client":"w1","start_us":1,"end_us":2,"outcome":{"rejected":"stale_token"},"index":"1:7","do":{"ack":{"task":"01994c2e-8f00-7001-8000-000000000001","fence":3}}}}"#
        );
        let mut found = Vec::new();
        read(text.join("\n\n").as_bytes(), |line, parsed| {
            found.push((line, parsed));
            Ok(())
        })
        .unwrap();
        assert_eq!(found, [(1, lines[0].clone()), (3, lines[1].clone())]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let call = |rest: &str| format!(r#"{{"call":{{"client":"c","start_us":5,"end_us":9,{rest}}}}}"#);
        let cases = [
            ("no json", "{".to_owned(), "line 2: EOF while parsing"),
            ("no such line", r#"{"walk":{}}"#.to_owned(), "line 2: unknown variant `walk`"),
            (
                "no such field",
                r#"{"fault":{"kind":"x","at_us":1,"when":2}}"#.to_owned(),
                "line 2: unknown field `when`",
            ),
            (
                "newer",
                r#"{"run":{"version":2,"name":"x"}}"#.to_owned(),
                "line 2: version 2 is not understood",
            ),
            (
                "no such outcome",
                call(r#""outcome":"maybe","do":{"purge":{"queue":"q"}}"#),
                "line 2: unknown variant `maybe`",
            ),
            (
                "an id that is none",
                call(r#""outcome":"unknown","do":{"ack":{"task":"t1","fence":1}}"#),
                "line 2: not a task id",
            ),
            (
                "an answer without its task",
                call(r#""outcome":"ok","do":{"enqueue":{"queue":"q","payload":"p"}}"#),
                r#"line 2: enqueue: "task" is missing in an answer"#,
            ),
            (
                "neither task nor queue",
                call(r#""outcome":"unknown","do":{"cancel":{}}"#),
                r#"line 2: cancel: "task" or "queue" is missing"#,
            ),
            (
                "an index that is none",
                call(r#""outcome":"ok","index":"7","do":{"purge":{"queue":"q"}}"#),
                r#"line 2: "7" is no index"#,
            ),
        ];
        for (what, line, expected) in cases {
            let found = fault_of(&[RUN, &line]);
            assert!(found.starts_with(expected), "{what}: {found}");
        }
        let backwards =
            r#"{"call":{"client":"c","start_us":9,"end_us":5,"outcome":"ok","do":{"purge":{"queue":"q"}}}}"#;
        assert!(fault_of(&[RUN, backwards]).starts_with("line 2: the call ends at 5 us, before"));
        assert_eq!(fault_of(&[]), "there is no \"run\" line: is this a history?");
    }
}
