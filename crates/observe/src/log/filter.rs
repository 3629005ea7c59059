//! Which events are printed.

use std::sync::atomic::{AtomicU32, Ordering};

use tracing::{Level, Metadata, metadata::LevelFilter};

/// What `-v` and `--vmodule` ask for.
#[derive(Debug)]
pub(super) struct Filter {
    verbosity: AtomicU32,
    vmodule: Vec<(String, u32)>,
}

impl Filter {
    pub(super) fn new(verbosity: u32, vmodule: Vec<(String, u32)>) -> Self {
        Self { verbosity: AtomicU32::new(verbosity), vmodule }
    }

    pub(super) fn verbosity(&self) -> u32 {
        self.verbosity.load(Ordering::Relaxed)
    }

    pub(super) fn set_verbosity(&self, verbosity: u32) {
        self.verbosity.store(verbosity, Ordering::Relaxed);
    }

    /// The level that holds for an event's file: the higher of `-v` and its entry in `--vmodule`.
    pub(super) fn verbosity_at(&self, metadata: &Metadata<'_>) -> u32 {
        let general = self.verbosity();
        if self.vmodule.is_empty() {
            return general;
        }
        let path = metadata.file().unwrap_or_default();
        let name = path.rsplit('/').next().unwrap_or(path);
        let stem = name.strip_suffix(".rs").unwrap_or(name);
        let own = self.vmodule.iter().find(|(pattern, _)| matches(pattern.as_bytes(), stem.as_bytes()));
        own.map_or(general, |(_, level)| general.max(*level))
    }

    /// Whether an event may be printed. One that says its level itself has to be asked again when that is known;
    /// of `debug!` and `trace!` it is taken to be 1 or more.
    pub(super) fn may_print(&self, metadata: &Metadata<'_>) -> bool {
        let says_level = metadata.fields().field("v").is_some();
        let level = level_of(metadata);
        let least = if says_level { level.min(1) } else { level };
        least <= self.verbosity_at(metadata)
    }

    /// A bound for all events, so that the rest is skipped without asking.
    pub(super) fn most_verbose(&self) -> LevelFilter {
        let most = self.vmodule.iter().map(|(_, level)| *level).fold(self.verbosity(), u32::max);
        if most == 0 { LevelFilter::INFO } else { LevelFilter::TRACE }
    }
}

/// The `-v` from which an event without a field `v` is printed.
pub(super) fn level_of(metadata: &Metadata<'_>) -> u32 {
    let own = metadata.target().starts_with("kube_proxy");
    match *metadata.level() {
        Level::INFO if !own => 4,
        Level::ERROR | Level::WARN | Level::INFO => 0,
        Level::DEBUG if own => 2,
        Level::DEBUG => 6,
        Level::TRACE if own => 5,
        Level::TRACE => 10,
    }
}

/// Whether `name` matches `pattern`, in which `*` stands for any characters and `?` for any one. Takes time of at
/// most the product of the lengths.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == b'?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    p = at + 1;
                    n = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_whole_names_with_star_and_question_mark() {
        for (pattern, name, expected) in [
            ("sync", "sync", true),
            ("sync", "syncer", false),
            ("sync*", "syncer", true),
            ("*ync", "sync", true),
            ("s?nc", "sync", true),
            ("s?nc", "snc", false),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-b", false),
            ("**a", "aa", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} on {name}");
        }
    }
}
