//! What differs between two dumps of the original's rules for the same objects, taken out: counters and dates, the order of
//! tables and chains, tables without rules, the order of different services in the chains they share, probabilities beyond
//! nine digits, and a blank that iptables 1.8.9 prints twice.

use std::collections::BTreeMap;

const SHARED: [&str; 4] =
    ["KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-PROXY-FIREWALL"];

#[derive(Default)]
struct Table<'a> {
    /// With their policies.
    chains: BTreeMap<&'a str, &'a str>,
    rules: BTreeMap<&'a str, Vec<String>>,
}

/// A dump of one family so treated, line by line.
pub(crate) fn normalised(dump: &str) -> Vec<String> {
    let mut tables: BTreeMap<&str, Table<'_>> = BTreeMap::new();
    let mut current = "";
    for line in dump.lines() {
        if line.starts_with('*') {
            current = line;
        } else if let Some(chain) = line.strip_prefix(':') {
            let mut words = chain.split(' ');
            let (name, policy) = (words.next().unwrap(), words.next().unwrap());
            tables.entry(current).or_default().chains.insert(name, policy);
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let chain = rule.split(' ').next().unwrap();
            tables.entry(current).or_default().rules.entry(chain).or_default().push(normalised_rule(line));
        }
    }
    tables.into_iter().flat_map(|(name, table)| lines(name, table)).collect()
}

fn lines(name: &str, mut table: Table<'_>) -> Vec<String> {
    if table.rules.is_empty() && table.chains.values().all(|policy| *policy != "-") {
        return vec![];
    }
    for (chain, rules) in &mut table.rules {
        if SHARED.contains(chain) {
            rules.sort_by_key(|rule| {
                (rule.contains("must be the last rule"), !rule.contains("nfacct"), rule.clone())
            });
        }
    }
    let chains = table.chains.iter().map(|(chain, policy)| format!(":{chain} {policy}"));
    std::iter::once(name.to_owned()).chain(chains).chain(table.rules.into_values().flatten()).collect()
}

fn normalised_rule(rule: &str) -> String {
    let rule = rule.replace("--nfacct-name  ", "--nfacct-name ");
    let Some(at) = rule.find("--probability 0.") else { return rule };
    let digits = at + "--probability 0.".len();
    let end = rule[digits..].find(' ').map_or(rule.len(), |length| digits + length);
    format!("{}{}", &rule[..end.min(digits + 9)], &rule[end..])
}
