//! `sim check FILE…`: holds the promises against histories.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::Path;
use std::process::ExitCode;

use sim::check::{Checker, Coverage, RUNS_MIN, Report};
use sim::history::{self, read};

const USAGE: &str = "\
usage: sim check FILE…

  check   reads histories (docs/formats/history.md), one run per file, and says whether every promise held

exit code: 0 every promise held, 1 one broke, 2 a file cannot be read or the command is not understood
";

const HELD: u8 = 0;
const BROKEN: u8 = 1;
const UNREADABLE: u8 = 2;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut out = io::stdout().lock();
    let code = match args.split_first() {
        Some((verb, files)) if verb == "check" && !files.is_empty() => check(files, &mut out),
        Some((help, _)) if help == "--help" || help == "-h" || help == "help" => {
            out.write_all(USAGE.as_bytes()).map(|()| HELD)
        }
        _ => io::stderr().write_all(USAGE.as_bytes()).map(|()| UNREADABLE),
    };
    // Nobody is left to be told that nobody reads what we tell.
    ExitCode::from(code.unwrap_or(UNREADABLE))
}

fn check(files: &[String], out: &mut impl Write) -> io::Result<u8> {
    let mut code = HELD;
    let mut coverage = Coverage::default();
    for file in files {
        match judge(Path::new(file)) {
            Ok(report) => {
                write!(out, "{file}: {report}")?;
                coverage.add(&report.coverage);
                if !report.held() {
                    code = code.max(BROKEN);
                }
            }
            Err(error) => {
                writeln!(io::stderr(), "{file}: {error}")?;
                code = UNREADABLE;
            }
        }
    }
    write!(out, "{coverage}")?;
    if coverage.is_invalid() {
        writeln!(
            out,
            "  in {RUNS_MIN} runs or more all of it must have happened: these runs prove too little"
        )?;
        code = code.max(BROKEN);
    }
    Ok(code)
}

fn judge(path: &Path) -> Result<Report, history::Error> {
    let file = File::open(path).map_err(|source| history::Error::Io { line: 0, source })?;
    let mut checker = Checker::new();
    read(BufReader::with_capacity(1 << 16, file), |number, line| checker.take(number, line))?;
    Ok(checker.finish())
}
