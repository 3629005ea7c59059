//! A little model of the kernel's side: `iptables-restore --noflush`, and `iptables-save`.
#![allow(dead_code, clippy::unwrap_used)] // each test program uses a part

pub(crate) mod normalise;
pub(crate) mod services;

use std::fmt::Write as _;

use kube_proxy_backend_iptables::{Chains, Table, Tables};

/// The tables of a node that nobody has written to.
pub(crate) fn untouched() -> Tables {
    let empty = |chains: &[&str]| chains.iter().map(|chain| ((*chain).to_owned(), vec![])).collect();
    Tables {
        mangle: empty(&["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"]),
        filter: empty(&["INPUT", "FORWARD", "OUTPUT"]),
        nat: empty(&["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"]),
    }
}

/// The tables after each commit of this input. Panics where the kernel would refuse it.
pub(crate) fn restore(tables: &Tables, input: &str) -> Vec<Tables> {
    let mut commits = vec![tables.clone()];
    for part in input.split_inclusive("COMMIT\n") {
        let body = part.strip_suffix("COMMIT\n").unwrap();
        let (table, body) = body.split_once('\n').unwrap();
        let mut tables = commits.last().unwrap().clone();
        let chains = match table {
            "*mangle" => &mut tables.mangle,
            "*filter" => &mut tables.filter,
            "*nat" => &mut tables.nat,
            other => panic!("no such table: {other}"),
        };
        body.lines().for_each(|line| command(chains, line));
        commits.push(tables);
    }
    commits
}

/// The tables after all of it.
pub(crate) fn restored(tables: &Tables, input: &str) -> Tables {
    restore(tables, input).pop().unwrap()
}

fn command(chains: &mut Chains, line: &str) {
    if let Some(declared) = line.strip_prefix(':') {
        let name = declared.strip_suffix(" - [0:0]").unwrap();
        assert!(name.len() < 29, "{name}: too long");
        chains.insert(name.to_owned(), vec![]);
        return;
    }
    let (command, rest) = line.split_once(' ').unwrap();
    let (chain, rule) = rest.split_once(' ').unwrap_or((rest, ""));
    if let Some(target) = target(rule) {
        assert!(chains.contains_key(target), "{line}: no chain {target}");
    }
    let used = chains.values().flatten().any(|rule| target(rule) == Some(chain));
    let rules = chains.get_mut(chain).unwrap_or_else(|| panic!("{line}: no such chain"));
    match command {
        "-A" => rules.push(rule.to_owned()),
        "-I" => rules.insert(0, rule.to_owned()),
        "-D" => {
            let place = rules.iter().position(|one| one == rule);
            rules.remove(place.unwrap_or_else(|| panic!("{line}: no such rule")));
        }
        "-X" => {
            assert!(rules.is_empty() && !used, "{line}: the chain is in use");
            chains.remove(chain);
        }
        other => panic!("{other}: no such command"),
    }
}

/// The chain that a rule leads to.
fn target(rule: &str) -> Option<&str> {
    let mut words = rule.rsplit(' ');
    words.next().filter(|word| word.starts_with("KUBE-") && words.next() == Some("-j"))
}

/// What `iptables-save` prints, but for counters and dates.
pub(crate) fn save(tables: &Tables) -> String {
    let mut text = String::new();
    for table in [Table::Mangle, Table::Filter, Table::Nat] {
        writeln!(text, "*{}", table.name()).unwrap();
        let chains = tables.chains(table);
        for chain in chains.keys() {
            let policy = if chain.starts_with("KUBE-") { "-" } else { "ACCEPT" };
            writeln!(text, ":{chain} {policy} [0:0]").unwrap();
        }
        for (chain, rules) in chains {
            for rule in rules {
                writeln!(text, "-A {chain} {rule}").unwrap();
            }
        }
        text.push_str("COMMIT\n");
    }
    text
}
