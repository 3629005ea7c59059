//! What is written brings the tables from any state to the one wanted, and keeps every service up on the way.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;

use dataplane::Facts;
use kube_proxy_backend_iptables::{Chains, Tables};
use model::{Family, Frontend, Policy, Protocol, ResolvedService};
use proptest::prelude::*;
use proptest::sample::Index;
use support::services::{PLAIN, Shape, facts, key, rebuild, service};
use support::{restore, restored, untouched};

type World = BTreeMap<u16, Shape>;

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![Just(Policy::Cluster), Just(Policy::Local)]
}

prop_compose! {
    fn shape()(
        endpoints in prop::collection::btree_set(1_u16..8, 0..5),
        remote_from in 0_u16..8,
        affinity in prop::option::of(1_u32..3),
        (internal, external) in (policy(), policy()),
        (external_ip, load_balancer, node_port) in any::<(bool, bool, bool)>(),
        (source_ranges, second_port) in any::<(bool, bool)>(),
        protocol in prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Sctp)],
    ) -> Shape {
        Shape {
            endpoints: endpoints.into_iter().collect(),
            remote_from, affinity, internal, external, external_ip, load_balancer, node_port, source_ranges,
            protocol, second_port,
        }
    }
}

/// Services that come, change and (`None`) go, and how many addresses the node has.
fn step() -> impl Strategy<Value = (BTreeMap<u16, Option<Shape>>, u16)> {
    (prop::collection::btree_map(0_u16..12, prop::option::weighted(0.7, shape()), 0..12), 0_u16..3)
}

fn world() -> impl Strategy<Value = World> {
    prop::collection::btree_map(0_u16..8, shape(), 0..8)
}

fn family() -> impl Strategy<Value = Family> {
    prop_oneof![Just(Family::V4), Just(Family::V6)]
}

/// Tables in which others have rules.
fn in_use() -> Tables {
    let mut tables = untouched();
    let rules = |rules: &[&str]| rules.iter().map(|rule| (*rule).to_owned()).collect::<Vec<_>>();
    tables.nat.insert("DOCKER".to_owned(), rules(&["-i docker0 -j RETURN"]));
    tables.nat.insert("PREROUTING".to_owned(), rules(&["-m addrtype --dst-type LOCAL -j DOCKER"]));
    tables.filter.insert("INPUT".to_owned(), rules(&["-p tcp -m tcp --dport 22 -j ACCEPT"]));
    tables.filter.insert("KUBE-FIREWALL".to_owned(), rules(&["-m mark --mark 0x8000/0x8000 -j DROP"]));
    tables
}

const END: &str = "must be the last rule";

/// The chains, with the lines of services in shared ones sorted, as their order means nothing.
fn meaning(tables: &Tables) -> Tables {
    let sorted = |chains: &Chains| {
        let mut chains = chains.clone();
        for name in ["KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-PROXY-FIREWALL"] {
            let Some(rules) = chains.get_mut(name) else { continue };
            let of_services = rules.partition_point(|rule| !rule.contains(END));
            assert!(rules[of_services..].iter().all(|rule| rule.contains(END)), "{name}: {rules:#?}");
            rules[..of_services].sort();
            rules[of_services..].sort();
        }
        chains
    };
    Tables { mangle: tables.mangle.clone(), filter: sorted(&tables.filter), nat: sorted(&tables.nat) }
}

fn wanted(family: Family, world: &World, facts: &Facts, found: &Tables) -> Tables {
    let (_, text) = rebuild(family, world, facts, found);
    meaning(&restored(found, &text.to_string()))
}

/// Where a frontend leads: whether anything is done with what goes there.
fn is_handled(tables: &Tables, service: &ResolvedService, port: usize, frontend: Frontend) -> bool {
    let port = &service.ports[port];
    let (address, number) = match frontend {
        Frontend::NodePort(number) => (String::new(), number),
        Frontend::ClusterIp(address) | Frontend::ExternalIp(address) | Frontend::LoadBalancerIp(address) => {
            (format!("-d {address}/"), port.port)
        }
    };
    let (protocol, number) = (format!("-p {} ", port.protocol), format!("--dport {number} "));
    let meant =
        |rule: &&String| rule.contains(&address) && rule.contains(&protocol) && rule.contains(&number);
    let chains = [
        (&tables.nat, "KUBE-SERVICES"),
        (&tables.nat, "KUBE-NODEPORTS"),
        (&tables.filter, "KUBE-SERVICES"),
        (&tables.filter, "KUBE-EXTERNAL-SERVICES"),
    ];
    chains.iter().flat_map(|(chains, name)| &chains[*name]).any(|rule| meant(&rule))
}

/// The frontends that the service has before and after are handled in each state in between.
fn assert_handled(states: &[Tables], old: &ResolvedService, new: &ResolvedService) {
    for (index, (before, after)) in old.ports.iter().zip(&new.ports).enumerate() {
        let stays = |frontend: &&Frontend| after.frontends.contains(frontend);
        if before.protocol != after.protocol {
            continue;
        }
        for frontend in before.frontends.iter().filter(stays) {
            for state in states {
                assert!(is_handled(state, new, index, *frontend), "{}: {frontend:?}", new.key);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn updates_lead_to_the_same_as_a_rebuild(
        family in family(),
        steps in prop::collection::vec(step(), 1..6),
    ) {
        let mut world = World::new();
        let mut tables = in_use();
        let (mut ruleset, text) = rebuild(family, &world, &facts(0), &tables);
        tables = restored(&tables, &text.to_string());
        for (changes, node_addresses) in steps {
            let before = world.clone();
            for (number, shape) in &changes {
                match shape {
                    Some(shape) => world.insert(*number, shape.clone()),
                    None => world.remove(number),
                };
            }
            let resolved = changes.iter().map(|(number, shape)| {
                (key(*number), shape.as_ref().map(|shape| service(family, *number, shape)))
            });
            let facts = facts(node_addresses);
            let (update, text) = ruleset.update(resolved.collect(), &facts);
            ruleset.apply(update);
            let states = restore(&tables, &text.to_string());
            for (number, old) in &before {
                let new = world.get(number).map(|new| service(family, *number, new));
                if let Some(new) = new {
                    assert_handled(&states, &service(family, *number, old), &new);
                }
            }
            tables.clone_from(states.last().unwrap());
            prop_assert_eq!(meaning(&tables), wanted(family, &world, &facts, &in_use()));
            let (_, text) = rebuild(family, &world, &facts, &tables);
            prop_assert!(text.is_empty(), "a restart writes {}", text);
        }
    }

    #[test]
    fn a_rebuild_repairs_whatever_was_done_to_the_chains(
        family in family(),
        world in world(),
        other in prop::option::of(world()),
        damages in prop::collection::vec((damage(), any::<Index>(), any::<Index>(), any::<bool>()), 0..5),
    ) {
        let (_, text) = rebuild(family, other.as_ref().unwrap_or(&world), &facts(2), &in_use());
        let mut found = restored(&in_use(), &text.to_string());
        for (damage, chain, rule, in_nat) in damages {
            // chains of services are in table nat only
            let in_nat = in_nat || matches!(damage, Damage::AddStaleChain);
            damage.apply(if in_nat { &mut found.nat } else { &mut found.filter }, chain, rule);
        }
        prop_assert_eq!(wanted(family, &world, &facts(2), &found), wanted(family, &world, &facts(2), &in_use()));
    }
}

/// What others may do to this program's chains.
#[derive(Clone, Copy, Debug)]
enum Damage {
    DeleteRule,
    DoubleRule,
    AddRule,
    MoveFirstRuleToEnd,
    Flush,
    AddStaleChain,
}

fn damage() -> impl Strategy<Value = Damage> {
    use Damage::{AddRule, AddStaleChain, DeleteRule, DoubleRule, Flush, MoveFirstRuleToEnd};
    prop::sample::select(vec![DeleteRule, DoubleRule, AddRule, MoveFirstRuleToEnd, Flush, AddStaleChain])
}

impl Damage {
    fn apply(self, chains: &mut Chains, chain: Index, rule: Index) {
        if let Self::AddStaleChain = self {
            let stale = "KUBE-SEP-AAAAAAAAAAAAAAAA".to_owned();
            chains.insert(stale, vec!["-p tcp -m tcp -j DNAT --to-destination 192.0.2.99:80".to_owned()]);
            return;
        }
        let ours =
            chains.iter_mut().filter(|(name, _)| name.starts_with("KUBE-") && *name != "KUBE-FIREWALL");
        let mut ours: Vec<_> = ours.map(|(_, rules)| rules).collect();
        let index = chain.index(ours.len());
        let rules = &mut *ours[index];
        if let Self::AddRule = self {
            return rules.insert(rule.index(rules.len() + 1), "-s 192.0.2.99/32 -j ACCEPT".to_owned());
        }
        if rules.is_empty() {
            return;
        }
        let place = rule.index(rules.len());
        match self {
            Self::DeleteRule => drop(rules.remove(place)),
            Self::DoubleRule => rules.push(rules[place].clone()),
            Self::MoveFirstRuleToEnd => rules.rotate_left(1),
            _ => rules.clear(),
        }
    }
}

#[test]
fn what_came_behind_the_last_rule_is_put_before_it() {
    let world = World::from([(1, with_endpoints(1)), (2, with_endpoints(1))]);
    let (_, text) = rebuild(Family::V4, &world, &facts(1), &untouched());
    let right = restored(&untouched(), &text.to_string());
    let damages: [fn(&mut Vec<String>); 2] =
        [|rules| rules.rotate_left(1), |rules| rules.push(rules[0].clone())];
    for damage in damages {
        let mut found = right.clone();
        damage(found.nat.get_mut("KUBE-SERVICES").unwrap());
        let (_, text) = rebuild(Family::V4, &world, &facts(1), &found);
        assert_eq!(restored(&found, &text.to_string()), right);
    }
}

#[test]
fn a_stale_chain_that_others_lead_to_is_left_empty() {
    let mut found = in_use();
    let stale = "KUBE-SVC-AAAAAAAAAAAAAAAA";
    found.nat.insert(stale.to_owned(), vec!["-j KUBE-SEP-AAAAAAAAAAAAAAAA".to_owned()]);
    found.nat.insert("KUBE-SEP-AAAAAAAAAAAAAAAA".to_owned(), vec!["-j RETURN".to_owned()]);
    found.nat.get_mut("DOCKER").unwrap().push(format!("-j {stale}"));
    let (_, text) = rebuild(Family::V4, &World::new(), &facts(1), &found);
    let tables = restored(&found, &text.to_string());
    assert_eq!(tables.nat[stale], [] as [&str; 0]);
    assert!(!tables.nat.contains_key("KUBE-SEP-AAAAAAAAAAAAAAAA"));
}

/// A service with so many endpoints.
fn with_endpoints(endpoints: u16) -> Shape {
    Shape { endpoints: (1..=endpoints).collect(), affinity: Some(60), ..PLAIN }
}

#[test]
fn in_a_large_cluster_endpoints_go_without_comments() {
    for (endpoints, is_large) in [(1000, false), (1001, true)] {
        let world = World::from([(1, with_endpoints(endpoints))]);
        let (_, text) = rebuild(Family::V4, &world, &facts(1), &untouched());
        let tables = restored(&untouched(), &text.to_string());
        let of_endpoints = |rule: &&String| rule.contains("KUBE-SEP-") || rule.contains("DNAT");
        let mut rules = tables.nat.values().flatten().filter(of_endpoints);
        assert!(rules.all(|rule| rule.contains("--comment") != is_large), "{endpoints} endpoints");
        assert!(tables.nat["KUBE-SERVICES"].iter().all(|rule| rule.contains("--comment")));
    }
}

#[test]
fn a_cluster_that_becomes_large_changes_no_other_service() {
    let world = World::from([(1, with_endpoints(900)), (2, with_endpoints(100))]);
    let (ruleset, _) = rebuild(Family::V4, &world, &facts(1), &untouched());
    let grown = service(Family::V4, 2, &with_endpoints(101));
    let (_, text) = ruleset.update(vec![(grown.key.clone(), Some(grown))], &facts(1));
    assert!(!text.to_string().contains("web/s1"), "{text}");
}

#[test]
fn a_refused_line_is_told_with_its_service() {
    let world: World =
        (0..3).map(|number| (number, Shape { node_port: true, ..with_endpoints(2) })).collect();
    let (_, text) = rebuild(Family::V4, &world, &facts(1), &untouched());
    let printed = text.to_string();
    assert_eq!(text.changes() + 6, printed.lines().count());
    for (index, line) in printed.lines().enumerate().filter(|(_, line)| line.starts_with("-A")) {
        let named = world.keys().map(|number| key(*number)).find(|key| line.contains(key.as_str()));
        let (told, owner) = text.line(index + 1).unwrap();
        assert_eq!(told, line);
        assert!(named.is_none() || owner == named.as_ref(), "{line}: {owner:?}");
    }
    assert!(text.line(0).is_none() && text.line(printed.lines().count() + 1).is_none());
}
