//! The words of a line: bare ones in order, `key=value` in any order. A value with spaces is quoted.

use model::Millis;

pub(crate) struct Words<'a> {
    words: Vec<&'a str>,
}

impl<'a> Words<'a> {
    pub(crate) fn new(line: &'a str) -> Words<'a> {
        Words { words: split(line) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    pub(crate) fn rest(&self) -> String {
        self.words.join(" ")
    }

    /// Takes `word` if it is the next one.
    pub(crate) fn take(&mut self, word: &str) -> bool {
        let is_next = self.words.first() == Some(&word);
        if is_next {
            self.words.remove(0);
        }
        is_next
    }

    /// Takes `word` wherever it stands.
    pub(crate) fn flag(&mut self, word: &str) -> bool {
        let at = self.words.iter().position(|other| *other == word);
        at.map(|at| self.words.remove(at)).is_some()
    }

    pub(crate) fn next(&mut self, what: &str) -> &'a str {
        assert!(!self.words.is_empty(), "{what} is missing");
        self.words.remove(0)
    }

    /// The next bare word, if there is one.
    pub(crate) fn bare(&mut self) -> Option<&'a str> {
        let is_bare = self.words.first().is_some_and(|word| !word.contains('='));
        is_bare.then(|| self.words.remove(0))
    }

    pub(crate) fn option(&mut self, key: &str) -> Option<&'a str> {
        let value = |word: &&'a str| word.strip_prefix(key)?.strip_prefix('=');
        let at = self.words.iter().position(|word| value(word).is_some())?;
        value(&self.words.remove(at)).map(|value| value.trim_matches('"'))
    }

    pub(crate) fn duration(&mut self, what: &str) -> Millis {
        duration(self.next(what))
    }

    pub(crate) fn duration_option(&mut self, key: &str) -> Option<Millis> {
        self.option(key).map(duration)
    }

    pub(crate) fn number_option(&mut self, key: &str) -> Option<u64> {
        self.option(key).map(number)
    }

    /// What stands between occurrences of `word`; the first part may be empty.
    pub(crate) fn split_at(&mut self, word: &str) -> Vec<Words<'a>> {
        let words = std::mem::take(&mut self.words);
        words.split(|other| *other == word).map(|part| Words { words: part.to_vec() }).collect()
    }
}

fn split(line: &str) -> Vec<&str> {
    let (mut words, mut start, mut quoted) = (Vec::new(), None, false);
    for (at, c) in line.char_indices() {
        match c {
            '"' => {
                quoted = !quoted;
                start = start.or(Some(at));
            }
            c if c.is_whitespace() && !quoted => words.extend(start.take().map(|start| &line[start..at])),
            _ => start = start.or(Some(at)),
        }
    }
    words.extend(start.map(|start| &line[start..]));
    words
}

pub(crate) fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}

/// `500ms`, `10s`, `15m`, `1h` or `30d`.
pub(crate) fn duration(text: &str) -> Millis {
    let units = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    let of =
        |(unit, millis): (&str, u64)| Some(Millis(text.strip_suffix(unit)?.parse::<u64>().ok()? * millis));
    units.into_iter().find_map(of).unwrap_or_else(|| panic!("{text:?} is no length of time"))
}
