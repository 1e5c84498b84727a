//! A story as it is written down: lines of text become steps. The format is told in `conformance/README.md`.

use std::path::Path;

use serde_json::Value;

/// One behaviour, from enqueue to outcome.
#[derive(Clone, Debug)]
pub(crate) struct Story {
    pub(crate) name: String,
    /// Faces that cannot express it, each with the reason.
    pub(crate) skips: Vec<(String, String)>,
    pub(crate) steps: Vec<Step>,
}

/// One line.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// From 1.
    pub(crate) line: usize,
    pub(crate) text: String,
    pub(crate) verb: String,
    pub(crate) words: Vec<String>,
    /// Null without one.
    pub(crate) body: Value,
    pub(crate) expected: Option<String>,
}

impl Story {
    /// Reads a story; says which line is none.
    pub(crate) fn parse(name: &str, text: &str) -> Result<Story, String> {
        let mut story = Story { name: name.to_owned(), skips: Vec::new(), steps: Vec::new() };
        for (n, line) in text.lines().enumerate() {
            let (line, number) = (line.trim(), n + 1);
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(skip) = line.strip_prefix("skip ") {
                let skip = skip.split_once(": ").filter(|(_, reason)| !reason.is_empty());
                let (face, reason) = skip.ok_or(format!("{name}:{number}: a skip has a reason"))?;
                story.skips.push((face.to_owned(), reason.to_owned()));
                continue;
            }
            let step = Step::parse(number, line).map_err(|why| format!("{name}:{number}: {why}"))?;
            story.steps.push(step);
        }
        if story.steps.is_empty() { Err(format!("{name}: no step")) } else { Ok(story) }
    }

    /// All stories of a directory, by name.
    pub(crate) fn all(dir: &Path) -> Vec<Story> {
        let mut paths: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|ending| ending == "story"));
        paths.sort();
        let read = |path: &std::path::PathBuf| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            let text = std::fs::read_to_string(path).unwrap();
            Story::parse(&name, &text).unwrap_or_else(|why| panic!("{why}"))
        };
        paths.iter().map(read).collect()
    }

    /// Why this face does not run it, if so.
    pub(crate) fn skipped(&self, face: &str) -> Option<&str> {
        self.skips.iter().find(|(skipped, _)| skipped == face).map(|(_, reason)| reason.as_str())
    }
}

impl Step {
    fn parse(line: usize, text: &str) -> Result<Step, String> {
        let (left, expected) = match text.rsplit_once(" => ") {
            Some((left, expected)) => (left, Some(expected.to_owned())),
            None => (text, None),
        };
        let at = [" {", " ["].iter().filter_map(|begin| left.find(begin)).min().unwrap_or(left.len());
        let (words, body) = left.split_at(at);
        let body = match body.trim() {
            "" => Value::Null,
            body => serde_json::from_str(body).map_err(|error| format!("no JSON: {error}: {body}"))?,
        };
        let mut words = words.split_whitespace().map(str::to_owned);
        let verb = words.next().ok_or("no verb")?;
        Ok(Step { line, text: text.to_owned(), verb, words: words.collect(), body, expected })
    }
}
