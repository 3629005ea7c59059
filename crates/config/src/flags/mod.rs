//! The command line. One table of flags is the source of the parser, the help text and `docs/flags.md`.
//!
//! A row says how a flag is written, what it means, and how its value changes [`Low`], what the user asked for.

mod current;
mod help;
mod low;
mod old;
mod parse;
mod value;

pub(crate) use help::demo_help;
pub use help::{flags_markdown, help_text};
pub(crate) use low::Low;
pub(crate) use parse::parse;

/// What a value looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// `--x`, `--x=true` or `--x=false`; never `--x false`.
    Bool,
    /// Like a boolean, but other words may follow the equals sign.
    OptionalWord,
    Int,
    Float,
    Duration,
    Text,
    Path,
    Ip,
    IpPort,
    /// Separated by commas; the flag may be repeated.
    List,
    /// `name=bool` pairs separated by commas; the flag may be repeated.
    Gates,
    /// `pattern=N` pairs separated by commas; the flag may be repeated.
    Patterns,
}

/// What became of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    /// In use, as in the original.
    Current,
    /// An addition of this program.
    Added,
    /// Still acts; use what the text says instead.
    Deprecated(&'static str),
    /// Accepted without effect; the text says what to do instead.
    Removed(&'static str),
}

/// Changes what the user asked for; the error says what is wrong with the value.
type Set = fn(&mut Low, &str) -> Result<(), String>;

/// One flag: everything that is known about it.
#[derive(Clone, Copy)]
struct Flag {
    name: &'static str,
    short: Option<char>,
    kind: Kind,
    /// As a user would write it; empty for none.
    default: &'static str,
    /// Fields of the configuration file with the same meaning, separated by commas; empty for none.
    fields: &'static str,
    help: &'static str,
    status: Status,
    /// Whether it still acts next to `--config`.
    beside_config: bool,
    set: Set,
}

impl Flag {
    /// A flag in use that gives way to a configuration file.
    const fn new(name: &'static str, kind: Kind, default: &'static str, set: Set) -> Self {
        let status = Status::Current;
        Self { name, short: None, kind, default, fields: "", help: "", status, beside_config: false, set }
    }

    const fn field(mut self, fields: &'static str) -> Self {
        self.fields = fields;
        self
    }

    const fn help(mut self, help: &'static str) -> Self {
        self.help = help;
        self
    }

    const fn short(mut self, short: char) -> Self {
        self.short = Some(short);
        self
    }

    const fn beside_config(mut self) -> Self {
        self.beside_config = true;
        self
    }

    const fn added(mut self) -> Self {
        self.status = Status::Added;
        self
    }

    const fn deprecated(mut self, instead: &'static str) -> Self {
        self.status = Status::Deprecated(instead);
        self
    }

    /// A flag without effect; `instead` is the advice.
    const fn removed(name: &'static str, kind: Kind, instead: &'static str) -> Self {
        let mut flag = Self::new(name, kind, "", |_, _| Ok(()));
        flag.status = Status::Removed(instead);
        flag
    }
}

/// Flags that belong together, with the heading they are listed under.
struct Group {
    title: &'static str,
    flags: &'static [Flag],
}

/// The table, in the order of the help text.
const GROUPS: &[Group] = &[
    Group { title: "What to do", flags: current::ACTIONS },
    Group { title: "Where services and endpoints come from", flags: current::SOURCES },
    Group { title: "This node", flags: current::NODE },
    Group { title: "Proxying", flags: current::PROXY },
    Group { title: "Which traffic is local", flags: current::DETECT_LOCAL },
    Group { title: "Modes nftables and iptables", flags: current::TABLES },
    Group { title: "Mode ipvs", flags: current::IPVS },
    Group { title: "Connection tracking", flags: current::CONNTRACK },
    Group { title: "Health, metrics, profiling", flags: current::HTTP },
    Group { title: "Logging", flags: current::LOGGING },
    Group { title: "Deprecated: they still act, each with a warning", flags: old::DEPRECATED },
    Group { title: "Removed: accepted without effect, each with a warning", flags: old::REMOVED },
];

fn all() -> impl Iterator<Item = &'static Flag> {
    GROUPS.iter().flat_map(|group| group.flags)
}

#[cfg(test)]
mod tests {
    use super::{Kind, all};
    use crate::{Invocation, parse};

    fn configuration(words: &[String]) -> String {
        let words = words.iter().map(Into::into);
        let parsed = parse(words, &|_| Err(std::io::ErrorKind::NotFound.into()), "n").unwrap();
        match parsed.invocation {
            Invocation::Run(config) => format!("{config:?}"),
            other => panic!("should run, but: {other:?}"),
        }
    }

    #[test]
    fn a_flag_given_with_its_documented_default_changes_nothing() {
        let unchanged = configuration(&[]);
        for flag in all().filter(|flag| !flag.default.is_empty()) {
            let word = format!("--{}={}", flag.name, flag.default);
            assert_eq!(configuration(std::slice::from_ref(&word)), unchanged, "{word}");
        }
    }

    #[test]
    fn every_flag_of_the_table_is_there_once_and_explained() {
        let mut names: Vec<_> = all().map(|flag| flag.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "a name is there twice");
        for flag in all() {
            assert!(flag.meaning().ends_with('.'), "{}", flag.name);
            assert!(
                flag.kind != Kind::Bool || ["", "true", "false"].contains(&flag.default),
                "{}",
                flag.name
            );
        }
    }
}
