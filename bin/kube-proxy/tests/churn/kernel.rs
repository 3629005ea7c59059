//! What the kernel's tables mean, read with `nft`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use netlink::namespace::Namespace;

use crate::cluster::{Face, Family, List, Meaning};

/// The sets and maps that are read.
const LISTED: [&str; 14] = [
    "map frontends",
    "map nodeports",
    "map short-circuit",
    "map nodeport-short-circuit",
    "map lists",
    "map endpoints",
    "map affinity-timeouts",
    "map affinity-slots",
    "map affinity-endpoints",
    "set external-masquerade",
    "set nodeport-masquerade",
    "set firewall-frontends",
    "set firewall-sources",
    "set cluster-ips",
];
/// A table of this test's own: its listing comes after all the others.
const END: &str = "end-of-listing";

const SILENT: u32 = u32::MAX;

/// One `nft` that takes command after command, which is much faster than one process for each.
pub(crate) struct Nft {
    process: Child,
    commands: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// Elements by the set's name, each with its value, empty in a set.
type Listing = BTreeMap<String, BTreeMap<String, String>>;

impl Nft {
    pub(crate) fn start(namespace: &Namespace) -> Self {
        let mut nft = namespace.command("nft").unwrap();
        // what is not there for a moment, in a repair, is an error that the next look clears up
        let nft = nft.arg("-i").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = nft.spawn().unwrap();
        let (commands, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let mut nft = Self { process, commands, output: BufReader::new(output) };
        nft.run(&format!("add table ip {END}"));
        nft.run(&format!("add set ip {END} {END} {{ type mark; }}"));
        nft
    }

    pub(crate) fn run(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
    }

    fn list(&mut self, family: Family) -> Listing {
        let name = if family == Family::V4 { "ip" } else { "ip6" };
        for listed in LISTED {
            let (kind, set) = listed.split_once(' ').unwrap();
            self.run(&format!("list {kind} {name} kube-proxy {set}"));
        }
        self.run(&format!("list set ip {END} {END}"));
        let (mut listing, mut set, mut elements) = (Listing::new(), String::new(), None::<String>);
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "nft has ended");
            let line = line.trim();
            if let Some(header) = line.strip_prefix("map ").or_else(|| line.strip_prefix("set ")) {
                header.trim_end_matches(" {").clone_into(&mut set);
                listing.entry(set.clone()).or_default();
            } else if let Some(begun) = line.strip_prefix("elements = {") {
                elements = Some(begun.to_owned());
            } else if let Some(elements) = &mut elements {
                elements.push_str(line);
            }
            if elements.as_ref().is_some_and(|elements| elements.ends_with('}')) {
                let all = elements.take().unwrap_or_default();
                let all = all.trim_end_matches('}').split(',').map(element);
                listing.insert(set.clone(), all.collect());
            }
            if set == END && line == "}" {
                // the set's end, then the table's
                self.output.read_line(&mut String::new()).unwrap();
                return listing;
            }
        }
    }

    /// What the tables of a family mean at this moment. Between two transactions it may be neither of both.
    pub(crate) fn meaning(&mut self, family: Family) -> Meaning {
        let tables = Tables(self.list(family));
        let mut meaning = Meaning::default();
        for (frontends, short, masquerade, prefix) in [
            ("frontends", "short-circuit", "external-masquerade", ""),
            ("nodeports", "nodeport-short-circuit", "nodeport-masquerade", "node "),
        ] {
            for (key, list) in tables.of(frontends) {
                let face = Face {
                    list: tables.list(list),
                    inside: tables.of(short).get(key).map(|list| tables.list(list)),
                    masquerade: tables.of(masquerade).contains_key(key),
                    affinity: tables.of("affinity-timeouts").get(list).map(|seconds| number(seconds)),
                    sources: tables.sources(key),
                };
                meaning.faces.insert(format!("{prefix}{}", key.replace(" . ", " ")), face);
            }
        }
        meaning.cluster_ips = tables.of("cluster-ips").keys().filter_map(|ip| ip.parse().ok()).collect();
        meaning
    }
}

impl Drop for Nft {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Tables(Listing);

impl Tables {
    fn of(&self, set: &str) -> &BTreeMap<String, String> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        self.0.get(set).unwrap_or(&NONE)
    }

    fn list(&self, list: &str) -> List {
        let Some(size) = self.of("lists").get(list).map(|size| number(size)) else {
            return List::To(BTreeSet::new());
        };
        let slots = (0..size.min(64)).map(|slot| format!("{list} . {slot:#010x}"));
        match size {
            0 => List::Refused,
            SILENT => List::Silent,
            _ => List::To(slots.filter_map(|slot| self.endpoint(&slot)).collect()),
        }
    }

    /// With affinity the slots hold names of endpoints.
    fn endpoint(&self, slot: &str) -> Option<SocketAddr> {
        let named =
            self.of("affinity-slots").get(slot).and_then(|name| self.of("affinity-endpoints").get(name));
        let (address, port) = self.of("endpoints").get(slot).or(named)?.split_once(" . ")?;
        Some(SocketAddr::new(address.parse().ok()?, port.parse().ok()?))
    }

    fn sources(&self, frontend: &str) -> BTreeSet<String> {
        if !self.of("firewall-frontends").contains_key(frontend) {
            return BTreeSet::new();
        }
        let ranges = self.of("firewall-sources").keys();
        let own = ranges.filter_map(|range| range.strip_prefix(frontend)?.strip_prefix(" . "));
        own.map(str::to_owned).collect()
    }
}

/// A mark.
fn number(text: &str) -> u32 {
    let hexadecimal = text.strip_prefix("0x").map(|digits| u32::from_str_radix(digits, 16));
    hexadecimal.unwrap_or_else(|| text.parse()).unwrap()
}

/// An element without its comment, and its value.
fn element(text: &str) -> (String, String) {
    let (key, value) = text.trim().rsplit_once(" : ").unwrap_or((text.trim(), ""));
    let key = key.split(" comment ").next().unwrap_or(key);
    (key.to_owned(), value.split(" comment ").next().unwrap_or(value).to_owned())
}
